# SPDX-License-Identifier: Apache-2.0
"""What one start came to: as fields for the journal, in systemd's native protocol, and as one line for the counters.

Field names and the message's id are what other people's dashboards are built on: they do not change.  Pure.  Must not
tell anything of a container's environment but what it asked of us, and must not trust a text to be short or printable.
"""

from __future__ import annotations

from oci_gpu_hook.operations import Device, Mount, Relabel
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.plan import Plan
    from oci_gpu_hook.request import Request

MESSAGE_ID = "e6f0b27d4c9a4b3f8d15a07c62e93b1d"
PREFIX = "OCI_GPU_HOOK_"

# What a start goes through, in order; `start` is the interpreter's.
STEPS = ("start", "read", "plan", "apply")
# Why a start is refused, by exit code (errors.py); any other code but 0 is a failure of ours.
REFUSALS = {3: "bundle", 4: "config", 5: "request", 6: "driver"}
OUTCOMES = ("started", "ignored", "refused", "failed")

# syslog(3): info, notice, warning, err.
_PRIORITIES = {"started": 6, "ignored": 5, "refused": 4, "failed": 3}
# A datagram must fit into a socket's buffer, of some 200 KiB: bytes of a value, and values of a list.
_LONGEST = 2000
_MOST_DEVICES = 64
_MOST_NOTES = 8


class Account(NamedTuple):
    """One start.

    request: None where none was read, or nothing of it is allowed; steps: microseconds of each that was begun; cpu: of
    the whole process; sentence: why it does not start, "" where it does.
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


def outcome(account: Account) -> str:
    """One of `OUTCOMES`; ``ignored`` is a container that starts without the GPUs that it asked for."""
    if account.exit_code:
        return "refused" if account.exit_code in REFUSALS else "failed"
    return "ignored" if account.request is None else "started"


def why(account: Account) -> str:
    """The reason of a refusal, the step of a failure, "" of neither."""
    if not account.exit_code:
        return ""
    return REFUSALS.get(account.exit_code) or list(account.steps)[-1]


def counted(account: Account) -> bytes:
    """One line for the counters.

    The newline goes first: after a line that a full disk has cut off, the next one is whole.
    """
    took = sum(account.steps.values())
    return f"\n{took} {outcome(account)} {why(account) or '-'}\n".encode()


def datagram(account: Account) -> bytes:
    """The journal's native protocol: see `fields`."""
    found = fields(account)
    text = "".join([f"{name}={value}\n" for name, value in found])
    # A line each, and short, as nearly always: encoded at once, which is most of the work.
    if len(text) <= _LONGEST and text.count("\n") == len(found):
        return text.encode("utf-8", "backslashreplace")
    return b"".join([_field(name, value) for name, value in found])


def fields(account: Account) -> list[tuple[str, str]]:
    """Names and values in order; a list is a name that is given again and again, and can be searched by each value."""
    came, because = outcome(account), why(account)
    plan, request = account.plan, account.request
    operations = plan.operations if plan else ()
    kinds = [type(operation) for operation in operations]
    devices = [operation.path for operation in operations if type(operation) is Device]
    relabelled = (
        [operation.path for operation in operations if type(operation) is Relabel]
        if plan and plan.label
        else []
    )
    total = sum(account.steps.values())
    ours = [
        ("CONTAINER", account.container),
        ("IMAGE", account.image),
        ("NAMESPACE", account.namespace),
        ("REQUEST", ",".join(request.devices) if request else ""),
        ("SOURCE", request.source if request else ""),
        ("CAPABILITIES", ",".join(request.capabilities) if request else ""),
        ("DRIVER", plan.driver_version if plan else ""),
        ("DEVICES", str(len(devices)) if plan else ""),
        *[("DEVICE", path) for path in devices[:_MOST_DEVICES]],
        ("FILES", str(kinds.count(Mount)) if plan else ""),
        ("LABEL", plan.label if plan else ""),
        *[("RELABELLED", path) for path in relabelled[:_MOST_NOTES]],
        *[(f"{step.upper()}_USEC", str(took)) for step, took in account.steps.items()],
        ("TOTAL_USEC", str(total)),
        ("CPU_USEC", str(account.cpu)),
        ("OUTCOME", came),
        ("EXIT_CODE", str(account.exit_code)),
        ("REASON" if came == "refused" else "STEP", because),
        ("SENTENCE", account.sentence),
        *[("NOTE", note) for note in account.notes[:_MOST_NOTES]],
    ]
    return [
        ("MESSAGE", _message(account, came, len(devices), total)),
        ("MESSAGE_ID", MESSAGE_ID),
        ("PRIORITY", str(_PRIORITIES[came])),
        ("SYSLOG_IDENTIFIER", "oci-gpu-hook"),
        *[(PREFIX + name, value) for name, value in ours if value],
    ]


def _message(account: Account, came: str, nodes: int, total: int) -> str:
    who = account.container
    if len(who) == 64:
        # Engines show twelve characters of their ids; the field has them all.
        who = who[:12]
    who = f"container {who}" if who else "a container"
    if came == "ignored":
        sentence = f"{who} starts without the GPUs that it asked for: {'; '.join(account.notes)}"
    elif came != "started":
        sentence = f"{who} does not start: {account.sentence}"
    else:
        devices = ", ".join(account.request.devices) if account.request else ""
        # No float: to write one brings pages of the interpreter in that nothing else of a start needs.
        took = f"{total // 1000}.{total // 100 % 10}"
        sentence = f"{who} got {devices}: {nodes} device nodes, in {took} ms"
    if sentence.isprintable():
        return sentence
    # journalctl shows a text with one control character in it as "blob data".
    return "".join([letter if letter.isprintable() else "?" for letter in sentence[:_LONGEST]])


def _field(name: str, value: str) -> bytes:
    """A value with a newline has its length before it (systemd.io, "Native Journal Protocol")."""
    data = value[:_LONGEST].encode("utf-8", "backslashreplace")
    if len(data) > _LONGEST:
        data = data[:_LONGEST].decode("utf-8", "ignore").encode()
    if b"\n" not in data:
        return b"%b=%b\n" % (name.encode(), data)
    return b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
