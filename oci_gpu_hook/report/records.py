# SPDX-License-Identifier: Apache-2.0
"""A start's record: an entry for the journal, in systemd's native protocol, and one line for the counters' spool.

The names of the fields and the message's id must not change: people's dashboards use them.  Of a container's
environment only the request is recorded.  No text is trusted to be short or printable.

No system call here waits or stops a start: where the journal is missing or full, only the record is lost.
"""

from __future__ import annotations

import posix
from time import process_time_ns, time_ns

from oci_gpu_hook.errors import LONGEST_LIST, plain
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.operations import Device, Mount, Relabel
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.annotations import said
from oci_gpu_hook.request.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.report.progress import Progress
    from oci_gpu_hook.request.parse import Request

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
_LONGEST = 2000
_MOST_DEVICES = 64
_MOST_NOTES = 8

# When the entry script started Python, in seconds since 1970: the interpreter's start is most of a hook's time.
_BEGAN = b"OCI_GPU_HOOK_BEGAN"


class Entry(NamedTuple):
    """One start.

    request: None if none was read, or nothing of it is allowed; steps: microseconds of each step that has begun;
    cpu: CPU time of the whole process, in microseconds; sentence: why the container does not start, "" if it does.
    """

    container: str
    image: str
    namespace: str
    request: Request | None
    plan: Plan | None
    notes: tuple[str, ...]
    steps: dict[str, int]
    cpu: int
    exit_code: int
    sentence: str

    def outcome(self) -> str:
        """One of `OUTCOMES`."""
        if self.exit_code:
            return "refused" if self.exit_code in REFUSALS else "failed"
        return "ignored" if self.request is None else "started"

    def why(self) -> str:
        """The reason of a refusal, the step of a failure, else ""."""
        return (REFUSALS.get(self.exit_code) or list(self.steps)[-1]) if self.exit_code else ""


def send(progress: Progress, exit_code: int, sentence: str) -> None:
    """Send the record of a start; the current step ends here."""
    progress.end_step()
    state = progress.state or State()
    known = said(state)
    entry = Entry(
        container=state.id,
        image=known.image,
        namespace=known.namespace,
        request=progress.request,
        plan=progress.plan,
        notes=tuple(progress.notes),
        steps=_steps(progress.ends),
        cpu=process_time_ns() // 1000,
        exit_code=exit_code,
        sentence=plain(sentence, LONGEST_LIST),
    )
    if progress.settings is None or progress.settings.records:
        to_journal(datagram(entry))
    to_spool(counted(entry))


def _steps(ends: list[int]) -> dict[str, int]:
    """Microseconds of each step.

    The first step is the interpreter's start: the time since the entry script started it, less all other steps.
    """
    took = [(end - begin) // 1000 for begin, end in zip(ends, ends[1:])]
    try:
        began = int(posix.environ.get(_BEGAN, b"").replace(b".", b""))
        first = time_ns() // 1000 - began - sum(took)
    except ValueError:
        # Bash before 5.0 has no EPOCHREALTIME.
        first = 0
    return dict(zip(STEPS, (max(first, 0), *took)))


def to_journal(datagram: bytes) -> None:
    """Send one entry to the journal."""
    try:
        syscalls.send_datagram(SOCKET, datagram)
    except OSError:
        pass


def to_spool(line: bytes) -> None:
    """Append one line to the spool.  With O_APPEND, lines of hooks that write at once do not mix."""
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK
    try:
        fd = posix.open(SPOOL, flags)
    except OSError:
        return
    try:
        status = posix.fstat(fd)
        if is_regular(status) and status.st_size < _LARGEST_SPOOL:
            posix.write(fd, line)
    except OSError:
        pass
    finally:
        posix.close(fd)


def counted(entry: Entry) -> bytes:
    """One line for the counters.

    It begins with a newline, so that it stays whole after a line that a full disk has cut off.
    """
    return f"\n{sum(entry.steps.values())} {entry.outcome()} {entry.why() or '-'}\n".encode()


def datagram(entry: Entry) -> bytes:
    """The entry in the journal's native protocol: see `fields`."""
    return b"".join([_field(name, value) for name, value in fields(entry)])


def fields(entry: Entry) -> list[tuple[str, str]]:
    """Names and values in order.  A list is one name several times, so that the journal finds it by each value."""
    result, plan, request, total = entry.outcome(), entry.plan, entry.request, sum(entry.steps.values())
    operations = plan.given() if plan else ()
    devices = [operation.path for operation in operations if type(operation) is Device]
    relabelled = [it.path for it in operations if type(it) is Relabel] if plan and plan.label else []
    ours = [
        ("CONTAINER", entry.container),
        ("IMAGE", entry.image),
        ("NAMESPACE", entry.namespace),
        ("REQUEST", ",".join(request.asked()) if request else ""),
        ("SOURCE", request.source if request else ""),
        ("CAPABILITIES", ",".join(request.capabilities) if request else ""),
        ("DRIVER", plan.driver_version if plan else ""),
        ("DEVICES", str(len(devices)) if plan else ""),
        *[("DEVICE", path) for path in devices[:_MOST_DEVICES]],
        ("FILES", str([type(operation) for operation in operations].count(Mount)) if plan else ""),
        ("LABEL", plan.label if plan else ""),
        *[("RELABELLED", path) for path in relabelled[:_MOST_NOTES]],
        *[(f"{step.upper()}_USEC", str(took)) for step, took in entry.steps.items()],
        ("TOTAL_USEC", str(total)),
        ("CPU_USEC", str(entry.cpu)),
        ("OUTCOME", result),
        ("EXIT_CODE", str(entry.exit_code)),
        ("REASON" if result == "refused" else "STEP", entry.why()),
        ("SENTENCE", entry.sentence),
        *[("NOTE", note) for note in entry.notes[:_MOST_NOTES]],
    ]
    return [
        ("MESSAGE", _message(entry, result, len(devices), total)),
        ("MESSAGE_ID", MESSAGE_ID),
        ("PRIORITY", str(OUTCOMES[result])),
        ("SYSLOG_IDENTIFIER", "oci-gpu-hook"),
        *[(PREFIX + name, value) for name, value in ours if value],
    ]


def printable(text: str) -> str:
    """The text with a question mark for each character that is not printable."""
    return "".join([letter if letter.isprintable() else "?" for letter in text])


def _message(entry: Entry, result: str, nodes: int, total: int) -> str:
    # Engines show twelve characters of their ids; the field CONTAINER has all of them.
    id = entry.container[:12] if len(entry.container) == 64 else entry.container
    name = f"container {id}" if id else "a container"
    if result == "ignored":
        sentence = f"{name} starts without what it asked for: {'; '.join(entry.notes)}"
    elif result != "started":
        sentence = f"{name} does not start: {entry.sentence}"
    else:
        devices = ", ".join(entry.request.asked()) if entry.request else ""
        sentence = f"{name} got {devices}: {nodes} device nodes, in {total / 1000:.1f} ms"
    # journalctl shows a text with one control character in it as "blob data".
    return printable(sentence[:_LONGEST])


def _field(name: str, value: str) -> bytes:
    """One field.  A value with a newline has its length in front (systemd.io, "Native Journal Protocol")."""
    data = value[:_LONGEST].encode("utf-8", "backslashreplace")[:_LONGEST].decode("utf-8", "ignore").encode()
    if b"\n" not in data:
        return b"%b=%b\n" % (name.encode(), data)
    return b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
