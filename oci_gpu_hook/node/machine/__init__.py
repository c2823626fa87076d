# SPDX-License-Identifier: Apache-2.0
"""What commands know of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.kernel.descriptors import closing as closing

if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot


def text(root: HostRoot, path: str) -> str:
    """The text of a file of root's or the kernel's; "" if there is none."""
    return root.text(path)
