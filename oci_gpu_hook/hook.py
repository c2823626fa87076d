# SPDX-License-Identifier: Apache-2.0
"""One container start, told from top to bottom.  Imports wait until they are needed: each stage pays its own."""

from __future__ import annotations

import posix

from oci_gpu_hook import asking
from oci_gpu_hook.asking import Options, Question
from oci_gpu_hook.errors import DONE, BundleError, ConfigError, RequestError, UsageError
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.report import sentence
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.bundle import read_bundle
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import ExcessError, State, read_state

_STDIN = 0
_READ_BEFORE = b"OCI_GPU_HOOK_STATE"  # what hooks.d/oci-gpu-hook has read of stdin
_SERVED = ("prestart", "createRuntime")
_NOTHING_TO_DO = ("poststart", "poststop")


def main(stage: str, arguments: list[str]) -> int:
    """Catches every error of a start; gives the exit code."""
    progress = Progress()
    try:
        if stage in _NOTHING_TO_DO:
            return DONE  # mounts and nodes go with the mount namespace, rules with the cgroup
        if stage not in _SERVED:
            why = f"stage {stage} runs inside the container, where this hook must not run"
            raise UsageError(why, "the administrator must register it for createRuntime or prestart")
        options = asking.options(arguments)
        try:
            state = progress.state = _read_state()
            start(progress, state, options, stage)
        except ExcessError as err:
            if progress.request is not None or err.may_ask(sources.swarm_variables(options.config)):
                raise
            _not_known(progress, options, err)
    except Exception as err:
        code = sentence.failure(err)
        # At a wrong stage journal and /proc may be the container's own.
        if not isinstance(err, UsageError):
            _tell_runtime(str(err), progress.stderr)
            _record(progress, code, str(err))
        return code
    if progress.request is not None or progress.notes:
        _record(progress, DONE, "")
    return DONE


def _read_state() -> State:
    alarm.begin(BundleError(f"the state on stdin does not end within {alarm.SECONDS} seconds"))
    try:
        return read_state(_STDIN, posix.environ.get(_READ_BEFORE, b""))
    finally:
        alarm.end_by_signal()


def _tell_runtime(said: str, stderr: int = -1) -> None:
    try:
        from oci_gpu_hook.report import crun

        crun.tell(said, stderr)
    except Exception:
        pass


def _record(progress: Progress, code: int, said: str) -> None:
    """Whatever fails there, the start goes on."""
    try:
        from oci_gpu_hook.report import records

        records.send(progress, code, said)
    except Exception as err:
        # A start that failed has had its one sentence.
        if code == DONE:
            sentence.say(f"this start is not recorded: {err}")


def start(progress: Progress, state: State, options: Options, stage: str = "") -> None:
    if state.bundle == "/":
        from oci_gpu_hook.report import crun

        state = progress.state = state._replace(bundle=crun.bundle_of(state))
        if not state.bundle:
            missing = "the runtime says that the bundle is '/', and keeps it nowhere that is known"
            _not_known(progress, options, BundleError(missing))
            return
    bundle = read_bundle(state.bundle)
    if stage == "createRuntime" and options.spec is None and asking.is_served(bundle):
        return
    question = Question(bundle, state, options, remember=True)
    progress.state = question.state
    asks = options.spec is not None or question.may_ask()
    try:
        allowed = progress.settings = question.settings()
    except (ConfigError, RequestError) as err:
        if asks:
            raise
        sentence.say(str(err))
        return
    if not asks and allowed == Settings():
        return
    progress.request, notes = question.request(allowed, options.spec)
    progress.keep(notes)
    if progress.request is not None:
        _carry_out(progress, question, allowed)
        return
    progress.say()
    # What is restored has its labels.
    if allowed.ipc_labels == "all" and not state.is_restored():
        from oci_gpu_hook.host.root import HostRoot
        from oci_gpu_hook.planning import decide

        try:
            # It is never stopped by us, and nothing of this is recorded: the container has asked for nothing.
            if decide.has_selinux(HostRoot(options.host_root)):
                _carry_out(Progress(), question, allowed)
        except Exception as err:
            sentence.failure(err)


def _not_known(progress: Progress, options: Options, missing: BundleError) -> None:
    """A start whose request cannot be read: `missing` if there is a sign of one, else a note and a record."""
    if options.spec is not None or any([key.startswith(sources.CDI_ANNOTATIONS) for key in progress.state.annotations]):
        raise missing
    note = f"whether the container asks for a GPU is not known, and it gets none: {missing.message}"
    progress.keep((note,))
    progress.say()
    _tell_runtime(note)


def _carry_out(progress: Progress, question: Question, allowed: Settings) -> None:
    """Serves `progress.request`; without one, corrects labels."""
    from oci_gpu_hook import apply
    from oci_gpu_hook.container import rootfs
    from oci_gpu_hook.container.process import Process
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.planning.decide import decide

    progress.end_step()
    bundle, state, options = question.bundle, question.state, question.options
    host, process = HostRoot(options.host_root, remember=True), Process(state.pid)
    restores = state.is_restored()
    if restores:
        from oci_gpu_hook.container import restore

        restore.prove(process, host.fd)
        root = rootfs.of_folder(bundle.rootfs())
    else:
        root = rootfs.of_process(bundle.rootfs(), bundle.tmpfs(), process)
        if apply.joined(process):
            host = HostRoot(options.host_root, remember=True)
    asked, id, spec = progress.request, state.id, options.spec
    plan = decide(bundle, asked, allowed, host, root, id=id, process=process, spec=spec, restores=restores)
    progress.plan, progress.request = plan, plan.request
    progress.keep(plan.notes)
    progress.end_step()
    try:
        # The kernel shows a process's descriptors to none that has fewer capabilities (ptrace(2)).
        progress.stderr = posix.open(f"/proc/{posix.getppid()}/fd/2", posix.O_PATH | posix.O_CLOEXEC)
    except OSError:
        pass
    progress.keep(apply.run(plan, host, root.fd, process))
    progress.say()
