# SPDX-License-Identifier: Apache-2.0
"""The container's systemd scope: found, and systemd told of its devices.

`find` reads, the others write.  systemd does the work while we do ours: `tell` asks, and `answer` looks what came of
it.  The socket is the one that systemctl uses as root: it needs no message bus.  Must not touch the cgroup itself, and
must not decide which devices.
"""

from __future__ import annotations

import posix
from time import monotonic

from oci_gpu_hook import dbus, linux, systemd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.oci import DeviceRule
    from oci_gpu_hook.systemd import Entry, ScopeUnit

# Where systemd writes a unit that it was given by a program: both are of this boot, and of the system's own systemd.
_TRANSIENT = "/run/systemd/transient"
_SOCKET = "/run/systemd/private"

_SUFFIX = ".scope"
_MOST_BYTES = 1 << 20
# The runtime has just waited for systemd to make the scope; a node with thousands of units can take seconds to reload.
_SECONDS = 5
_SILENT = f"systemd has not answered in {_SECONDS} s"

_TELL, _WITHDRAW = 1, 1 + systemd.CALLS  # serials


def find(directory: str) -> ScopeUnit | None:
    """The scope whose cgroup is `directory`; None where the system's systemd has none, or does not restrict it."""
    name = directory.rpartition("/")[2]
    if name.startswith("_"):
        # systemd's escape: of a unit named as a file of the kernel's could be, such as memory.scope.
        name = name[1:]
    if not name.endswith(_SUFFIX):
        return None
    unit = _text(f"{_TRANSIENT}/{name}")
    if not unit:
        return None
    changes = [_text(f"{_TRANSIENT}/{name}.d/{file}") for file in systemd.DROP_INS]
    return systemd.scope_unit(name, "\n".join([unit, *changes]))


def _text(path: str) -> str:
    """The text of a file; "" where it cannot be read."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return posix.read(fd, _MOST_BYTES).decode(errors="replace")
    finally:
        posix.close(fd)


def tell(unit: str, rules: Iterable[DeviceRule]) -> int:
    """Ask systemd to allow `rules` too; gives the connection, for `answer`.  OSError where there is no systemd."""
    fd = linux.connect(_SOCKET, _SECONDS)
    try:
        calls = systemd.allow_more(_TELL, unit, systemd.entries(rules))
        _send(fd, dbus.authentication(posix.geteuid()) + calls)
    except BaseException:
        posix.close(fd)
        raise
    return fd


def answer(fd: int) -> None:
    """Wait until systemd has done what `tell` asked for; OSError where it has not."""
    _receive(fd, _TELL)


def withdraw(fd: int, unit: str, allowed: Iterable[Entry]) -> None:
    """Put back what the unit allowed before."""
    _send(fd, systemd.allow_only(_WITHDRAW, unit, allowed))
    _receive(fd, _WITHDRAW)


def _send(fd: int, data: bytes) -> None:
    if posix.write(fd, data) != len(data):
        raise OSError(f"systemd has not taken the message in {_SECONDS} s")


def _receive(fd: int, serial: int) -> None:
    """Read until the calls from `serial` on are answered; systemd sends its signals to every connection too."""
    data = b""
    refusal = None
    until = monotonic() + _SECONDS
    while True:
        data += _read(fd)
        if monotonic() > until:
            raise OSError(_SILENT)
        if data.startswith(b"OK "):
            # The end of the authentication, which comes before the first message.
            _, end, rest = data.partition(b"\r\n")
            data = rest if end else data
        while True:
            message, data = _first(data)
            if message is None:
                break
            if message.reply_serial == serial and message.type == dbus.ERROR:
                refusal = OSError(f"systemd refuses: {message.text or message.error_name}")
            if message.reply_serial == serial + systemd.CALLS - 1:
                if refusal:
                    raise refusal
                return


def _read(fd: int) -> bytes:
    try:
        data = posix.read(fd, 1 << 16)
    except OSError as err:
        if err.errno == linux.EAGAIN:
            raise OSError(_SILENT) from err
        raise
    if not data:
        raise OSError("systemd has closed the connection")
    return data


def _first(data: bytes) -> tuple[dbus.Answer | None, bytes]:
    if data.startswith(b"OK "):
        return None, data
    try:
        return dbus.first_answer(data)
    except (ValueError, IndexError) as err:
        raise OSError(f"systemd's answer cannot be read: {err}") from err
