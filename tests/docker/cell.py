# SPDX-License-Identifier: Apache-2.0
"""The cell that each user runs: which GPUs its kernel can open, as JSON.

gpus: the GPUs' nodes that are there, and what open() says of each; tried: the same of nodes that the cell makes for all
GPUs of the host, "" if it may make none; cuda: what CUDA's library says, None without one; library: its path.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import json
import os
import stat


def opened(path: str) -> str:
    """What open() says."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as err:
        return errno.errorcode[err.errno or 0]
    return "opened"


def tried(number: int) -> str:
    """What open() says of a GPU whose node is made here; "" if none can be made."""
    path = f"/dev/tried{number}"
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(195, number))
    except PermissionError:
        return ""
    return opened(path)


def devices() -> list[int] | None:
    """The result of cuInit and the number of devices."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(-1)
    result = cuda.cuInit(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return [result, count.value]


def library() -> str:
    """The path of CUDA's library, once it is loaded."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split()[-1] for line in file if "libcuda.so" in line}
    return " ".join(paths)


print(
    json.dumps(
        {
            "gpus": {path: opened(path) for path in sorted(glob.glob("/dev/nvidia[0-9]*"))},
            "tried": {number: tried(number) for number in range(8)},
            "cuda": devices(),
            "library": library(),
            "uid": os.getuid(),
            "share": os.environ.get("DOCKER_RESOURCE_GPU", ""),
        }
    )
)
