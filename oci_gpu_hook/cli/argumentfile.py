# SPDX-License-Identifier: Apache-2.0
"""Files that a command line names: root may run the command, and another user may have made the file.

A device, a FIFO or a file of the kernel's is not opened in their place: a pipe is for standard input.
Must not be used by the hook: what the engine names is opened by `request`.
"""

from __future__ import annotations

import errno

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.node.machine import foreignfile
from oci_gpu_hook.request.bundle import Bundle, read_bundle


def content(path: str, largest: int = foreignfile.LARGEST) -> bytes:
    """The whole content of a regular file; OSError if it is none, or has more bytes."""
    with open(foreignfile.regular(path), "rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"it is larger than {largest >> 20} MiB", path)
    return data


def bundle(path: str) -> Bundle:
    """BundleError if there is none."""
    try:
        return read_bundle(path, foreignfile.regular)
    except OSError as err:
        hint = "name a container's bundle, and run it as the user who started the container, such as root"
        raise BundleError(f"cannot open {path}/config.json: {err.strerror}", hint) from err
