# SPDX-License-Identifier: Apache-2.0
"""The stamp of what is saved about this host's driver: while it is the same, what was saved is still true.

Reads only.  Must not interpret the values.
"""

from __future__ import annotations

from oci_gpu_hook.driver import proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

LD_SO_CACHE = "/etc/ld.so.cache"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BOUND = "/sys/bus/pci/drivers/nvidia"


class Stamp(NamedTuple):
    """Values of which one changes whenever a new survey would find something else.

    The time of a folder in /proc says when it was first shown, not when it changed: its names are compared instead.

    bound: the PCI driver's entries with their inode numbers.  sysfs uses no number twice while the kernel runs.  The
    same GPUs may have other minors after one was unbound and bound again, or after the module was loaded again.
    """

    boot_id: str
    driver: str
    gpus: tuple[str, ...]
    bound: tuple[str, ...]
    mig: tuple[str, ...]
    driver_root: str
    ld_so_cache: tuple[int, ...]


def now(root: HostRoot, driver_root: str) -> Stamp:
    """The current stamp."""
    cache = root.stat(f"{driver_root.rstrip('/')}{LD_SO_CACHE}")
    return Stamp(
        boot_id=_text(root.read(_BOOT_ID)),
        driver=_text(root.read(proc.VERSION)),
        gpus=tuple(root.names(proc.GPUS)),
        bound=tuple([f"{name} {inode}" for name, inode in root.inodes(_BOUND)]),
        mig=proc.mig_instances(root),
        driver_root=driver_root,
        ld_so_cache=()
        if cache is None
        else (cache.st_dev, cache.st_ino, cache.st_size, cache.st_mtime_ns),
    )


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
