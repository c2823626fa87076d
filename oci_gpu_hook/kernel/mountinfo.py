# SPDX-License-Identifier: Apache-2.0
"""The mounts of one mount namespace, as /proc/PID/mountinfo lists them (proc_pid_mountinfo(5)).  Pure.

A node has thousands of mounts, and of a few of them something must be known: the text is looked through as it comes,
piece by piece, and never held.  The kernel takes some microseconds to write each line, so a start looks once.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Mount(NamedTuple):
    """One mount.  tags: the optional fields, such as ``shared:42``; type, options: those of the filesystem."""

    tags: tuple[str, ...]
    type: str
    options: str


def mount(pieces: Iterable[bytes], id: int) -> Mount | None:
    """The mount with the number `id`, as statx(2) gives it; None if there is none."""
    # The kernel writes a newline inside a field as \\012, and a space as \\040.
    start = b"%d " % id
    for text in whole_lines(pieces):
        at = 0 if text.startswith(start) else text.find(b"\n" + start) + 1
        if at or text.startswith(start):
            return _parsed(text[at:].partition(b"\n")[0].decode("utf-8", "surrogateescape"))
    return None


def mounted(pieces: Iterable[bytes], devices: Iterable[str], but_below: str = "") -> set[str]:
    """Those of `devices`, each as ``major:minor``, of which a filesystem is mounted anywhere in the namespace.

    but_below: a path at and below which mounts do not count, "" for none.
    """
    missing = {device: device.encode() for device in devices}
    top = _escaped(but_below)
    found: set[str] = set()
    for text in whole_lines(pieces) if missing else ():
        for device, number in [*missing.items()]:
            # Anyone may name the source of a FUSE mount like a number, so a find is looked at once more.
            if b" %b " % number in text and any([_is_of(line, number, top) for line in text.split(b"\n")]):
                found.add(device)
                del missing[device]
        if not missing:
            break
    return found


def _is_of(line: bytes, number: bytes, top: bytes) -> bool:
    """Whether a line is of a filesystem with this number, mounted at no path below `top`, nor at it."""
    fields = line.split(b" ", 5)
    return fields[2:3] == [number] and not (top and (b"%b/" % (*fields, b"", b"")[4]).startswith(top))


def _escaped(path: str) -> bytes:
    """The path with a slash at its end, as the kernel writes mount points; nothing for ""."""
    text = f"{path}/".encode("utf-8", "surrogateescape") if path else b""
    for letter in b"\\ \t\n":
        text = text.replace(b"%c" % letter, b"\\%03o" % letter)
    return text


def whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The text of `pieces`, no line of it in two."""
    rest: list[bytes] = []
    for piece in pieces:
        text, newline, after = piece.rpartition(b"\n")
        if newline:
            yield b"".join([*rest, text, newline])
            rest = [after]
        else:
            rest.append(piece)
    if any(rest):
        yield b"".join(rest)


def _parsed(line: str) -> Mount | None:
    mount, _, filesystem = line.partition(" - ")
    try:
        _, _, _, _, _, _, *tags = mount.split(" ")
        type, _, options = filesystem.split(" ", 2)
        return Mount(tuple(tags), type, options)
    except ValueError:
        # No kernel writes such a line.
        return None
