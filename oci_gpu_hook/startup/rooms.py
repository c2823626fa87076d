# SPDX-License-Identifier: Apache-2.0
"""The way into the hook's rooms: those of the linked file where it is this Python's, else the package as it lies there.

Compiled, as what the door has an interpreter run by ``-c`` is compiled anew at each start.

Must not import what is not built into every interpreter.
"""

import gc
import marshal
import posix
import sys


def enter(library: str) -> None:
    """Have `library` searched for the package, in the place of the folder that this module came from."""
    # A start is over before there is garbage worth collecting.
    gc.disable()
    sys.path[0] = library
    path = f"{library}/oci_gpu_hook/__linked__/rooms.{sys.implementation.cache_tag}"
    try:
        file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        size = int.from_bytes(posix.read(file, 4), "little")
        start, door, places = marshal.loads(posix.read(file, size))
        linked: "dict[str, object]" = {}
        exec(start, linked)
        linked["enter"](door, library, file, 4 + size, places)  # type: ignore[operator]
    except (OSError, EOFError, ValueError):
        pass
