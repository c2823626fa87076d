# SPDX-License-Identifier: Apache-2.0
"""Find out which GPUs are not healthy, and save it for starts: `host.health` reads it there.

An XID error stays until a validation passes, a failed validation until another passes, a GPU that did not answer until
it does, an ECC error until NVML's count is 0 again, as after a reset.  All of it goes if the driver is bound to the GPU
again, and with the boot.  Opens no GPU.  Must not be used by the hook.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oci_gpu_hook.host import health, saved
from oci_gpu_hook.node.exporters import spool
from oci_gpu_hook.node.gpus import kernellog
from oci_gpu_hook.node.machine import closing, whole

if TYPE_CHECKING:
    from oci_gpu_hook.driver.proc import Gpu
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.node.gpus.readings import Readings

# Of NVIDIA's list of XID errors those after which a GPU computes no more, or wrong, until it is reset.
FATAL = {
    46: "GPU stopped processing",
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "ECC row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained ECC error",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization failed",
}
_STATE = "gpu-health.json"
_BOUND = "/sys/bus/pci/drivers/nvidia"
_XID, _LOST, _ECC, _VALIDATION = "xid", "lost", "ecc", "validation"


def renew(
    root: HostRoot, gpus: tuple[Gpu, ...], nvml: Readings | None = None, tested: dict[str, str] | None = None
) -> None:
    """Save what is known now; ApplyError if it cannot be saved.

    nvml: its readings, if it was asked; tested: why the validation of a GPU failed, "" if it passed, by bus_id.
    """
    bound = dict(root.inodes(_BOUND))
    inodes = {gpu.bus_id: bound.get(gpu.proc, 0) for gpu in gpus}
    with spool.lock():
        sequence, found = _read(root)
        found = {key: it for key, it in found.items() if it[1] == inodes.get(key[0], -1)}
        buses = {kernellog.place(gpu.bus_id): gpu.bus_id for gpu in gpus}
        xids = kernellog.xids(root) or ()
        for xid in xids:
            bus = buses.get(xid.pci, "")
            if xid.sequence > sequence and bus and xid.number in FATAL:
                found[bus, _XID] = (f"XID {xid.number}, {FATAL[xid.number]}", inodes[bus])
        said = {gpu.bus_id: gpu.values for gpu in nvml.gpus} if nvml else {}
        for bus, inode in inodes.items() if nvml else ():
            ecc = said.get(bus, {}).get("ecc_uncorrected", 0)
            for source, why in (
                (_LOST, "" if bus in said else "it does not answer NVML"),
                (_ECC, f"{ecc} uncorrectable ECC errors since its last reset" if ecc else ""),
            ):
                _set(found, bus, source, why, inode)
        for bus, why in (tested or {}).items():
            _set(found, bus, _VALIDATION, f"its validation failed: {why}" if why else "", inodes.get(bus, 0))
            if not why:
                _set(found, bus, _XID, "", 0)
        _write(root, max([sequence, *[xid.sequence for xid in xids]]), found)


def _set(found: dict[tuple[str, str], tuple[str, int]], bus: str, source: str, why: str, inode: int) -> None:
    if why:
        found[bus, source] = (why, inode)
    else:
        found.pop((bus, source), None)


def _read(root: HostRoot) -> tuple[int, dict[tuple[str, str], tuple[str, int]]]:
    """The last record of the kernel's log that was counted, and by GPU and source what was found, and when bound."""
    try:
        document: dict[str, Any] = json.loads(saved.read(root, _STATE) or b"")
        if document["boot"] != kernellog.boot_id(root):
            return -1, {}
        rows = [(str(bus), str(source), str(why), int(inode)) for bus, source, why, inode in document["found"]]
        return int(document["sequence"]), {(bus, source): (why, inode) for bus, source, why, inode in rows}
    except (ValueError, TypeError, KeyError):
        return -1, {}


def _write(root: HostRoot, sequence: int, found: dict[tuple[str, str], tuple[str, int]]) -> None:
    rows = [(*key, *it) for key, it in sorted(found.items())]
    document = {"boot": kernellog.boot_id(root), "sequence": sequence, "found": rows}
    whys: dict[str, list[str]] = {}
    for (bus, _), (why, _) in sorted(found.items()):
        whys.setdefault(bus, []).append(why)
    try:
        saved.write(root, _STATE, json.dumps(document).encode() + b"\n")
        if whys:
            told = tuple([(bus, "; ".join(it)) for bus, it in whys.items()])
            saved.write(root, saved.UNHEALTHY, saved.packed(health.HEADING, told))
            return
        with closing(saved.open_folder(root)) as folder, suppress(FileNotFoundError):
            os.unlink(saved.UNHEALTHY, dir_fd=folder)
    except OSError as err:
        raise whole.failure(f"{saved.FOLDER}/{saved.UNHEALTHY}", err) from err
