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

    mig: the compute instances with the inode numbers of their folders.  procfs gives a number again only when nobody
    has the old folder in memory, so an instance that is made anew under the same name gets another one.  The kernel may
    have dropped the old folder from memory before, and then the number may be the same: see `shown`.

    shown: the times of these folders, which are those of their inodes in memory.  Where only they differ, an instance
    was made anew, or the kernel had dropped its folder and shows it once more: they make a doubt, see `is_in_doubt`.
    Each mount of procfs has inodes of its own, with the same numbers and other times: `st_dev` tells which one it is.

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
    shown: tuple[tuple[int, int], ...]


def is_same(saved: Stamp, now: Stamp) -> bool:
    """Whether what was saved with the one is still true, as far as the kernel tells; `saved` may be a plain tuple."""
    return saved[:-1] == now[:-1]


def is_in_doubt(saved: Stamp, now: Stamp) -> bool:
    """Whether MIG devices may have been made anew all the same.

    Of another mount's times nothing follows: there the inode numbers alone count.
    """
    pairs = zip(saved[-1], now.shown)
    return any([then[0] == it[0] and then[1] != it[1] for then, it in pairs])


def now(root: HostRoot, driver_root: str) -> Stamp:
    """The current stamp."""
    cache = root.stat(f"{driver_root.rstrip('/')}{LD_SO_CACHE}")
    folders = [(name, root.stat(proc.mig_folder(name))) for name in proc.mig_instances(root)]
    instances = [(name, folder) for name, folder in folders if folder is not None]
    return Stamp(
        boot_id=_text(root.read(_BOOT_ID)),
        driver=_text(root.read(proc.VERSION)),
        gpus=tuple(root.names(proc.GPUS)),
        bound=tuple([f"{name} {inode}" for name, inode in root.inodes(_BOUND)]),
        mig=tuple([f"{name} {folder.st_ino}" for name, folder in instances]),
        driver_root=driver_root,
        ld_so_cache=() if cache is None else (cache.st_dev, cache.st_ino, cache.st_size, cache.st_mtime_ns),
        shown=tuple([(folder.st_dev, folder.st_mtime_ns) for _, folder in instances]),
    )


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
