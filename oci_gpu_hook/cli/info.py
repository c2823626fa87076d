# SPDX-License-Identifier: Apache-2.0
"""``info``: what this host has, and what its administrator has set."""

from __future__ import annotations

import errno
import os
from typing import Any

import click

from oci_gpu_hook.cli import accelerators, argumentfile
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.cli.render import columns
from oci_gpu_hook.driver import inventory, proc
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import ConfigError, DriverError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import counted
from oci_gpu_hook.node.gpus import hardware, holdercount
from oci_gpu_hook.planning import placement
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.selectors import AnyOf
from oci_gpu_hook.request.settings import Settings, files, read_settings
from oci_gpu_hook.request.words import ALL, CAPABILITIES
from oci_gpu_hook.vendors import folders, vendorfile
from oci_gpu_hook.vendors.vendorhost import VendorState
from oci_gpu_hook.vendors.vendorinventory import LARGEST_FILE, Vendor

# By how many of the other one it reaches by NVLink, and how many are of its NUMA node.
_WORDS = {(1, 1): "NVLink", (1, 0): "NVLink", (0, 1): "node", (0, 0): "-"}
_NVML = "NVLinks are not known, as NVML was not asked: run 'oci-gpu-hook inventory refresh'"
_VERSIONS = {"module": "of module {}", "file": "in {}", "text": "{}", "": ""}


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
    container's start reads it.  It is wrong as well if another vendor's file has its flag or its
    kind.
    """
    if (file is not None) + vendors + settings + topology > 1:
        raise UsageError("--topology, --settings, --vendors and --vendor exclude one another")
    if file is not None:
        show(is_json, *_check_vendor(host, file))
    elif vendors:
        show(is_json, *_list_vendors(host))
    elif settings:
        show(is_json, *_list_settings(config, host))
    elif topology:
        show(is_json, *_describe_topology(host, read_settings(config, None)))
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


def _describe_topology(host: HostRoot, settings: Settings) -> tuple[dict[str, Any], list[str]]:
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


def _list_settings(config: str | None, host: HostRoot) -> tuple[dict[str, Any], list[str]]:
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


def _list_vendors(host: HostRoot) -> tuple[dict[str, Any], list[str]]:
    found, errors = folders.load_all(host)
    replaced = folders.replaced(host)
    here = {item.inventory.file: _here(host, item) for item in hardware.find_vendors(host).vendors}
    rows = [{**_vendor(it, replaced.get(it.file, "")), "here": here.get(it.file)} for it in found]
    document: dict[str, Any] = {
        "vendors": rows,
        "errors": [str(err) for err in errors.values()],
        "collisions": folders.collisions(found),
    }
    return document, _vendors_text(document)


def _check_vendor(host: HostRoot, file: str) -> tuple[dict[str, Any], list[str]]:
    """What a file describes; ConfigError names the key in it that is wrong."""
    path = os.path.abspath(file)
    notes = []
    if os.path.dirname(path) in folders.FOLDERS:
        data = folders.content(host, path)
    else:
        try:
            data = argumentfile.content(file, LARGEST_FILE)
        except OSError as err:
            error = UsageError if err.errno in (errno.ENOENT, errno.EINVAL) else ConfigError
            raise error(f"cannot read {quoted(file)}: {err.strerror}", "name a vendor's file") from err
        notes = _notes(path)
    vendor = vendorfile.parse_vendor(data, file)
    others = [it for it in folders.load_all(host)[0] if os.path.basename(it.file) != os.path.basename(file)]
    if fault := folders.collisions([*others, vendor]).get(vendor.flag):
        raise ConfigError(f"{file}: {fault}", "give it another flag and kind, or that file's name, to take its place")
    lines = [f"{file}: {_summary(vendor)}", *[f"note: {note}" for note in notes]]
    return {**_vendor(vendor, ""), "notes": notes}, lines


def _vendor(vendor: Vendor, replaces: str) -> dict[str, Any]:
    """The version as the file says it: the host is not looked at."""
    return {
        "flag": vendor.flag,
        "kind": vendor.kind,
        "version": _VERSIONS[vendor.source[0]].format(vendor.source[1]),
        "groups": [group.name for group in vendor.groups],
        "file": vendor.file,
        "replaces": replaces,
    }


def _here(host: HostRoot, found: VendorState) -> dict[str, Any]:
    return {
        "hardware": hardware.proof(host, found),
        "version": found.inventory.version,
        "devices": [list(device.names) for device in found.devices],
    }


def _count(here: dict[str, Any]) -> str:
    if not here["hardware"]:
        return ""
    return str(len(here["devices"]) or ("all" if here["hardware"].startswith("/dev/") else "none"))


def _vendors_text(document: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("FLAG", "KIND", "DEVICES", "VERSION", "GROUPS", "FILE")]
    said = []
    for row in document["vendors"]:
        count, version = (_count(row["here"]), row["here"]["version"]) if row["here"] else ("", "")
        cells = (row["flag"], row["kind"], count, version, ",".join(row["groups"]), row["file"])
        rows.append(tuple([cell or "-" for cell in cells]))
        if row["replaces"]:
            said.append(f"{row['file']} has taken the place of {row['replaces']}")
    said += [f"wrong: {error}" for error in document["errors"]]
    said += [f"collision: {sentence}" for sentence in document["collisions"].values()]
    lines = columns(rows) if document["vendors"] else [f"no vendor's file in {' or '.join(folders.FOLDERS)}"]
    return [*lines, *([""] if said else []), *said]


def _summary(vendor: Vendor) -> str:
    words = (("device", "devices"), ("library", "libraries"), ("file", "files"), ("socket", "sockets"))
    said = counted(*[(sum([len(getattr(group, many)) for group in vendor.groups]), one, many) for one, many in words])
    kind = f" ({vendor.kind})" if vendor.kind else ""
    return f"{vendor.flag}{kind} gets {', '.join([group.name for group in vendor.groups])}: {said}"


def _notes(path: str) -> list[str]:
    notes = [f"it is read only in {folders.ADMINISTRATORS}"]
    if fault := (HostRoot().source(os.path.realpath(path)) or (False, ""))[1]:
        notes.append(f"it must be root's alone there: now {fault}")
    name = os.path.basename(path)
    if not name.endswith(folders.SUFFIX) or name.startswith("."):
        notes.append(f"its name must end in {folders.SUFFIX}, and not begin with a dot")
    return notes
