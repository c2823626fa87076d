# SPDX-License-Identifier: Apache-2.0
"""Find the systemd scope that a container is in.  Reads only: `changes.scope` sets its devices."""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.formats.scopeunit import ScopeUnit

# Where systemd writes a unit that a program gave it.
_TRANSIENT = "/run/systemd/transient"
_SUFFIX = ".scope"
_MOST_BYTES = 1 << 20


def find(directory: str) -> ScopeUnit | None:
    """The scope whose cgroup is `directory`; None if there is none that systemd restricts the devices of."""
    name = directory.rpartition("/")[2]
    if name.startswith("_"):
        # systemd's escape for a unit that is named as a file of the kernel's could be, such as memory.scope.
        name = name[1:]
    if not name.endswith(_SUFFIX):
        return None
    from oci_gpu_hook.formats import scopeunit

    unit = _text(f"{_TRANSIENT}/{name}")
    if not unit:
        return None
    drop_ins = [_text(f"{_TRANSIENT}/{name}.d/{file}") for file in scopeunit.DROP_INS]
    return scopeunit.parse(name, "\n".join([unit, *drop_ins]))


def _text(path: str) -> str:
    """The text of a file; "" if it cannot be read."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return posix.read(fd, _MOST_BYTES).decode(errors="replace")
    finally:
        posix.close(fd)
