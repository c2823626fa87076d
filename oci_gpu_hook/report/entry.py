# SPDX-License-Identifier: Apache-2.0
"""One start as an entry for the journal, in systemd's native protocol, and as one line for the counters.  Pure.

The names of the fields and the message's id must not change: people's dashboards use them.  Of a container's
environment only the request is recorded.  No text is trusted to be short or printable.
"""

from __future__ import annotations

from oci_gpu_hook.operations import Device, Mount, Relabel
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.parse import Request

MESSAGE_ID = "e6f0b27d4c9a4b3f8d15a07c62e93b1d"
PREFIX = "OCI_GPU_HOOK_"

# The steps of a start, in order; `start` is the start of the interpreter.
STEPS = ("start", "read", "plan", "apply")
# Why a start is refused, by exit code (errors.py); any other code but 0 is a failure of ours.
REFUSALS = {3: "bundle", 4: "config", 5: "request", 6: "driver"}
OUTCOMES = ("started", "ignored", "refused", "failed")

# syslog(3): info, notice, warning, err.
_PRIORITIES = {"started": 6, "ignored": 5, "refused": 4, "failed": 3}
# Limits, as a datagram must fit into a socket's buffer of some 200 KiB: bytes of a value, values of a list.
_LONGEST = 2000
_MOST_DEVICES = 64
_MOST_NOTES = 8


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


def outcome(entry: Entry) -> str:
    """One of `OUTCOMES`; ``ignored``: the container starts without what it asked for."""
    if entry.exit_code:
        return "refused" if entry.exit_code in REFUSALS else "failed"
    return "ignored" if entry.request is None else "started"


def why(entry: Entry) -> str:
    """The reason of a refusal, the step of a failure, else ""."""
    if not entry.exit_code:
        return ""
    return REFUSALS.get(entry.exit_code) or list(entry.steps)[-1]


def counted(entry: Entry) -> bytes:
    """One line for the counters.

    It begins with a newline, so that it stays whole after a line that a full disk has cut off.
    """
    took = sum(entry.steps.values())
    return f"\n{took} {outcome(entry)} {why(entry) or '-'}\n".encode()


def datagram(entry: Entry) -> bytes:
    """The entry in the journal's native protocol: see `fields`."""
    found = fields(entry)
    text = "".join([f"{name}={value}\n" for name, value in found])
    # Nearly always the values are short and have no newline.  Then they are encoded together, which is faster.
    if len(text) <= _LONGEST and text.count("\n") == len(found):
        return text.encode("utf-8", "backslashreplace")
    return b"".join([_field(name, value) for name, value in found])


def fields(entry: Entry) -> list[tuple[str, str]]:
    """Names and values in order.  A list is one name several times, so that the journal finds it by each value."""
    result, reason = outcome(entry), why(entry)
    plan, request = entry.plan, entry.request
    operations = plan.given() if plan else ()
    kinds = [type(operation) for operation in operations]
    devices = [operation.path for operation in operations if type(operation) is Device]
    relabelled = (
        [operation.path for operation in operations if type(operation) is Relabel] if plan and plan.label else []
    )
    total = sum(entry.steps.values())
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
        ("FILES", str(kinds.count(Mount)) if plan else ""),
        ("LABEL", plan.label if plan else ""),
        *[("RELABELLED", path) for path in relabelled[:_MOST_NOTES]],
        *[(f"{step.upper()}_USEC", str(took)) for step, took in entry.steps.items()],
        ("TOTAL_USEC", str(total)),
        ("CPU_USEC", str(entry.cpu)),
        ("OUTCOME", result),
        ("EXIT_CODE", str(entry.exit_code)),
        ("REASON" if result == "refused" else "STEP", reason),
        ("SENTENCE", entry.sentence),
        *[("NOTE", note) for note in entry.notes[:_MOST_NOTES]],
    ]
    return [
        ("MESSAGE", _message(entry, result, len(devices), total)),
        ("MESSAGE_ID", MESSAGE_ID),
        ("PRIORITY", str(_PRIORITIES[result])),
        ("SYSLOG_IDENTIFIER", "oci-gpu-hook"),
        *[(PREFIX + name, value) for name, value in ours if value],
    ]


def printable(text: str) -> str:
    """The text with a question mark for each character that is not printable."""
    return "".join([letter if letter.isprintable() else "?" for letter in text])


def _message(entry: Entry, result: str, nodes: int, total: int) -> str:
    name = entry.container
    if len(name) == 64:
        # Engines show twelve characters of their ids; the field CONTAINER has all of them.
        name = name[:12]
    name = f"container {name}" if name else "a container"
    if result == "ignored":
        sentence = f"{name} starts without what it asked for: {'; '.join(entry.notes)}"
    elif result != "started":
        sentence = f"{name} does not start: {entry.sentence}"
    else:
        devices = ", ".join(entry.request.asked()) if entry.request else ""
        took = f"{total / 1000:.1f}"
        sentence = f"{name} got {devices}: {nodes} device nodes, in {took} ms"
    if sentence.isprintable():
        return sentence
    # journalctl shows a text with one control character in it as "blob data".
    return printable(sentence[:_LONGEST])


def _field(name: str, value: str) -> bytes:
    """One field.  A value with a newline has its length in front (systemd.io, "Native Journal Protocol")."""
    data = value[:_LONGEST].encode("utf-8", "backslashreplace")
    if len(data) > _LONGEST:
        data = data[:_LONGEST].decode("utf-8", "ignore").encode()
    if b"\n" not in data:
        return b"%b=%b\n" % (name.encode(), data)
    return b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
