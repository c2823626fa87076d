# SPDX-License-Identifier: Apache-2.0
"""What is collected for ``metrics --gpus``: NVML's readings, who holds which GPU, and XID errors.

Opens every GPU, in a process of its own and under a time limit.  Must not be used by the hook.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from oci_gpu_hook.cli import onhost
from oci_gpu_hook.driver import inventory as saved_inventory
from oci_gpu_hook.driver import proc, survey
from oci_gpu_hook.driver.survey import driver_version, list_gpus
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.node.diagnosis import holders
from oci_gpu_hook.node.diagnosis.holders import Share
from oci_gpu_hook.node.engines import containerdevices
from oci_gpu_hook.node.exporters import gpuexposition as report
from oci_gpu_hook.node.exporters import seengpus, unhealthy
from oci_gpu_hook.node.gpus import leased, nvml, readings
from oci_gpu_hook.node.gpus.kernellog import place
from oci_gpu_hook.node.machine import validated

if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot

_PCI_DEVICES = "/sys/bus/pci/devices"


def exposition(root: HostRoot, driver_root: str, seconds: float, most: int, *, remember: bool) -> str:
    """The metrics of a host as it is now; on stderr why NVML did not answer, or was not asked.

    seconds: how long NVML may take; most: the setting gpu-holders; remember: whether later calls are to
    know what this one has seen.
    """
    onhost.check_is_server(root)
    # Of a clock that nobody can set.
    began = time.monotonic()
    version, found = driver_version(root) or "", None
    try:
        found = survey.current(root, driver_root)
    except DriverError as err:
        if version:
            click.echo(f"oci-gpu-hook: {err.message}", err=True)
    said = _readings(root, found, seconds) if found else None
    node = report.Node(
        driver_version=version,
        gpus=found.gpus if found else list_gpus(root),
        nvml=said,
        seen={},
        xids=None,
        held=_held(root, driver_root, found) if found else (),
        fresh=saved_inventory.read_saved(root, proc.stamp(root, driver_root)) is not None,
        validation=validated.read(root),
        time=time.time(),
        duration=0,
    )
    there = {place(bus_id): uuid for bus_id, uuid in report.uuids(node).items()}
    seen = seengpus.renew(root, there, lambda pci: _is_taken(root, pci), remember=remember)
    if remember:
        unhealthy.renew(root, node.gpus, said)
    node = node._replace(counted=leased.look(root, found, most))
    took = time.monotonic() - began
    return report.exposition(node._replace(seen=seen.gpus, xids=seen.xids, duration=took))


def _readings(root: HostRoot, found: DriverInventory, seconds: float) -> readings.Readings | None:
    try:
        answer = readings.ask(nvml.library(root, found), seconds)
    except nvml.NvmlUnavailable as err:
        click.echo(f"oci-gpu-hook: {err}", err=True)
        return None
    # A library of another version knows nothing of this kernel module.
    return answer if answer.driver_version == found.driver_version else None


def _held(root: HostRoot, driver_root: str, found: DriverInventory) -> tuple[report.Held, ...]:
    """The GPUs and MIG devices that containers hold; none of a container whose device cgroup cannot be read."""
    with_nodes = saved_inventory.with_nodes(root, found, ("caps",), driver_root=driver_root)
    divided = holders.divisions(with_nodes)
    seen = containerdevices.look(root, holders.wanted(divided))
    rows = []
    for holder in [it for it in holders.holders(divided, seen.containers).holding if it.is_certain]:
        running = holder.container.running
        called = running.called
        # A user's container has the id that he likes: it may be that of another team's.
        id = "" if running.of_user else running.id
        who = (id, called.name, called.pod, called.namespace)
        for share in holder.held:
            if isinstance(share, Share):
                rows.append(report.Held(share.gpu, share.uuid if share.mig else "", *who))
    return tuple(rows)


def _is_taken(root: HostRoot, pci: str) -> bool:
    """Whether a GPU is there and another driver has it, or none: somebody has taken it from NVIDIA's on purpose."""
    folder = f"{_PCI_DEVICES}/{pci[4:]}.0"
    driver = root.link(f"{folder}/driver") or ""
    return root.stat(folder) is not None and driver.rpartition("/")[2] != "nvidia"
