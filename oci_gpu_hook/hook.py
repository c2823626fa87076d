# SPDX-License-Identifier: Apache-2.0
"""One container start, told from top to bottom.

Imports wait until they are needed: each stage pays for its own, and a container that asks for no GPU pays for almost
nothing.  `decision` only reads; what is done to the container is done by `apply`.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import oci, report, request, sources
from oci_gpu_hook.course import Course
from oci_gpu_hook.errors import (
    DONE,
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
    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.plan import Plan

SETTINGS = "/etc/oci-gpu-hook.conf"

_STDIN = 0
# What hooks.d/oci-gpu-hook has read of stdin.
_READ_BY_DOOR = b"OCI_GPU_HOOK_STATE"
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
    from oci_gpu_hook import decision

    try:
        posix.stat(decision.SELINUX)
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
    from oci_gpu_hook import apply, decision, rootfs
    from oci_gpu_hook.host import answers
    from oci_gpu_hook.host.root import HostRoot

    course.end_step()
    host = HostRoot(options.host_root)
    root_fd = rootfs.open_root(oci.rootfs(bundle), state.pid)
    plan, have = decision.decide(
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


def settings_file(path: str | None) -> tuple[str, bool]:
    """The administrator's file, and whether it may be absent: only the default one may."""
    return (SETTINGS, True) if path is None else (path, False)
