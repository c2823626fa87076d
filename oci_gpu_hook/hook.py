# SPDX-License-Identifier: Apache-2.0
"""One container start, told from top to bottom.

Imports wait until they are needed: each stage pays for its own, and a container that asks for no GPU pays for almost
nothing.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import (
    DONE,
    LONGEST_LIST,
    BundleError,
    ConfigError,
    DriverError,
    HookError,
    RequestError,
    UsageError,
    plain,
)
from oci_gpu_hook.report import sentence
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request import settings, sources
from oci_gpu_hook.request.bundle import read_bundle
from oci_gpu_hook.request.state import ENGINE_HINT, read_state
from oci_gpu_hook.request.words import CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.bundle import Bundle
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.request.settings import Settings
    from oci_gpu_hook.request.sources import Inputs
    from oci_gpu_hook.request.state import State
    from oci_gpu_hook.request.vendors import Known

_STDIN = 0
# What hooks.d/oci-gpu-hook has read of stdin.
_READ_BEFORE = b"OCI_GPU_HOOK_STATE"
_SERVED = ("prestart", "createRuntime")
_NOTHING_TO_DO = ("poststart", "poststop")
_OPTIONS = ("--config", "--host-root", "--cdi", "--cdi-vendor", "--cdi-driver")


class Options:
    """The words after the stage.

    ``--config FILE`` and ``--host-root DIR``; and from our CDI specs ``--cdi CAPABILITIES`` or ``--cdi-vendor FLAG``,
    where the engine has done what a spec can say, and ``--cdi-driver VERSION``, for which the spec was made.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.config: str | None = None
        self.host_root = "/"
        self.cdi: str | None = None
        self.cdi_vendor: str | None = None
        self.cdi_driver = ""
        words = iter(arguments)
        for word in words:
            option, equals, value = word.partition("=")
            if option not in _OPTIONS:
                raise UsageError(f"unknown option {word!r} after a hook stage")
            value = value if equals else next(words, "")
            if not value:
                raise UsageError(f"{option} needs a value")
            setattr(self, option[2:].replace("-", "_"), value)
        for name in (self.cdi or ",".join(CAPABILITIES)).split(","):
            if name not in CAPABILITIES:
                raise UsageError(
                    f"--cdi names {name!r}, which is no capability",
                    "write the spec anew with 'oci-gpu-hook cdi generate'",
                )

    def by_cdi(self) -> bool:
        """Whether a CDI spec of ours has started the hook."""
        return self.cdi is not None or self.cdi_vendor is not None


def main(stage: str, arguments: list[str]) -> int:
    """Run one hook stage; gives the exit code.  The one place that catches every error."""
    progress = Progress()
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
        progress.state = read_state(_STDIN, posix.environ.get(_READ_BEFORE, b""))
        progress.annotations = progress.state.annotations
        start(progress, progress.state, options, stage)
    except Exception as err:
        code = sentence.failure(err)
        # At a wrong stage journal and /proc may be the container's own.
        if not isinstance(err, UsageError):
            _tell_runtime(str(err))
            _record(progress, code, plain(str(err), LONGEST_LIST))
        return code
    if progress.request is not None or progress.notes:
        _record(progress, DONE, "")
    return DONE


def _tell_runtime(said: str) -> None:
    """Tell the readers of a runtime that does not show what its hooks say.  Whatever goes wrong, the code stays."""
    try:
        from oci_gpu_hook.report import runtime

        runtime.tell(f"oci-gpu-hook: {plain(said, LONGEST_LIST)}")
    except Exception:
        pass


def _record(progress: Progress, code: int, said: str) -> None:
    """Record the start in the journal.  Whatever goes wrong with that, the start goes on."""
    try:
        from oci_gpu_hook.report import record

        record.send(progress, code, said)
    except Exception as err:
        # A start that failed has had its one sentence.
        if code == DONE:
            sentence.say(f"this start is not recorded: {err}")


def start(progress: Progress, state: State, options: Options, stage: str = "") -> None:
    """What one container start does."""
    if state.bundle == "/":
        state = progress.state = _with_bundle(state)
        if not state.bundle:
            return
    bundle = read_bundle(state.bundle)
    if stage == "createRuntime" and not options.by_cdi() and _is_served(bundle):
        return
    inputs = sources.inputs_of(bundle, state.annotations)
    progress.annotations = inputs.annotations
    known = _known_vendors(inputs, options) if sources.may_name_vendor(inputs) else ()
    asks = options.by_cdi() or sources.may_ask(inputs) or _asks_vendor(inputs, known)
    if not asks and not settings.are_there(options.config):
        return
    allowed = progress.settings = _settings(options, inputs, asks)
    if allowed is None:
        return
    if not known and (options.cdi_vendor or sources.may_name_vendor(inputs, allowed)):
        known = _known_vendors(inputs, options)
    request, notes = _request(bundle, inputs, allowed, options, known)
    progress.keep(notes)
    if request is not None:
        progress.request = request
        _carry_out(progress, state, bundle, request, allowed, options)
        return
    progress.say()
    if allowed.ipc_labels == "all":
        _label_only(state, bundle, allowed, options)


def _is_served(bundle: Bundle) -> bool:
    """Whether this very program has been started for prestart, which comes first.

    dockerd registers it so for ``--gpus``, whatever a registration or a runtime has added for createRuntime.
    """
    earlier = [path for path, words in bundle.hooks("prestart") if words[1:] == ("prestart",)]
    if not earlier:
        return False
    ours = [path for path, _ in bundle.hooks("createRuntime") if path.endswith("/oci-gpu-hook")]
    return not _inodes(earlier).isdisjoint(_inodes(ours))


def _inodes(paths: list[str]) -> set[tuple[int, int]]:
    """Device and inode number of each of these files that is there."""
    found = set()
    for path in paths:
        try:
            status = posix.stat(path)
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found


def _with_bundle(state: State) -> State:
    """The state with the bundle that crun has not told; with "" where it is not found, and nothing asks for a GPU."""
    from oci_gpu_hook.request import crun

    if not crun.is_lost(state):
        return state
    found = crun.find(state)
    if not found:
        missing = "the runtime says that the bundle is '/', and keeps it nowhere that is known"
        if any([key.startswith(sources.CDI_ANNOTATIONS) for key in state.annotations]):
            raise BundleError(missing, ENGINE_HINT)
        sentence.say(missing)
    return state._replace(bundle=found)


def _asks_vendor(inputs: Inputs, known: tuple[Known, ...]) -> bool:
    """Whether anything asks for another vendor's devices; swarm resources apart, which only the administrator names."""
    if not known:
        return False
    from oci_gpu_hook.request import vendors

    return vendors.asks(inputs, known)


def _known_vendors(inputs: Inputs, options: Options) -> tuple[Known, ...]:
    """The vendors' files of this host, as far as they concern the container."""
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.vendors import current

    return current.for_container(HostRoot(options.host_root), inputs, remember=True)


def _settings(options: Options, inputs: Inputs, asks: bool) -> Settings | None:
    """The settings; None where they cannot be read and the container asks for nothing that we know of."""
    try:
        return settings.read_settings(options.config, inputs.annotations)
    except (ConfigError, RequestError) as err:
        if asks:
            raise
        sentence.say(str(err))
        return None


def _request(
    bundle: Bundle,
    inputs: Inputs,
    allowed: Settings,
    options: Options,
    known: tuple[Known, ...],
) -> tuple[Request | None, tuple[str, ...]]:
    """What the container asks for, and a sentence for each thing that is left out."""
    if options.cdi_vendor is not None:
        from oci_gpu_hook.request import bycdi

        return bycdi.of_vendor(options.cdi_vendor, known, bundle.device_paths()), ()
    if options.cdi is None:
        from oci_gpu_hook.request import parse

        if not sources.accepts_environment(inputs, allowed):
            from oci_gpu_hook.host import docker

            inputs = docker.with_request(inputs, bundle, options.host_root)
        return parse.parse(inputs, allowed, known)
    from oci_gpu_hook.request import bycdi

    return bycdi.of_nodes(inputs, allowed, bundle.device_paths(), options.cdi.split(","))


def _carry_out(
    progress: Progress,
    state: State,
    bundle: Bundle,
    request: Request | None,
    allowed: Settings,
    options: Options,
) -> None:
    from oci_gpu_hook import apply
    from oci_gpu_hook.container import rootfs
    from oci_gpu_hook.container.process import Process
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.planning.decide import decide

    progress.end_step()
    host = HostRoot(options.host_root)
    process = Process(state.pid)
    root = rootfs.of_process(bundle, process)
    plan, inventory = decide(
        bundle, request, allowed, host, root, id=state.id, process=process, remember=True
    )
    progress.plan = plan
    progress.keep(plan.notes)
    if inventory is not None and options.cdi is not None:
        _check_spec(progress, inventory, options.cdi_driver)
    if options.cdi_vendor is not None:
        _check_vendor_spec(progress, plan, host, bundle, options.cdi_driver)
    if options.by_cdi():
        # The engine has done what the spec says.
        left = [operation for operation in plan.operations if operation.cdi_edits() is None]
        plan = plan._replace(operations=tuple(left))
    progress.end_step()
    progress.keep(apply.run(plan, host, root.fd, process))
    progress.say()


def _label_only(state: State, bundle: Bundle, allowed: Settings, options: Options) -> None:
    """Correct the labels of a container that asks for no GPU; it is never stopped by us."""
    from oci_gpu_hook.planning.decide import SELINUX

    try:
        posix.stat(SELINUX)
    except OSError:
        return
    try:
        # Nothing of this is recorded: nobody has asked for it.
        _carry_out(Progress(), state, bundle, None, allowed, options)
    except HookError as err:
        sentence.say(str(err))


def _check_spec(progress: Progress, inventory: DriverInventory, spec_driver: str) -> None:
    """DriverError where the engine has carried out a CDI spec of ours that was made for another driver."""
    from oci_gpu_hook.planning import cdi

    if progress.request is not None:
        # Nodes say little to who reads the record.
        asked = cdi.asked(progress.request.devices, inventory)
        progress.request = progress.request._replace(devices=asked)
    misfit = cdi.misfit(spec_driver, inventory.driver_version)
    if misfit:
        raise DriverError(misfit, "write it anew with 'oci-gpu-hook cdi generate'")


def _check_vendor_spec(
    progress: Progress, plan: Plan, host: HostRoot, bundle: Bundle, spec_driver: str
) -> None:
    """The same for a spec of another vendor's devices."""
    from oci_gpu_hook.planning import cdivendor
    from oci_gpu_hook.vendors import current
    from oci_gpu_hook.vendors import host as on_host

    if progress.request is None:
        return
    (asked,) = progress.request.vendors
    inventory = current.vendor_inventory(host, asked.flag, asked.file, remember=False)
    found = on_host.look(host, inventory)
    named = asked._replace(devices=cdivendor.asked(asked.devices, found))
    progress.request = progress.request._replace(vendors=(named,))
    targets = [destination for _, destination in bundle.bindings()]
    misfit = cdivendor.misfit(spec_driver, found, plan.operations, targets)
    if misfit:
        anew = f"write it anew with 'oci-gpu-hook cdi generate --vendor {asked.flag}'"
        raise DriverError(misfit, anew)
