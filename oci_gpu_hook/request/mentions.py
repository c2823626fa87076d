# SPDX-License-Identifier: Apache-2.0
"""Whether a text may ask for a GPU: it is searched piece by piece, and never parsed.

For a state or a config.json with more than any engine writes: a container that may ask is refused then, and another
must start.  A word that asks counts in any place, as for hooks.d/oci-gpu-hook.  Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.request import settings
from oci_gpu_hook.request.state import ExcessError, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WORDS = (b"NVIDIA_", b"CUDA_VERSION", b"cdi.k8s.io", b"nvidia-container-devices", b"nvidia_driver_", b'"OCI_')
# An escape could spell a letter of them.  These are how Go writes &, < and >.
_ESCAPE = b"\\u00"
_HARMLESS = (b"\\u0026", b"\\u003c", b"\\u003e", b"\\u003C", b"\\u003E")
_LONGEST_ESCAPE = 6
_PIECE = 1 << 16
_OPEN = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC


def are_in_start(stdin: int, err: ExcessError, state: State | None, path: str | None) -> bool:
    """Whether anything may ask in a start's inputs; state: None if it is what has too much.  True in doubt."""
    words = words_of(path)
    if state is None:
        bundle = _working_folder(err.read)
        if not bundle or are_in(_pieces(stdin, err.read), words):
            return True
    else:
        bundle = state.bundle
        text = "\0".join([*state.annotations, *state.annotations.values()])
        if are_in([text.encode("utf-8", "surrogateescape")], words):
            return True
    return are_in_file(f"{bundle}/config.json", words)


def are_in_file(path: str, words: tuple[bytes, ...]) -> bool:
    """Whether a config.json has any of them; True if it cannot be read."""
    try:
        fd = posix.open(path, _OPEN)
        try:
            return are_in(_pieces(fd), words)
        finally:
            posix.close(fd)
    except OSError:
        return True


def are_in(pieces: Iterable[bytes], words: tuple[bytes, ...]) -> bool:
    """Whether a text that comes in pieces has one of `words`, or an escape that could spell a letter of one."""
    kept = max(map(len, words)) - 1
    text = b""
    for piece in pieces:
        text = text[-kept:] + piece
        if any([word in text for word in words]):
            return True
        if _ESCAPE in text:
            for escape in _HARMLESS:
                text = text.replace(escape, b"&")
            # One that is cut off is looked at with the next piece.
            if _ESCAPE in text[: 1 - _LONGEST_ESCAPE]:
                return True
    return _ESCAPE in text


def words_of(path: str | None) -> tuple[bytes, ...]:
    """What asks: the words that are known, and the variables that the settings name."""
    try:
        names = settings.read_settings(path, None).swarm_resources
    except ConfigError:
        # No container that asks for nothing that we know of is stopped by that.
        names = ()
    return (*_WORDS, *[_written(name.rpartition("=")[2]) for name in names])


def _written(variable: str) -> bytes:
    """How config.json must write a variable; one that can be written in other ways is taken to be in every text."""
    is_plain = variable.isascii() and variable.replace("_", "").replace("-", "").isalnum()
    return f'"{variable}='.encode() if is_plain else b'"'


def _working_folder(state: list[bytes]) -> str:
    """The working folder, in which runtimes start hooks, if the state names it as the bundle; else ""."""
    folder = posix.getcwd()
    text, path = b"".join(state), folder.encode("utf-8", "surrogateescape")
    return folder if any([b'"bundle":%b"%b"' % (gap, path) in text for gap in (b"", b" ")]) else ""


def _pieces(fd: int, before: Iterable[bytes] = ()) -> Iterator[bytes]:
    yield from before
    while piece := posix.read(fd, _PIECE):
        yield piece
