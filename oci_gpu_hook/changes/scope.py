# SPDX-License-Identifier: Apache-2.0
"""Set DeviceAllow= of the container's scope in systemd: `tell` sends the calls, `wait` reads the answers later."""

from __future__ import annotations

import posix
from time import monotonic

from oci_gpu_hook.formats import scopeunit
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.kernel import syscalls

# The one that systemctl uses as root: it needs no message bus.
_SOCKET = "/run/systemd/private"
# systemd is usually quick, as it has just made the scope; but a reload with thousands of units can take it seconds.
_SECONDS = 5
_SILENT = f"systemd has not answered in {_SECONDS} s"
# The serials of the first calls.
_TELL, _WITHDRAW = 1, 1 + scopeunit.CALLS


def tell(unit: str, rules: tuple[DeviceRule, ...]) -> int:
    """Ask systemd to allow `rules` as well; gives the connection for `wait`.  OSError if there is no systemd."""
    fd = syscalls.connect(_SOCKET, _SECONDS)
    _send(fd, scopeunit.authentication(posix.geteuid()) + scopeunit.calls(_TELL, unit, scopeunit.entries(rules)))
    return fd


def wait(fd: int) -> None:
    """OSError if systemd does not do what `tell` asked for."""
    _receive(fd, _TELL)


def withdraw(fd: int, unit: str, allowed: tuple[tuple[str, str], ...]) -> None:
    """Let the unit allow `allowed` again, as before `tell`, and nothing else."""
    _send(fd, scopeunit.calls(_WITHDRAW, unit, allowed, only=True))
    _receive(fd, _WITHDRAW)


def _send(fd: int, data: bytes) -> None:
    if posix.write(fd, data) != len(data):
        raise OSError(f"systemd has not taken the message in {_SECONDS} s")


def _receive(fd: int, serial: int) -> None:
    """Read until the calls from `serial` on are answered.  systemd also sends its signals to every connection."""
    data, refusal = b"", None
    until = monotonic() + _SECONDS
    while True:
        try:
            piece = posix.read(fd, 1 << 16)
        except BlockingIOError as err:
            raise OSError(_SILENT) from err
        if monotonic() > until:
            raise OSError(_SILENT)
        if not piece:
            raise OSError("systemd has closed the connection")
        data += piece
        if data.startswith(b"OK "):
            # The end of the authentication, which comes before the first message.
            _, end, rest = data.partition(b"\r\n")
            if not end:
                continue
            data = rest
        while True:
            try:
                message, data = scopeunit.first_answer(data)
            except (ValueError, IndexError) as err:
                raise OSError(f"systemd's answer cannot be read: {err}") from err
            if message is None:
                break
            answered, said = message
            if answered == serial and said is not None:
                refusal = OSError(f"systemd refuses: {said}")
            if answered == serial + scopeunit.CALLS - 1:
                if refusal:
                    raise refusal
                return
