# SPDX-License-Identifier: Apache-2.0
"""A start's record: an entry for the journal, in systemd's native protocol, and one line for the counters' spool.

The names of the fields and the message's id must not change.  Of a container's environment only the request is
recorded.  No text is trusted to be short or printable.  No system call here waits or stops a start: where the journal
is missing or full, only the record is lost.
"""

from __future__ import annotations

import posix
from time import process_time_ns

from oci_gpu_hook.errors import LONGEST_LIST, plain
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.operations import Device, LimitMemory, Mount, Relabel
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request.annotations import read_engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.planning.plan import Plan

SOCKET = "/run/systemd/journal/socket"
# 'oci-gpu-hook metrics --write' makes it.  Without it, starts are not counted.
SPOOL = "/run/oci-gpu-hook/starts"
# The lines of a hundred thousand starts.
_LARGEST_SPOOL = 4 << 20

MESSAGE_ID = "e6f0b27d4c9a4b3f8d15a07c62e93b1d"
PREFIX = "OCI_GPU_HOOK_"

# The steps of a start, in order; `start` is the start of the interpreter.
STEPS = ("start", "read", "plan", "apply")
# Why a start is refused, by exit code (errors.py); any other code but 0 is a failure of ours.
REFUSALS = {3: "bundle", 4: "config", 5: "request", 6: "driver"}
# Each has its priority, of syslog(3).  "ignored": the container starts without what it asked for.
OUTCOMES = {"started": 6, "ignored": 5, "refused": 4, "failed": 3}

# Limits, as a datagram must fit into a socket's buffer of some 200 KiB: bytes of a value, values of a list.
_LONGEST, _MAX_DEVICES, _MAX_NOTES = 2000, 64, 8


def send(progress: Progress, exit_code: int, sentence: str) -> None:
    progress.end_step()
    steps = _steps(progress)
    if progress.settings is None or progress.settings.records:
        to_journal(datagram(progress, steps, exit_code, plain(sentence, LONGEST_LIST)))
    to_spool(counted(progress, steps, exit_code))


def _outcome(progress: Progress, steps: dict[str, int], exit_code: int) -> tuple[str, str]:
    """And the reason of a refusal, the step of a failure, else ""."""
    if exit_code:
        return ("refused", REFUSALS[exit_code]) if exit_code in REFUSALS else ("failed", list(steps)[-1])
    return "ignored" if progress.request is None else "started", ""


def _steps(progress: Progress) -> dict[str, int]:
    """Microseconds of each step; the first, the start of bash and of the interpreter, is most of a hook's time."""
    times = (0, progress.began), *zip(progress.ends, progress.ends[1:])
    return dict(zip(STEPS, [(end - begin) // 1000 for begin, end in times]))


def to_journal(datagram: bytes) -> None:
    try:
        syscalls.send_datagram(SOCKET, datagram)
    except OSError:
        pass


def to_spool(line: bytes) -> None:
    """Append one line to the spool.  With O_APPEND, lines of hooks that write at once do not mix."""
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK
    try:
        with closing(posix.open(SPOOL, flags)) as fd:
            status = posix.fstat(fd)
            if is_regular(status) and status.st_size < _LARGEST_SPOOL:
                posix.write(fd, line)
    except OSError:
        pass


def counted(progress: Progress, steps: dict[str, int], exit_code: int) -> bytes:
    """It begins with a newline: a full disk may have cut off the line before."""
    result, why = _outcome(progress, steps, exit_code)
    return f"\n{sum(steps.values())} {result} {why or '-'}\n".encode()


def datagram(progress: Progress, steps: dict[str, int], exit_code: int, sentence: str) -> bytes:
    return b"".join([_field(name, value) for name, value in fields(progress, steps, exit_code, sentence)])


def fields(progress: Progress, steps: dict[str, int], exit_code: int, sentence: str) -> list[tuple[str, str]]:
    """A list is one name several times, so that the journal finds it by each value.  steps: microseconds of each that
    has begun; sentence: why the container does not start, "" if it does.
    """
    result, why = _outcome(progress, steps, exit_code)
    state, plan, request, total = progress.state, progress.plan, progress.request, sum(steps.values())
    (image, namespace, pod, name), _ = read_engine(state)
    asked = request.asked() if request else ()
    operations = plan.given() if plan else ()
    devices = [operation.path for operation in operations if type(operation) is Device]
    limits = [pair for it in operations if type(it) is LimitMemory for pair in it.limits]
    relabelled = [it.path for it in operations if type(it) is Relabel] if plan and plan.label else []
    ours = [
        ("CONTAINER", state.id),
        *zip(("IMAGE", "NAMESPACE", "POD", "NAME"), (image, namespace, pod, name)),
        ("REQUEST", ",".join(asked)),
        ("SOURCE", request.source if request else ""),
        ("CAPABILITIES", ",".join(request.capabilities) if request else ""),
        ("DRIVER", plan.provision.driver_version if plan else ""),
        ("DEVICES", str(len(devices)) if plan else ""),
        *[("DEVICE", path) for path in devices[:_MAX_DEVICES]],
        *[("MEMORY", f"{name} {most}") for name, most in limits[:_MAX_DEVICES]],
        ("FILES", str([type(operation) for operation in operations].count(Mount)) if plan else ""),
        ("LABEL", plan.label if plan else ""),
        *[("RELABELLED", path) for path in relabelled[:_MAX_NOTES]],
        *[(f"{step.upper()}_USEC", str(took)) for step, took in steps.items()],
        *(("TOTAL_USEC", str(total)), ("CPU_USEC", str(process_time_ns() // 1000))),
        ("OUTCOME", result),
        ("EXIT_CODE", str(exit_code)),
        ("REASON" if result == "refused" else "STEP", why),
        ("SENTENCE", sentence),
        *[("NOTE", note) for note in progress.notes[:_MAX_NOTES]],
    ]
    message = {
        "started": f"got {_given(plan)}: {len(devices)} device node{'' if len(devices) == 1 else 's'}, "
        f"in {total / 1000:.1f} ms",
        "ignored": f"starts without what it asked for: {'; '.join(progress.notes)}",
    }.get(result, f"does not start: {sentence}")
    # Engines show twelve characters of their ids; the field CONTAINER has all of them.
    container = f"container {state.id[:12] if len(state.id) == 64 else state.id}" if state.id else "a container"
    container += f" ({namespace}/{pod}/{name})" if pod else ""
    return [
        ("MESSAGE", printable(f"{container} {message}"[:_LONGEST])),
        ("MESSAGE_ID", MESSAGE_ID),
        ("PRIORITY", str(OUTCOMES[result])),
        ("SYSLOG_IDENTIFIER", "oci-gpu-hook"),
        *[(PREFIX + name, value) for name, value in ours if value],
    ]


def _given(plan: Plan | None) -> str:
    """The devices in words: what the node chose in the place of ``any``."""
    # By CDI it can have nodes that are of no device.
    words = [*(plan.request.asked() if plan and plan.request else ())] or ["nothing"]
    words[0] = f"GPU {words[0]}" if words[0][:1].isdecimal() else words[0]
    return ", ".join(["all GPUs" if word == "all" else word for word in words])


def printable(text: str) -> str:
    """Of a character that is not printable journalctl makes "blob data"."""
    return text if text.isprintable() else "".join([letter if letter.isprintable() else "?" for letter in text])


def _field(name: str, value: str) -> bytes:
    """One field.  A value with a newline has its length in front (systemd.io, "Native Journal Protocol")."""
    data = value[:_LONGEST].encode("utf-8", "backslashreplace")[:_LONGEST].decode("utf-8", "ignore").encode()
    if b"\n" not in data:
        return b"%b=%b\n" % (name.encode(), data)
    return b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
