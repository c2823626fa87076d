# SPDX-License-Identifier: Apache-2.0
"""What is known against GPUs since the boot.

The kernel's log forgets, so all is kept in /run, with the number of the last record that was read.  Starts learn by
`host.leases` which GPUs are not healthy.  An XID error stays until a validation that begins after it passes, or NVML no
longer asks for the reset that it has asked for; a failed validation until another passes; all else until NVML no longer
says it.  All of it goes if the driver is bound to the GPU again.  Of the log only records of the kernel itself count:
what a program writes to /dev/kmsg gets another facility (the kernel's Documentation/ABI/testing/dev-kmsg).  Opens no
GPU, and waits for nothing.  Must not be used by the hook.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from oci_gpu_hook.driver import nodes
from oci_gpu_hook.driver.survey import list_gpus
from oci_gpu_hook.host import leases, statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.exporters import counters
from oci_gpu_hook.node.gpus.nvml import Readings
from oci_gpu_hook.node.machine import outputfile
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.selectors import bus_id

# NVIDIA's list of XID errors: after these a GPU computes no more, or wrong, until it is reset.
FATAL = (46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143)
# What is wrong with a GPU that the kernel lists, by its bus_id: the inode of its link below the driver, and a clause by
# source, "" for nothing; the source of an XID error is the number of its record.
Whys = dict[str, tuple[int, dict[str, str]]]

_STATE = "gpu-health.json"
_LOG, _READ = "/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK
_LOST, _ECC, _RESET, _VALIDATION, _MEMORY = "lost", "ecc", "reset", "validation", "memory"
_LEFT = 1024  # MiB: a driver that runs has some hundreds for itself
# No record is longer; a shorter read gets none at all.
_LONGEST_RECORD = 8192
# Far more than a kernel keeps, a quarter of a MiB without log_buf_len.
_MAX_READS = 1 << 17
# Facility and level, in one number, and the record's: facility 0 is the kernel's, of which 7 is the last level.
# An error of a MIG device has its GPU instance, and its compute instance, behind the address.
_RECORD = re.compile(
    rb"([0-7]),([0-9]{1,19})(?:,[^;]*)?;NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)(?: GPU-I:[0-9]+)?(?: GPU-CI:[0-9]+)?\): "
    rb"\s*([0-9]{1,5})\s*(?:,|$)"
)
# Each time that the module is loaded: the GPUs are bound to another driver than that of the records before.
_LOADING = re.compile(rb"[0-7],[^;]*;NVRM: loading NVIDIA UNIX ")


class Xid(NamedTuple):
    """One error: number of its record in the log, PCI address as ``00000000:07:00``, number of the error."""

    sequence: int
    pci: str
    number: int


def renew(host: HostRoot, nvml: Readings | None, tested: dict[str, str], until: int = -1) -> int:
    """Save what is known now; gives the number of the log's last record; ApplyError.  nvml: if it has answered; tested:
    by bus_id why a GPU's validation failed, "" if it passed; until: the last record of before that validation.
    """
    # One that NVML could not start is none of the inventory.
    gpus, records = nodes.gpus_here(host, list_gpus(host)), xids(host)
    inodes = dict(host.inodes("/sys/bus/pci/drivers/nvidia"))
    with counters.lock():
        last, known = _read(host, {gpu.bus_id: inodes.get(gpu.proc, 0) for gpu in gpus})
        buses = {place(bus): bus for bus in known}
        for xid in records:
            if xid.sequence > last and xid.pci in buses and xid.number in FATAL:
                whys = known[buses[xid.pci]][1]
                _clear_xids(whys, xid.sequence)
                whys[str(xid.sequence)] = f"XID {xid.number}, after which it needs a reset"
        last = max([last, *[xid.sequence for xid in records]])
        for bus, (_, whys) in known.items():
            _judge(bus, whys, nvml, tested, until)
        _write(host, last, known)
    return last


def _clear_xids(whys: dict[str, str], until: int = 1 << 63) -> None:
    for source in [it for it in whys if it.isdecimal() and int(it) <= until]:
        del whys[source]


def _judge(bus: str, whys: dict[str, str], nvml: Readings | None, tested: dict[str, str], until: int) -> None:
    if nvml is not None:
        said = nvml.get(bus)
        whys[_LOST] = "it does not answer NVML" if said is None else ""
        if said is not None:
            ecc, left = said.get("ecc_uncorrected", 0), said.get("memory_of_none", 0)
            wants_reset = said.get("recovery_action", 0)
            if whys.get(_RESET) and not wants_reset:
                _clear_xids(whys)
            whys[_RESET] = "NVML says that it needs a reset" if wants_reset else ""
            whys[_MEMORY] = f"{left} MiB of its memory are in use, and no process has them" if left > _LEFT else ""
            whys[_ECC] = f"{ecc} uncorrectable ECC errors since its last reset" if ecc else ""
    if bus in tested:
        whys[_VALIDATION] = f"its validation failed: {tested[bus]}" if tested[bus] else ""
        if not tested[bus]:
            _clear_xids(whys, until)


def _read(host: HostRoot, bound: dict[str, int]) -> tuple[int, Whys]:
    """Of this boot the number of the last record that was read, -1 for none, and what is known; bound: inodes now."""
    fresh: Whys = {bus: (inode, {}) for bus, inode in bound.items()}
    try:
        document: dict[str, Any] = json.loads(statefile.read_file(host, _STATE) or b"")
        if document["boot"] != host.boot_id():
            raise ValueError("of another boot")
        kept = {bus: (inode, dict(whys)) for bus, (inode, whys) in document["known"].items() if bound.get(bus) == inode}
        return int(document["sequence"]), {**fresh, **kept}
    except (ValueError, TypeError, KeyError, AttributeError):
        return -1, fresh


def _write(host: HostRoot, sequence: int, known: Whys) -> None:
    document = {"boot": host.boot_id(), "sequence": sequence, "known": known}
    clauses = [(bus, "; ".join(filter(None, whys.values()))) for bus, (_, whys) in known.items()]
    unhealthy = tuple([(bus, why) for bus, why in clauses if why])
    with outputfile.explained(f"{statefile.FOLDER}/{statefile.UNHEALTHY}"):
        statefile.write(host, _STATE, json.dumps(document).encode() + b"\n")
        if unhealthy:
            statefile.save(host, statefile.UNHEALTHY, leases.UNHEALTHY_HEADING, unhealthy)
            return
        with closing(statefile.open_folder(host)) as folder, suppress(FileNotFoundError):
            os.unlink(statefile.UNHEALTHY, dir_fd=folder)


def is_log_readable(host: HostRoot) -> bool:
    """The kernel asks at open(2) whether the log may be read."""
    with suppress(OSError), closing(host.open(_LOG, _READ)):
        return True
    return False


def xids(host: HostRoot) -> tuple[Xid, ...]:
    """All that the log has of the module that is loaded, in its order; none if it cannot be read."""
    found: list[Xid] = []
    with suppress(OSError), closing(host.open(_LOG, _READ)) as fd:
        for line in _lines(fd):
            if xid := parse_xid(line):
                found.append(xid)
            elif _LOADING.match(line):
                found.clear()
    return tuple(found)


def _lines(fd: int) -> Iterator[bytes]:
    """The kernel gives one record with each read, and a file as much as fits."""
    for _ in range(_MAX_READS):
        try:
            piece = os.read(fd, _LONGEST_RECORD)
        except BrokenPipeError:
            continue  # records were overwritten before they were read: the next one follows
        except OSError:
            return
        if not piece:
            return
        yield from piece.split(b"\n")


def parse_xid(line: bytes) -> Xid | None:
    """The XID error of a line of the log; None for any other line, for one that is damaged, and for one of a user."""
    found = _RECORD.match(line)
    pci = place(found[3].decode()) if found else ""
    return Xid(int(found[2]), pci, int(found[4])) if found and pci else None


def place(address: str) -> str:
    """Domain, bus and device of a PCI address, with or without its function, ``00000000:07:00``; else ""."""
    return bus_id(address if "." in address else f"{address}.0").partition(".")[0]
