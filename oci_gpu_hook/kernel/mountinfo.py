# SPDX-License-Identifier: Apache-2.0
"""The mounts of one mount namespace, as /proc/PID/mountinfo lists them (proc_pid_mountinfo(5)).  Pure.

A node has thousands of mounts, of which a few count: the text is searched as it comes, in pieces of whole lines
(`procfile`).  The kernel takes some microseconds to write each line, so a start looks once.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class MountLine(NamedTuple):
    """device: its filesystem's, ``major:minor``; root: the folder or file of it that the mount shows at `point`; tags:
    the optional fields, such as ``shared:42``; type, options: those of the filesystem.
    """

    id: int
    device: str
    root: str
    point: str
    tags: tuple[str, ...]
    type: str
    options: str


def mount(pieces: Iterable[bytes], id: int) -> MountLine | None:
    """id: as statx(2) gives it."""
    # The kernel writes a newline inside a field as \\012, and a space as \\040.
    start = b"%d " % id
    for text in pieces:
        at = 0 if text.startswith(start) else text.find(b"\n" + start) + 1
        if at or text.startswith(start):
            return parsed(text[at:].partition(b"\n")[0])
    return None


def mounts(pieces: Iterable[bytes]) -> Iterator[MountLine]:
    """All mounts: a start reads them only if something is not where it is on most hosts."""
    for text in pieces:
        yield from filter(None, map(parsed, text.split(b"\n")))


def mounted(pieces: Iterable[bytes], devices: Iterable[str], but_below: str = "") -> set[str]:
    """Those of `devices`, ``major:minor``, of which anything is mounted but at or below `but_below`, "" for none."""
    missing = {device: b" %b " % device.encode() for device in devices}
    found: set[str] = set()
    for text in pieces if missing else ():
        for device, number in [*missing.items()]:
            lines = [line for line in text.split(b"\n") if number in line] if number in text else []
            if any([_is_of(line, device, but_below) for line in lines]):
                found.add(device)
                del missing[device]
        if not missing:
            break
    return found


def _is_of(line: bytes, device: str, but_below: str) -> bool:
    """Whether a line that names a device is of a filesystem on it, and not of a FUSE mount with such a source."""
    mount = parsed(line)
    if mount is None:
        return True
    return mount.device == device and not (but_below and f"{mount.point}/".startswith(f"{but_below}/"))


def parsed(line: bytes) -> MountLine | None:
    mount, _, filesystem = line.decode("utf-8", "surrogateescape").partition(" - ")
    try:
        id, _, device, root, point, _, *tags = mount.split(" ")
        type, _, options = filesystem.split(" ", 2)
        # As of a device node that its driver has made again.
        root = _unescaped(root).removesuffix("//deleted")
        return MountLine(int(id), device, root, _unescaped(point), tuple(tags), type, options)
    except ValueError:
        return None


def _unescaped(field: str) -> str:
    # The backslash comes last: it begins the others.
    for letter in " \t\n\\":
        field = field.replace(f"\\{ord(letter):03o}", letter)
    return field
