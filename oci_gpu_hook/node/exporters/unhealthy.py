# SPDX-License-Identifier: Apache-2.0
"""Find out which GPUs are not healthy, and save it for starts: `host.health` reads it there.

An XID error stays until a validation passes, or NVML, which has asked for a reset of the GPU, no longer does.  A failed
validation stays until another passes, a GPU that did not answer until it does, an ECC error until NVML's count is 0
again, as after a reset.  All of it goes if the driver is bound to the GPU again, and with the boot.  Opens no GPU.
Must not be used by the hook.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from oci_gpu_hook.host import health, saved
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.exporters import spool
from oci_gpu_hook.node.gpus import kernellog
from oci_gpu_hook.node.machine import whole

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
_XID, _LOST, _ECC, _RESET, _VALIDATION = "xid", "lost", "ecc", "reset", "validation"


def renew(
    root: HostRoot, gpus: tuple[Gpu, ...], nvml: Readings | None = None, tested: dict[str, str] | None = None
) -> None:
    """Save what is known now; ApplyError if it cannot be saved.

    nvml: its readings, if it was asked; tested: why the validation of a GPU failed, "" if it passed, by bus_id.
    """
    inodes = dict(root.inodes(_BOUND))
    with spool.lock():
        last, found = _read(root, {gpu.bus_id: inodes.get(gpu.proc, 0) for gpu in gpus})
        buses = {kernellog.place(bus): bus for bus in found}
        xids = kernellog.xids(root) or ()
        for xid in xids:
            if xid.sequence > last and xid.pci in buses and xid.number in FATAL:
                found[buses[xid.pci]].whys[_XID] = f"XID {xid.number}, {FATAL[xid.number]}"
        said = {gpu.bus_id: gpu.values for gpu in nvml.gpus} if nvml else {}
        for bus, (_, whys) in found.items() if nvml else ():
            whys[_LOST] = "" if bus in said else "it does not answer NVML"
            if bus in said:
                _count(whys, said[bus])
        for bus, why in (tested or {}).items():
            found[bus].whys[_VALIDATION] = f"its validation failed: {why}" if why else ""
            if not why:
                found[bus].whys[_XID] = ""
        _write(root, max([last, *[xid.sequence for xid in xids]]), found)


def _count(whys: dict[str, str], values: dict[str, int]) -> None:
    """What NVML's values say of a GPU."""
    ecc, wants_reset = values.get("ecc_uncorrected", 0), values.get("recovery_action", 0)
    if whys.get(_RESET) and not wants_reset:
        whys[_XID] = ""
    whys[_RESET] = "NVML says that it needs a reset" if wants_reset else ""
    whys[_ECC] = f"{ecc} uncorrectable ECC errors since its last reset" if ecc else ""


class _Known(NamedTuple):
    """What is known of a GPU; bound: the inode of its link below the driver; whys: by source, "" for nothing."""

    bound: int
    whys: dict[str, str]


def _read(root: HostRoot, bound: dict[str, int]) -> tuple[int, dict[str, _Known]]:
    """The last record of the kernel's log that was counted, and what is known of the GPUs that are bound now."""
    known = {bus: _Known(inode, {}) for bus, inode in bound.items()}
    try:
        document: dict[str, Any] = json.loads(saved.read(root, _STATE) or b"")
        if document["boot"] != root.boot_id():
            return -1, known
        for bus, (inode, whys) in document["gpus"].items():
            if bound.get(bus) == inode:
                known[bus] = _Known(inode, dict(whys))
        return int(document["sequence"]), known
    except (ValueError, TypeError, KeyError, AttributeError):
        return -1, known


def _write(root: HostRoot, sequence: int, found: dict[str, _Known]) -> None:
    document = {"boot": root.boot_id(), "sequence": sequence, "gpus": found}
    told = tuple(
        [(bus, "; ".join(filter(None, it.whys.values()))) for bus, it in found.items() if any(it.whys.values())]
    )
    try:
        saved.write(root, _STATE, json.dumps(document).encode() + b"\n")
        if told:
            saved.save(root, saved.UNHEALTHY, health.HEADING, told)
            return
        with closing(saved.open_folder(root)) as folder, suppress(FileNotFoundError):
            os.unlink(saved.UNHEALTHY, dir_fd=folder)
    except OSError as err:
        raise whole.failure(f"{saved.FOLDER}/{saved.UNHEALTHY}", err) from err
