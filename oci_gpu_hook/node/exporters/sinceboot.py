# SPDX-License-Identifier: Apache-2.0
"""What is known of GPUs since the boot: those that were there, their XID errors, and which of them are not healthy.

The kernel's log forgets, and a counter must not go back; a GPU that has fallen off the bus may be in no list any more.
So all is kept in /run, with the number of the last record that was counted.  Starts learn by `host.leases` which GPUs
are not healthy: an XID error stays until a validation passes, or NVML, which has asked for a reset of the GPU, no
longer does.  A failed validation stays until another passes, a GPU that did not answer until it does, an ECC error
until NVML's count is 0 again, as after a reset.  All of it goes if the driver is bound to the GPU again.

Opens no GPU.  Must not be used by the hook.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, NamedTuple

from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.host import leases, saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.exporters import counters
from oci_gpu_hook.node.gpus import kernellog
from oci_gpu_hook.node.gpus.kernellog import Xid
from oci_gpu_hook.node.gpus.readings import Readings
from oci_gpu_hook.node.machine import whole

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
_DEVICES, _BOUND = "/sys/bus/pci/devices", "/sys/bus/pci/drivers/nvidia"
_XID, _LOST, _ECC, _RESET, _VALIDATION = "xid", "lost", "ecc", "reset", "validation"
# Of each sort: a host has 16 GPUs, and a GPU some tens of kinds of errors.
_MOST = 1000


class SinceBoot(NamedTuple):
    """sequence: of the last record that was counted; seen: UUIDs of GPUs by PCI address, as `kernellog.place` has it.

    xids: how often each error was, by PCI address and number; whys: what is wrong with a GPU that the kernel lists, by
    its bus_id: the inode of its link below the driver, and a clause by source, "" for nothing.
    """

    sequence: int
    seen: dict[str, str]
    xids: dict[tuple[str, int], int]
    whys: dict[str, tuple[int, dict[str, str]]]


def renew(
    root: HostRoot,
    gpus: tuple[Gpu, ...],
    uuids: dict[str, str],
    nvml: Readings | None = None,
    tested: dict[str, str] | None = None,
    *,
    remember: bool = True,
) -> tuple[SinceBoot, bool]:
    """What is known now, and whether the kernel's log can be read; ApplyError if it cannot be saved.

    gpus: the kernel's list; uuids: those that are known, by PCI address; nvml: its readings, if it was asked; tested:
    why the validation of a GPU failed, "" if it passed, by bus_id; remember: whether later calls are to know it too.
    """
    inodes = dict(root.inodes(_BOUND))
    with counters.lock():
        known = _read(root, {gpu.bus_id: inodes.get(gpu.proc, 0) for gpu in gpus})
        records = kernellog.xids(root)
        new = [xid for xid in records or () if xid.sequence > known.sequence]
        _count(known, new)
        for bus, (_, whys) in known.whys.items():
            _judge(bus, whys, nvml, tested or {})
        seen = {pci: uuid for pci, uuid in known.seen.items() if not _is_taken(root, pci)}
        last = max([known.sequence, *[xid.sequence for xid in new]])
        known = known._replace(sequence=last, seen=dict([*seen.items(), *uuids.items()][-_MOST:]))
        if remember:
            _write(root, known)
    return known, records is not None


def _count(known: SinceBoot, new: list[Xid]) -> None:
    """Count the records of the kernel's log that are new."""
    buses = {kernellog.place(bus): bus for bus in known.whys}
    for xid in new:
        key = xid.pci, xid.number
        if key in known.xids or len(known.xids) < _MOST:
            known.xids[key] = known.xids.get(key, 0) + 1
        if xid.pci in buses and xid.number in FATAL:
            known.whys[buses[xid.pci]][1][_XID] = f"XID {xid.number}, {FATAL[xid.number]}"


def _judge(bus: str, whys: dict[str, str], nvml: Readings | None, tested: dict[str, str]) -> None:
    """What NVML and a validation say of a GPU."""
    if nvml:
        said = {gpu.bus_id: gpu.values for gpu in nvml.gpus}
        whys[_LOST] = "" if bus in said else "it does not answer NVML"
        if bus in said:
            ecc, wants_reset = said[bus].get("ecc_uncorrected", 0), said[bus].get("recovery_action", 0)
            if whys.get(_RESET) and not wants_reset:
                whys[_XID] = ""
            whys[_RESET] = "NVML says that it needs a reset" if wants_reset else ""
            whys[_ECC] = f"{ecc} uncorrectable ECC errors since its last reset" if ecc else ""
    if bus in tested:
        whys[_VALIDATION] = f"its validation failed: {tested[bus]}" if tested[bus] else ""
        if not tested[bus]:
            whys[_XID] = ""


def _is_taken(root: HostRoot, pci: str) -> bool:
    """Whether a GPU is there and another driver has it, or none: somebody has taken it from NVIDIA's on purpose."""
    folder = f"{_DEVICES}/{pci[4:]}.0"
    driver = root.link(f"{folder}/driver") or ""
    return root.stat(folder) is not None and driver.rpartition("/")[2] != "nvidia"


def _read(root: HostRoot, bound: dict[str, int]) -> SinceBoot:
    """What was saved in this boot; nothing if it is missing or damaged: Prometheus takes that for a reset.

    bound: the inode of each GPU's link below the driver, by bus_id.
    """
    fresh: dict[str, tuple[int, dict[str, str]]] = {bus: (inode, {}) for bus, inode in bound.items()}
    try:
        document: dict[str, Any] = json.loads(saved.read_file(root, _STATE) or b"")
        if document["boot"] != root.boot_id():
            raise ValueError("of another boot")
        kept = {bus: (inode, dict(whys)) for bus, (inode, whys) in document["whys"].items() if bound.get(bus) == inode}
        xids = {(str(pci), int(number)): int(count) for pci, number, count in document["xids"]}
        return SinceBoot(int(document["sequence"]), dict(document["seen"]), xids, {**fresh, **kept})
    except (ValueError, TypeError, KeyError, AttributeError):
        return SinceBoot(-1, {}, {}, fresh)


def _write(root: HostRoot, known: SinceBoot) -> None:
    xids = [(*key, count) for key, count in known.xids.items()]
    document = {"boot": root.boot_id(), **known._asdict(), "xids": xids}
    clauses = [(bus, "; ".join(filter(None, whys.values()))) for bus, (_, whys) in known.whys.items()]
    unhealthy = tuple([(bus, why) for bus, why in clauses if why])
    with whole.explained(f"{saved.FOLDER}/{saved.UNHEALTHY}"):
        saved.write(root, _STATE, json.dumps(document).encode() + b"\n")
        if unhealthy:
            saved.save(root, saved.UNHEALTHY, leases.UNHEALTHY_HEADING, unhealthy)
            return
        with closing(saved.open_folder(root)) as folder, suppress(FileNotFoundError):
            os.unlink(saved.UNHEALTHY, dir_fd=folder)
