# SPDX-License-Identifier: Apache-2.0
"""What changes when the driver does: by it a start knows that what was saved of this host is still true.

Reads only.  Must not interpret what it finds.
"""

from __future__ import annotations

from oci_gpu_hook.host import proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

LD_SO_CACHE = "/etc/ld.so.cache"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BOUND = "/sys/bus/pci/drivers/nvidia"


class Stamp(NamedTuple):
    """What changes when the survey's outcome would: compared, never interpreted.

    A folder's time in /proc is when the kernel first showed it, not when it changed, so names stand for it.

    bound: the PCI driver's entries with their inode numbers, which sysfs gives to nothing else while the kernel runs.
    Where a GPU was unbound and bound again, or the module loaded again, the same GPUs may have other minors.
    """

    boot_id: str
    driver: str
    gpus: tuple[str, ...]
    bound: tuple[str, ...]
    mig: tuple[str, ...]
    driver_root: str
    ld_so_cache: tuple[int, ...]


def now(root: HostRoot, driver_root: str) -> Stamp:
    """The stamp of this moment."""
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
