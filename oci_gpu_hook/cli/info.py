# SPDX-License-Identifier: Apache-2.0
"""``info``: what this host has, and what its administrator has set."""

from __future__ import annotations

from typing import Any

import click

from oci_gpu_hook.cli import accelerators, vendorlist
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.cli.render import columns
from oci_gpu_hook.driver import inventory, proc
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import DriverError, UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import hardware, holdercount
from oci_gpu_hook.planning import placement
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.selectors import AnyOf
from oci_gpu_hook.request.settings import Settings, files, read_settings
from oci_gpu_hook.request.words import ALL, CAPABILITIES

# By how many of the other one it reaches by NVLink, and how many are of its NUMA node.
_WORDS = {(1, 1): "NVLink", (1, 0): "NVLink", (0, 1): "node", (0, 0): "-"}
_NVML = "NVLinks are not known, as NVML was not asked: run 'oci-gpu-hook inventory refresh'"


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
        show(is_json, *list_settings(config, host))
    elif topology:
        show(is_json, *describe_topology(host, read_settings(config, None)))
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


def describe_topology(host: HostRoot, settings: Settings) -> tuple[dict[str, Any], list[str]]:
    accelerators.check_is_server(host)
    found, most = hardware.nvidia(host, settings.driver_root), settings.gpu_holders
    gpus = placement.gpus(host, settings, AnyOf(2))
    counted = {it.key: it for it in holdercount.count_holders(host, found, most)}
    rows, document = [("GPU", *[gpu.held.name for gpu in gpus], "NUMA", "HOLDERS")], []
    for gpu in gpus:
        near = [_WORDS[placement.near(gpu, (other,))] if other is not gpu else "x" for other in gpus]
        holders, why = [lease.id for lease in counted[gpu.held.key].leases], counted[gpu.held.key].unhealthy
        said = f"{len(holders)} of {most}" if most else "not counted"
        node = str(gpu.node) if gpu.node >= 0 else "-"
        rows.append((gpu.held.name, *near, node, f"{said}, not healthy: {why}" if why else said))
        document.append(
            {
                **{"gpu": gpu.held.name, "address": gpu.held.address, "numa_node": gpu.node},
                "nvlinks": [other.held.name for other in gpus if other.held.key in gpu.peers],
                **{"holders": holders, "unhealthy": why},
            }
        )
    lines = columns(rows) if gpus else ["each GPU is divided into MIG devices, which are near to none"]
    is_asked = any([gpu.brand for gpu in found.gpus])
    return {"gpu_holders": most, "gpus": document}, [*lines, *([] if is_asked else [_NVML])]


def list_settings(config: str | None, host: HostRoot) -> tuple[dict[str, Any], list[str]]:
    lines = settingsfile.read_files(files(config, host.path.rstrip("/")))
    rows = {key: _setting(key, value, "default") for key, value in Settings()._asdict().items() if key != "unmatched"}
    rows |= {key: _setting(key, line.value, line.where) for key, line in settingsfile.decisive(lines).items()}
    rules = [{line.scope: line.pattern, **_setting(line.field, line.value, line.where)} for line in lines if line.scope]
    document = {"settings": [*rows.values()], "rules": rules}
    return document, _settings_text(document)


def _setting(field: str, value: object, where: str) -> dict[str, Any]:
    return {"key": field.replace("_", "-"), "value": value, "from": where}


def _settings_text(document: dict[str, Any]) -> list[str]:
    rows = document["settings"] + document["rules"]
    cells = [(row["key"], text_of(row["value"]), row["from"]) for row in rows]
    lines, heading = [], ""
    for row, text in zip(rows, columns(cells)):
        scope = next((word for word in settingsfile.SCOPES[1:] if word in row), "")
        under = f"[{scope} {row[scope]}]" if scope else ""
        if under != heading:
            lines += ["", under]
            heading = under
        lines.append(text)
    return lines


def text_of(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == CAPABILITIES:
        return ALL
    return ", ".join(value) if isinstance(value, tuple) else str(value)
