# SPDX-License-Identifier: Apache-2.0
"""The way into the hook's rooms, for the door's interpreter: whoever imports this finds them.

They are those of the linked file where it is this Python's, else the package as it lies there.  A module, for it is
compiled, while what an interpreter runs by ``-c`` is compiled anew at each start.

Must not import what is not built into every interpreter.
"""

import gc
import marshal
import posix
import sys

# A start is over before there is garbage worth collecting.
gc.disable()

# The folder that this module came from is searched no more, but the library that it lies in.
library = sys.path[0].rpartition("/oci_gpu_hook/")[0]
sys.path[0] = library
try:
    path = f"{library}/oci_gpu_hook/__linked__/rooms.{sys.implementation.cache_tag}"
    file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    size = int.from_bytes(posix.read(file, 4), "little")
    start, door, places = marshal.loads(posix.read(file, size))
    linked: "dict[str, object]" = {}
    exec(start, linked)
    linked["enter"](door, library, file, 4 + size, places)  # type: ignore[operator]
except (OSError, EOFError, ValueError):
    pass
