# SPDX-License-Identifier: Apache-2.0
"""What is remembered of GPUs since the boot: those that were there, and their XID errors.

The kernel's log forgets, and a counter must not go back; a GPU that has fallen off the bus may be in no list any more.
Both are kept in /run, with the number of the last record that was counted.  Must not be used by the hook.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from oci_gpu_hook.host import saved
from oci_gpu_hook.node.exporters import spool
from oci_gpu_hook.node.gpus import kernellog
from oci_gpu_hook.node.machine import whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_gpu_hook.host.root import HostRoot

_NAME = "gpu-metrics.json"
# Of each sort: a host has 16 GPUs, and a GPU some tens of kinds of errors.
_MOST = 1000


class Seen(NamedTuple):
    """gpus: UUIDs by PCI address; xids: errors, by PCI address and number, None if the log cannot be read."""

    gpus: dict[str, str]
    xids: dict[tuple[str, int], int] | None


def renew(root: HostRoot, gpus: dict[str, str], is_taken: Callable[[str], bool], *, remember: bool) -> Seen:
    """What was seen up to now, with the GPUs that are there now; ApplyError if it cannot be saved.

    gpus: by PCI address, in the form of `kernellog.place`; is_taken: whether a GPU was taken away on purpose, and so is
    to be forgotten; remember: whether later calls are to know what this one has seen.
    """
    with spool.lock():
        boot = root.boot_id()
        sequence, known, totals = _read(root, boot)
        found = kernellog.xids(root)
        for xid in found or ():
            key = xid.pci, xid.number
            if xid.sequence > sequence and (key in totals or len(totals) < _MOST):
                totals[key] = totals.get(key, 0) + 1
        last = max([sequence, *[xid.sequence for xid in found or ()]])
        known = {pci: uuid for pci, uuid in known.items() if not is_taken(pci)}
        known = dict([*known.items(), *gpus.items()][-_MOST:])
        if remember:
            _write(root, boot, last, known, totals)
    return Seen(known, None if found is None else totals)


def _read(root: HostRoot, boot: str) -> tuple[int, dict[str, str], dict[tuple[str, int], int]]:
    """What was saved in this boot; nothing if it is missing or damaged: Prometheus takes that for a reset."""
    try:
        document: dict[str, Any] = json.loads(saved.read(root, _NAME) or b"")
        if document["boot"] != boot:
            return -1, {}, {}
        gpus = {str(pci): str(uuid) for pci, uuid in document["gpus"].items()}
        totals = {(str(pci), int(number)): int(count) for pci, number, count in document["xids"]}
        return int(document["sequence"]), gpus, totals
    except (ValueError, TypeError, KeyError, AttributeError):
        return -1, {}, {}


def _write(root: HostRoot, boot: str, sequence: int, gpus: dict[str, str], totals: dict[tuple[str, int], int]) -> None:
    xids = [(pci, number, count) for (pci, number), count in totals.items()]
    document = {"boot": boot, "sequence": sequence, "gpus": gpus, "xids": xids}
    try:
        saved.write(root, _NAME, json.dumps(document).encode() + b"\n")
    except OSError as err:
        raise whole.failure(f"{saved.FOLDER}/{_NAME}", err) from err
