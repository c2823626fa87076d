# SPDX-License-Identifier: Apache-2.0
"""``info``: what this host has, and what its administrator has set."""

from __future__ import annotations

import errno
import os
from typing import Any

import click

from oci_gpu_hook.cli import accelerators, argumentfile
from oci_gpu_hook.cli.options import columns, config_and_host, output_format, show
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.survey import read_true
from oci_gpu_hook.errors import ConfigError, DriverError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import counted
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings, files, read_settings
from oci_gpu_hook.request.words import ALL, CAPABILITIES
from oci_gpu_hook.vendors import folders, vendorfile
from oci_gpu_hook.vendors.vendorinventory import LARGEST_FILE, Vendor

_VERSIONS = {"module": "of module {}", "file": "in {}", "text": "{}", "": ""}


@click.command()
@click.option("--all", "everything", is_flag=True, help="Show the device nodes and files that containers can get, too.")
@click.option("--saved", is_flag=True, help="Show what is saved for the hooks, as far as it is still true.")
@click.option("--settings", is_flag=True, help="Show each setting in force, and its file and line.")
@click.option("--vendors", is_flag=True, help="Show every vendor's file, and what is wrong with it.")
@click.option("--vendor", "file", metavar="FILE", help="Say what a vendor's file describes, or which key is wrong.")
@output_format
@config_and_host
def info(
    everything: bool,
    saved: bool,
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

    With --settings those for every container come first, then those below headings.

    With --vendors the column DEVICES is how many devices a request can name; 'all' if it can name none and gets what is
    there; 'none' if hardware is here without a node; '-' if none is here.  VERSION is the driver's.  FILE may lie
    anywhere; one in the vendors' folders is read as a container's start reads it.  It is wrong as well if another
    vendor's file has its flag or its kind.
    """
    if (file is not None) + vendors + settings > 1:
        raise UsageError("--settings, --vendors and --vendor exclude one another")
    if file is not None:
        show(is_json, *_check_vendor(host, file))
    elif vendors:
        show(is_json, *_list_vendors(host))
    elif settings:
        show(is_json, *_list_settings(config, host))
    else:
        driver_root = read_settings(config, None, host.path).driver_root
        nvidia, others = _saved if saved else hardware.nvidia, hardware.find_vendors(host, saved_only=saved)
        found = accelerators.find_accelerators(host, driver_root, others, lambda: nvidia(host, driver_root))
        show(is_json, accelerators.document(found), accelerators.text(found, everything=everything))


def _saved(host: HostRoot, driver_root: str) -> DriverInventory:
    found = read_true(host, driver_root)
    if found is None:
        raise DriverError("there is no saved inventory that is still true", "run 'oci-gpu-hook inventory refresh'")
    return found


def _list_settings(config: str | None, host: HostRoot) -> tuple[dict[str, Any], list[str]]:
    lines = settingsfile.read_files(files(config, host.path.rstrip("/")))
    rows = {key: _setting(key, value, "default") for key, value in Settings()._asdict().items() if key != "unmatched"}
    rows |= {key: _setting(key, line.value, line.where) for key, line in settingsfile.decisive(lines).items()}
    rules = [{line.scope: line.pattern, **_setting(line.field, line.value, line.where)} for line in lines if line.scope]
    shown, text, heading = [*rows.values(), *rules], [], ""
    for row, line in zip(shown, columns([(row["key"], text_of(row["value"]), row["from"]) for row in shown])):
        scope = next((word for word in settingsfile.SCOPES[1:] if word in row), "")
        under = f"[{scope} {row[scope]}]" if scope else ""
        text += ["", under, line] if under != heading else [line]
        heading = under
    return {"settings": [*rows.values()], "rules": rules}, text


def _setting(field: str, value: object, where: str) -> dict[str, Any]:
    return {"key": field.replace("_", "-"), "value": value, "from": where}


def text_of(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == CAPABILITIES:
        return ALL
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _list_vendors(host: HostRoot) -> tuple[dict[str, Any], list[str]]:
    found, errors = folders.load_all(host)
    replaced = folders.replaced(host)
    here = {}
    for it in hardware.find_vendors(host).vendors:
        said = {"hardware": hardware.proof(host, it), "version": it.inventory.version}
        here[it.inventory.file] = {**said, "devices": [list(device.names) for device in it.devices]}
    rows = [{**_vendor(it, replaced.get(it.file, "")), "here": here.get(it.file)} for it in found]
    document = {"vendors": rows, "errors": [*map(str, errors.values())], "collisions": folders.collisions(found)}
    return document, _vendors_text(document)


def _check_vendor(host: HostRoot, file: str) -> tuple[dict[str, Any], list[str]]:
    """What a file describes; ConfigError names the key in it that is wrong."""
    path = os.path.abspath(file)
    try:
        is_in_place = os.path.dirname(path) in folders.FOLDERS
        data = folders.content(host, path) if is_in_place else argumentfile.content(file, LARGEST_FILE)
    except OSError as err:
        error = UsageError if err.errno in (errno.ENOENT, errno.EINVAL) else ConfigError
        raise error(f"cannot read {quoted(file)}: {err.strerror}", "name a vendor's file") from err
    vendor = vendorfile.parse_vendor(data, file)
    others = [it for it in folders.load_all(host)[0] if os.path.basename(it.file) != os.path.basename(file)]
    if fault := folders.collisions([*others, vendor]).get(vendor.flag):
        raise ConfigError(f"{file}: {fault}", "give it another flag and kind, or that file's name, to take its place")
    return _vendor(vendor, ""), [f"{file}: {_summary(vendor)}"]


def _vendor(vendor: Vendor, replaces: str) -> dict[str, Any]:
    """The version as the file says it: the host is not looked at."""
    return {
        **{name: getattr(vendor, name) for name in ("flag", "kind", "file")},
        "version": _VERSIONS[vendor.source[0]].format(vendor.source[1]),
        "groups": [group.name for group in vendor.groups],
        "replaces": replaces,
    }


def _vendors_text(document: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("FLAG", "KIND", "DEVICES", "VERSION", "GROUPS", "FILE")]
    said = []
    for row in document["vendors"]:
        here = row["here"] or {"hardware": "", "version": "", "devices": []}
        count = str(len(here["devices"]) or ("all" if here["hardware"].startswith("/dev/") else "none"))
        count = count if here["hardware"] else ""
        cells = (row["flag"], row["kind"], count, here["version"], ",".join(row["groups"]), row["file"])
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
