# SPDX-License-Identifier: Apache-2.0
"""One container start, told from top to bottom.

Imports wait until they are needed: each stage pays for its own, and a container that asks for no GPU pays for almost
nothing.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.asking import Question, SpecStart
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
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.report import sentence
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request import settings, sources
from oci_gpu_hook.request.bundle import read_bundle
from oci_gpu_hook.request.state import ENGINE_HINT, ExcessError, read_state
from oci_gpu_hook.request.words import CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.bundle import Bundle
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.request.settings import Settings
    from oci_gpu_hook.request.state import State

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

    @property
    def spec(self) -> SpecStart | None:
        """The CDI spec of ours that has started the hook; None if none has."""
        if self.cdi is None and self.cdi_vendor is None:
            return None
        return SpecStart(tuple(self.cdi.split(",")) if self.cdi else None, self.cdi_vendor)


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
        try:
            progress.state = _state()
            progress.annotations = progress.state.annotations
            start(progress, progress.state, options, stage)
        except ExcessError as err:
            if options.spec is not None or _may_ask(progress, options, err):
                raise
            return DONE
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


def _state() -> State:
    """The state on stdin, which is not waited for without end."""
    alarm.begin(_late())
    try:
        return read_state(_STDIN, posix.environ.get(_READ_BEFORE, b""))
    finally:
        alarm.end_by_signal()


def _may_ask(progress: Progress, options: Options, err: ExcessError) -> bool:
    """Whether anything in the inputs may ask, one of which has more than is read."""
    from oci_gpu_hook.request import mentions

    alarm.begin(_late())
    try:
        return mentions.are_in_start(_STDIN, err, progress.state, options.config)
    finally:
        alarm.end_by_signal()


def _late() -> BundleError:
    return BundleError(f"the state on stdin does not end within {alarm.SECONDS} seconds", ENGINE_HINT)


def _tell_runtime(said: str) -> None:
    """Tell the readers of a runtime that does not show what its hooks say.  Whatever goes wrong, the code stays."""
    try:
        from oci_gpu_hook.report import runtimelog

        runtimelog.tell(f"oci-gpu-hook: {plain(said, LONGEST_LIST)}")
    except Exception:
        pass


def _record(progress: Progress, code: int, said: str) -> None:
    """Record the start in the journal.  Whatever goes wrong with that, the start goes on."""
    try:
        from oci_gpu_hook.report import records

        records.send(progress, code, said)
    except Exception as err:
        # A start that failed has had its one sentence.
        if code == DONE:
            sentence.say(f"this start is not recorded: {err}")


def start(progress: Progress, state: State, options: Options, stage: str = "") -> None:
    """What one container start does."""
    if state.bundle == "/":
        state = progress.state = _with_bundle(state)
        if not state.bundle:
            _without_bundle(progress, state, options)
            return
    bundle = read_bundle(state.bundle)
    if stage == "createRuntime" and options.spec is None and _is_served(bundle):
        return
    question = Question(bundle, state.id, state.annotations, options.config, options.host_root, remember=True)
    progress.annotations = question.inputs.annotations
    asks = options.spec is not None or question.may_ask()
    if not asks and not settings.are_there(options.config):
        return
    allowed = progress.settings = _settings(question, asks)
    if allowed is None:
        return
    request, notes = question.request(allowed, options.spec)
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
    """The state with the bundle that crun has not told; with "" where it is not found."""
    from oci_gpu_hook.request import crun

    return state._replace(bundle=crun.find(state)) if crun.is_lost(state) else state


def _without_bundle(progress: Progress, state: State, options: Options) -> None:
    """A start of which nobody knows what it asks for: BundleError where there is a sign that it asks.

    Else it goes on, for a container that asks for nothing is never stopped by us; but it is told and recorded.
    """
    missing = "the runtime says that the bundle is '/', and keeps it nowhere that is known"
    named = [key for key in state.annotations if key.startswith(sources.CDI_ANNOTATIONS)]
    if named or options.spec is not None:
        raise BundleError(missing, ENGINE_HINT)
    note = f"whether the container asks for a GPU is not known, and it gets none: {missing}"
    progress.keep((note,))
    progress.say()
    _tell_runtime(note)


def _settings(question: Question, asks: bool) -> Settings | None:
    """The settings; None where they cannot be read and the container asks for nothing that we know of."""
    try:
        return question.settings()
    except (ConfigError, RequestError) as err:
        if asks:
            raise
        sentence.say(str(err))
        return None


def _carry_out(
    progress: Progress, state: State, bundle: Bundle, request: Request | None, allowed: Settings, options: Options
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
    plan, inventory = decide(bundle, request, allowed, host, root, id=state.id, process=process, remember=True)
    progress.plan = plan
    progress.keep(plan.notes)
    if inventory is not None and options.cdi is not None:
        _check_spec(progress, inventory, options.cdi_driver)
    if options.cdi_vendor is not None:
        _check_vendor_spec(progress, plan, host, bundle, options.cdi_driver)
    if options.spec is not None:
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


def _check_vendor_spec(progress: Progress, plan: Plan, host: HostRoot, bundle: Bundle, spec_driver: str) -> None:
    """The same for a spec of another vendor's devices."""
    from oci_gpu_hook.planning import cdivendor
    from oci_gpu_hook.vendors import current
    from oci_gpu_hook.vendors import vendorhost as on_host

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
