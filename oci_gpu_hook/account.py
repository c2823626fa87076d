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
    from collections.abc import Iterable

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
    return b"".join([_field(name, value) for name, value in fields(account)])


def fields(account: Account) -> Iterable[tuple[str, str]]:
    """Names and values in order; a list is a name that is given again and again, and can be searched by each value."""
    came = outcome(account)
    yield "MESSAGE", _message(account, came)
    yield "MESSAGE_ID", MESSAGE_ID
    yield "PRIORITY", str(_PRIORITIES[came])
    yield "SYSLOG_IDENTIFIER", "oci-gpu-hook"
    for name, value in (*_asked(account), *_done(account), *_ended(account, came)):
        if value:
            yield f"{PREFIX}{name}", value


def _asked(account: Account) -> Iterable[tuple[str, str]]:
    yield "CONTAINER", account.container
    yield "IMAGE", account.image
    yield "NAMESPACE", account.namespace
    request = account.request
    if request is not None:
        yield "REQUEST", ",".join(request.devices)
        yield "SOURCE", request.source
        yield "CAPABILITIES", ",".join(request.capabilities)


def _done(account: Account) -> Iterable[tuple[str, str]]:
    plan = account.plan
    if plan is None:
        return
    operations = plan.operations
    devices = [operation.path for operation in operations if isinstance(operation, Device)]
    yield "DRIVER", plan.driver_version
    yield "DEVICES", str(len(devices))
    for path in devices[:_MOST_DEVICES]:
        yield "DEVICE", path
    yield "FILES", str(len([1 for operation in operations if isinstance(operation, Mount)]))
    yield "LABEL", plan.label
    relabelled = [operation.path for operation in operations if isinstance(operation, Relabel)]
    for path in relabelled[:_MOST_NOTES]:
        yield "RELABELLED", path


def _ended(account: Account, came: str) -> Iterable[tuple[str, str]]:
    for step, took in account.steps.items():
        yield f"{step.upper()}_USEC", str(took)
    yield "TOTAL_USEC", str(sum(account.steps.values()))
    yield "CPU_USEC", str(account.cpu)
    yield "OUTCOME", came
    yield "EXIT_CODE", str(account.exit_code)
    yield "REASON" if came == "refused" else "STEP", why(account)
    yield "SENTENCE", account.sentence
    for note in account.notes[:_MOST_NOTES]:
        yield "NOTE", note


def _message(account: Account, came: str) -> str:
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
        plan, request = account.plan, account.request
        nodes = [] if plan is None else [o.path for o in plan.operations if isinstance(o, Device)]
        devices = "" if request is None else ", ".join(request.devices)
        took = sum(account.steps.values()) / 1000
        sentence = f"{who} got {devices}: {len(nodes)} device nodes, in {took:.1f} ms"
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
