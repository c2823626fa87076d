# SPDX-License-Identifier: Apache-2.0
"""The way into the hook's rooms, for the door's interpreter: whoever imports this finds them, and `run` goes there.

They are those of the linked file where it is this Python's, else the package as it lies there.  A module, for it is
compiled, while what an interpreter runs by ``-c`` is compiled anew at each start.

Must not import what is not built into every interpreter, but for the program that `run` goes to.
"""

import gc
import marshal
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# A start is over before there is garbage worth collecting.
gc.disable()

# The folder that this module came from is searched no more, but the library that it lies in.
library = sys.path[0].rpartition("/oci_gpu_hook/")[0]
sys.path[0] = library
try:
    path = f"{library}/oci_gpu_hook/__linked__/rooms.{sys.implementation.cache_tag}"
    file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    head = posix.read(file, 8)
    begin, size = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")
    # It is the file's end: of one that is cut short there is none.
    start, door, places = marshal.loads(posix.pread(file, size, begin))
    linked: "dict[str, object]" = {}
    exec(start, linked)
    linked["enter"](door, library, file, places)  # type: ignore[operator]
except (OSError, EOFError, ValueError):
    pass


def run() -> "NoReturn":
    """The program, from which nobody comes back."""
    from oci_gpu_hook.__main__ import main

    sys.exit(main())
