# SPDX-License-Identifier: Apache-2.0
"""One container start, told from top to bottom.

The only room that defers imports: each stage pays for what it needs, and a container that asks for no GPU pays for
almost nothing.  Left of the plan everything only reads; what is done to the container is done by `apply`.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import oci, report, request, sources
from oci_gpu_hook.course import Course
from oci_gpu_hook.errors import (
    DONE,
    BundleError,
    ConfigError,
    DriverError,
    HookError,
    RequestError,
    UsageError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from oci_gpu_hook.config import Config
    from oci_gpu_hook.container.cgroup import DeviceCgroup
    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.operations import Labels
    from oci_gpu_hook.plan import Plan, Provision
    from oci_gpu_hook.rootfs import Container

SETTINGS = "/etc/oci-gpu-hook.conf"

_STDIN = 0
# What hooks.d/oci-gpu-hook has read of stdin.
_READ_BY_DOOR = b"OCI_GPU_HOOK_STATE"
# selinuxfs is mounted where SELinux runs, and only there (selinux(8)).
_SELINUX = "/sys/fs/selinux/enforce"
_SERVED = ("prestart", "createRuntime")
_NOTHING_TO_DO = ("poststart", "poststop")


class Options:
    """The words after the stage: ``--config FILE``, ``--host-root DIR``; and from our CDI specs ``--cdi CAPABILITIES``,
    where the engine has done what a spec can say, and ``--cdi-driver VERSION``, which the spec was made for."""

    def __init__(self, arguments: list[str]) -> None:
        self.config: str | None = None
        self.host_root = "/"
        self.cdi: str | None = None
        self.cdi_driver = ""
        words = iter(arguments)
        for word in words:
            option, equals, value = word.partition("=")
            if option not in ("--config", "--host-root", "--cdi", "--cdi-driver"):
                raise UsageError(f"unknown option {word!r} after a hook stage")
            given = value if equals else next(words, "")
            if not given:
                raise UsageError(f"{option} needs a value")
            setattr(self, option[2:].replace("-", "_"), given)
        for word in (self.cdi or ",".join(request.CAPABILITIES)).split(","):
            if word not in request.CAPABILITIES:
                raise UsageError(
                    f"--cdi names {word!r}, which is no capability",
                    "write the spec anew with 'oci-gpu-hook cdi generate'",
                )


def main(stage: str, arguments: list[str]) -> int:
    """Run one hook stage; gives the exit code.  The one place that catches everything."""
    course = Course()
    try:
        if stage in _NOTHING_TO_DO:
            # Mounts and nodes go with the mount namespace, rules with the cgroup.
            return DONE
        if stage not in _SERVED:
            raise UsageError(
                f"stage {stage} runs inside the container, where this hook must not run",
                "the administrator must register it for createRuntime or prestart",
            )
        options = Options(arguments)
        course.state = oci.read_state(_STDIN, posix.environ.get(_READ_BY_DOOR, b""))
        course.annotations = course.state.annotations
        start(course, course.state, options)
    except Exception as err:
        code = report.failure(err)
        # Of a wrong stage nothing is told: this may be the container's own journal.
        if not isinstance(err, UsageError):
            _tell(course, code, str(err))
        return code
    if course.request is not None or course.notes:
        _tell(course, DONE, "")
    return DONE


def _tell(course: Course, code: int, sentence: str) -> None:
    """The journal and the counters.  Whatever goes wrong with them, the start does not."""
    try:
        from oci_gpu_hook import telling

        telling.tell(course, code, sentence)
    except Exception as err:
        # A start that failed has had its one sentence.
        if code == DONE:
            report.say(f"this start is not recorded: {err}")


def start(course: Course, state: oci.State, options: Options) -> None:
    """What one container start does."""
    bundle = oci.read_bundle(state.bundle)
    inputs = inputs_of(bundle, state.annotations)
    course.annotations = inputs.annotations
    asks = options.cdi is not None or sources.may_ask(inputs)
    if not asks and not has_settings(options.config):
        return
    settings = course.settings = _settings(options, inputs, asks)
    if settings is None:
        return
    if options.cdi is None:
        asked, notes = request.parse(inputs, settings)
    else:
        asked, notes = request.of_nodes(
            inputs, settings, oci.linux_devices(bundle), options.cdi.split(",")
        )
    if asked is not None:
        course.request = asked
        _carry_out(course, state, bundle, asked, settings, options, notes)
        return
    course.say(notes)
    if settings.ipc_labels == "all":
        _start_labels_only(state, bundle, settings, options)


def inputs_of(bundle: oci.Bundle, annotations: dict[str, str]) -> sources.Inputs:
    """What of a bundle can ask for something; `annotations` are those of the state."""
    return sources.Inputs(
        environment=oci.environment(bundle),
        mounts=oci.all_mounts(bundle),
        annotations={**annotations, **oci.bundle_annotations(bundle)},
        privileged=oci.is_privileged(bundle),
    )


def has_settings(path: str | None) -> bool:
    """Whether the administrator has said anything at all, which may concern a container without a request."""
    for name in (SETTINGS, f"{SETTINGS}.d") if path is None else (path,):
        try:
            posix.stat(name)
        except OSError:
            continue
        return True
    return False


def _settings(options: Options, inputs: sources.Inputs, asks: bool) -> Config | None:
    """The settings; None where they cannot be read and the container asks for nothing that we know of."""
    from oci_gpu_hook import config

    try:
        return config.read(*settings_file(options.config), inputs.annotations)
    except (ConfigError, RequestError) as err:
        if asks:
            raise
        report.say(str(err))
        return None


def _start_labels_only(
    state: oci.State, bundle: oci.Bundle, settings: Config, options: Options
) -> None:
    """The labels of a container that asks for no GPU: it is never stopped by us."""
    try:
        posix.stat(_SELINUX)
    except OSError:
        return
    try:
        # A course of its own: these labels are nothing that was asked for.
        _carry_out(Course(state), state, bundle, None, settings, options, ())
    except HookError as err:
        report.say(str(err))


def _carry_out(
    course: Course,
    state: oci.State,
    bundle: oci.Bundle,
    asked: request.Request | None,
    settings: Config,
    options: Options,
    notes: tuple[str, ...],
) -> None:
    from oci_gpu_hook import apply, rootfs
    from oci_gpu_hook.host import answers
    from oci_gpu_hook.host.root import HostRoot

    course.end_step()
    host = HostRoot(options.host_root)
    root_fd = rootfs.open_root(oci.rootfs(bundle), state.pid)
    plan, have = decide(
        bundle, asked, settings, host, root_fd, id=state.id, pid=state.pid, memory=answers
    )
    course.plan = plan
    if have is not None and options.cdi is not None:
        plan = _without_edits(plan, have, options.cdi_driver)
    course.end_step()
    done = apply.run(plan, host, root_fd, bundle, state.pid, _labelling(plan))
    course.say((*notes, *plan.notes, *done))


def _without_edits(plan: Plan, have: DriverInventory, spec_driver: str) -> Plan:
    """What is left to do of a plan where the engine has carried out our CDI spec."""
    from oci_gpu_hook import cdi

    misfit = cdi.misfit(spec_driver, have)
    if misfit:
        raise DriverError(misfit, "write it anew with 'oci-gpu-hook cdi generate'")
    left = [operation for operation in plan.operations if not cdi.edit_can_say(operation)]
    return plan._replace(operations=tuple(left))


def _labelling(plan: Plan) -> ModuleType | None:
    """The room that labels, which only a plan with a label needs."""
    if not plan.label:
        return None
    from oci_gpu_hook.container import labels

    return labels


def decide(
    bundle: oci.Bundle,
    asked: request.Request | None,
    settings: Config,
    host: HostRoot,
    root_fd: int,
    *,
    id: str,
    pid: int | None,
    memory: ModuleType | None = None,
) -> tuple[Plan, DriverInventory | None]:
    """The plan for a bundle, and the inventory that it was made from: everything is read here, nothing is changed.

    Without a `pid` the container does not exist yet: what only its process tells is taken from config.json.
    memory: the room host.answers, where answers may be taken from and kept; None of an inventory comes with those.
    """
    from oci_gpu_hook import plan, rootfs

    container = _container(bundle, root_fd, id, pid, asked, settings)
    labels = _labels(bundle, host, root_fd, settings, id=id, pid=pid, required=asked is not None)
    if asked is None:
        return plan.make_labels(container, labels), None
    question = memory and memory.question(host, asked, rootfs.like(container), settings.driver_root)
    known = memory.recall(host, question) if memory and question else None
    have = None
    if known is not None:
        given = plan.Provision(*known)
    else:
        given, have = _provide(host, container, asked, settings, memory, question)
    return plan.make(container, asked, given, settings, labels), have


def _provide(
    host: HostRoot,
    container: Container,
    asked: request.Request,
    settings: Config,
    memory: ModuleType | None,
    question: object,
) -> tuple[Provision, DriverInventory]:
    """What the container is given, from the inventory."""
    from oci_gpu_hook import provision, rootfs, selection
    from oci_gpu_hook.host import inventory

    have, is_saved = _inventory(host, settings.driver_root)
    chosen = selection.select(asked, have)
    root = memory.Witness(host) if memory and question else host
    have = inventory.with_nodes(
        root,
        have,
        selection.families(asked),
        asked.imex_channels,
        settings.driver_root,
        tuple([gpu for gpu, _ in chosen.gpus]),
    )
    if asked.source == "cdi":
        # A spec is made before any container: its libraries lie where the host has them, of both word sizes.
        container = _laid_out_like_host(container, have.library_folder)
    if asked.requirements:
        from oci_gpu_hook import requirements

        gpus = tuple([(gpu.compute_capability, gpu.brand) for gpu, _ in chosen.gpus])
        facts = requirements.HostFacts(have.driver_version, have.cuda_version, gpus)
        requirements.check(asked.requirements, facts)
    given = provision.make(rootfs.like(container), asked, chosen, have)
    if memory and question and is_saved and all([gpu.uuid for gpu in have.gpus]):
        memory.keep(host, question, root, given)
    return given, have


def _inventory(host: HostRoot, driver_root: str) -> tuple[DriverInventory, bool]:
    """The saved inventory while it is true, else a new one; and whether it is the saved one."""
    from oci_gpu_hook.host import inventory, stamp

    saved = inventory.read_saved(host, stamp.now(host, driver_root))
    if saved is not None:
        return saved, True
    from oci_gpu_hook.host import survey

    return survey.anew(host, driver_root), False


def settings_file(path: str | None) -> tuple[str, bool]:
    """The administrator's file, and whether it may be absent: only the default one may."""
    return (SETTINGS, True) if path is None else (path, False)


def _container(
    bundle: oci.Bundle,
    root_fd: int,
    id: str,
    pid: int | None,
    asked: request.Request | None,
    settings: Config,
) -> Container:
    """What the container is like, from its root, its process and its cgroup."""
    from oci_gpu_hook import rootfs
    from oci_gpu_hook.container import scope

    folder, loader = rootfs.library_folder(root_fd)
    device_cgroup = _device_cgroup(id, pid)
    asked_for = oci.has_user_namespace(bundle)
    capabilities = asked.capabilities if asked else ()
    forward = settings.cuda_forward_compatibility and "compute" in capabilities
    return rootfs.Container(
        id=id,
        bundle=bundle.path,
        rootfs=oci.rootfs(bundle),
        library_folder=folder,
        library_folder_32=rootfs.library_folder_32(folder, loader),
        compat_names=rootfs.names(root_fd, rootfs.COMPAT_FOLDER) if forward else (),
        loader=loader,
        user_namespace=asked_for if pid is None else rootfs.in_user_namespace(pid),
        dev_is_hosts=pid is not None and rootfs.dev_is_hosts(root_fd),
        device_cgroup=device_cgroup,
        scope=scope.find(device_cgroup.top),
    )


def container_like_host(library_folder: str) -> Container:
    """A container that is laid out as the host is: for a CDI spec, which is made before any container."""
    from oci_gpu_hook import rootfs

    container = rootfs.Container(
        id="",
        bundle="",
        rootfs="",
        library_folder="",
        library_folder_32="",
        compat_names=(),
        loader=rootfs.GLIBC,
        user_namespace=False,
        dev_is_hosts=False,
        device_cgroup=_device_cgroup("", None),
    )
    return _laid_out_like_host(container, library_folder)


def _laid_out_like_host(container: Container, library_folder: str) -> Container:
    from oci_gpu_hook import rootfs

    return container._replace(
        library_folder=library_folder,
        library_folder_32=rootfs.library_folder_32(library_folder, rootfs.GLIBC),
    )


def _device_cgroup(id: str, pid: int | None) -> DeviceCgroup:
    from oci_gpu_hook.container import cgroup

    try:
        return cgroup.expected() if pid is None else cgroup.locate(pid, id)
    except OSError as err:
        raise BundleError(
            f"the container's device cgroup cannot be found: {err}",
            "the container engine or runtime must mend it",
        ) from err


def _labels(
    bundle: oci.Bundle,
    host: HostRoot,
    root_fd: int,
    settings: Config,
    *,
    id: str,
    pid: int | None,
    required: bool,
) -> Labels | None:
    """What SELinux needs; None on a host without it, where nothing of ours is even imported."""
    if host.stat(_SELINUX) is None:
        return None
    from oci_gpu_hook import ipc, ipclabels

    mounts = () if pid is None else ipc.mounts(bundle, id, root_fd, pid, host)
    mount_label, process_label = oci.mount_label(bundle), oci.process_label(bundle)
    return ipclabels.decide(mounts, mount_label, process_label, settings, required=required)
