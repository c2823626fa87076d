# SPDX-License-Identifier: Apache-2.0
"""``info``: what this host has, and what its administrator has set."""

from __future__ import annotations

import click

from oci_gpu_hook.cli import accelerators, settingslist, vendorlist
from oci_gpu_hook.cli import topology as gpu_topology
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.driver import inventory, proc
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import DriverError, UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.request.settings import read_settings


@click.command()
@click.option("--all", "everything", is_flag=True, help="Show the device nodes and files that containers can get, too.")
@click.option("--saved", is_flag=True, help="Show what is saved for the hooks, as far as it is still true.")
@click.option("--topology", is_flag=True, help="Show how near the GPUs are to one another.")
@click.option("--settings", is_flag=True, help="Show each setting in force, and its file and line.")
@click.option("--vendors", is_flag=True, help="Show every vendor's file, and what is wrong with it.")
@click.option("--vendor", "file", metavar="FILE", help="Say what a vendor's file describes, or which key is wrong.")
@output_format
@config_file
@host_root
def info(
    everything: bool,
    saved: bool,
    topology: bool,
    settings: bool,
    vendors: bool,
    file: str | None,
    is_json: bool,
    config: str | None,
    host: HostRoot,
) -> None:
    """Show NVIDIA's driver, its GPUs and MIG devices, and what there is of other vendors, as it is now.

    What only NVML knows comes from the saved inventory, if that is still true.  On a Jetson and in WSL 2, it shows what
    proves the platform.  For another vendor, it shows the devices with the names that ask for them, what its file
    requires and the host has not, and what may be missing and is.  --json prints all that --all shows.

    With --topology each cell says how near two GPUs are, as the choice for any:2 counts it: 'NVLink' reaches the other
    one, 'node' has the same NUMA node, '-' neither.  HOLDERS is how many containers hold the GPU, if gpu-holders is
    set.  GPUs that MIG divides are left out.

    With --settings those for every container come first, then those below headings.

    With --vendors the column DEVICES is how many devices a request can name; 'all' if it can name none and gets what is
    there; 'none' if hardware is here without a node; '-' if none is here.  VERSION is the driver's.  The files lie in
    /etc/oci-gpu-hook/vendors, /usr/local/share/oci-gpu-hook/vendors and /usr/share/oci-gpu-hook/vendors.  If several
    have one name, that in the folder named first counts.  FILE may lie anywhere; one in these folders is read as a
    container's start reads it.  It is wrong as well if another vendor's file has its flag.
    """
    if (file is not None) + vendors + settings + topology > 1:
        raise UsageError("--topology, --settings, --vendors and --vendor exclude one another")
    if file is not None:
        show(is_json, *vendorlist.check(host, file))
    elif vendors:
        show(is_json, *vendorlist.listing(host))
    elif settings:
        show(is_json, *settingslist.list_settings(config, host))
    elif topology:
        show(is_json, *gpu_topology.describe_topology(host, read_settings(config, None)))
    else:
        driver_root = read_settings(config, None).driver_root
        nvidia, others = _saved if saved else hardware.nvidia, hardware.find_vendors(host, saved_only=saved)
        found = accelerators.find_accelerators(host, driver_root, others, lambda: nvidia(host, driver_root))
        show(is_json, accelerators.document(found), accelerators.text(found, everything=everything))


def _saved(host: HostRoot, driver_root: str) -> DriverInventory:
    found = inventory.read_saved(host, proc.stamp(host, driver_root))
    if found is None:
        hint = "run 'oci-gpu-hook inventory refresh'"
        raise DriverError("there is no saved inventory, or it is no longer true", hint)
    return found
