# SPDX-License-Identifier: Apache-2.0
"""``info --vendors``: which accelerators the vendors' files describe, and what is wrong with a file."""

from __future__ import annotations

import errno
import os
from typing import Any

from oci_gpu_hook.cli import argumentfile, render
from oci_gpu_hook.errors import ConfigError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import counted
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.vendors import folders, vendorfile
from oci_gpu_hook.vendors.vendorhost import VendorState
from oci_gpu_hook.vendors.vendorinventory import LARGEST_FILE, Vendor

_HEADINGS: tuple[str, ...] = ("FLAG", "KIND", "DEVICES", "VERSION", "GROUPS", "FILE")
_VERSIONS = {"module": "of module {}", "file": "in {}", "text": "{}", "": ""}


def listing(host: HostRoot) -> tuple[dict[str, Any], list[str]]:
    found, errors = folders.load_all(host)
    replaced = folders.replaced(host)
    here = {item.inventory.file: _here(host, item) for item in hardware.find_vendors(host).vendors}
    rows = [{**_row(it, replaced.get(it.file, "")), "here": here.get(it.file)} for it in found]
    document: dict[str, Any] = {
        "vendors": rows,
        "errors": [str(err) for err in errors.values()],
        "collisions": folders.collisions(found),
    }
    return document, _as_text(document)


def check(host: HostRoot, file: str) -> tuple[dict[str, Any], list[str]]:
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
    _check_flag(host, vendor)
    lines = [f"{file}: {_summary(vendor)}", *[f"note: {note}" for note in notes]]
    return {**_row(vendor, ""), "notes": notes}, lines


def _row(vendor: Vendor, replaces: str) -> dict[str, Any]:
    """The version as the file says it: the host is not looked at."""
    return {
        "flag": vendor.flag,
        "kind": vendor.kind,
        "version": _VERSIONS[vendor.source.kind].format(vendor.source.value),
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


def _as_text(document: dict[str, Any]) -> list[str]:
    rows, said = [_HEADINGS], []
    for row in document["vendors"]:
        count, version = (_count(row["here"]), row["here"]["version"]) if row["here"] else ("", "")
        cells = (row["flag"], row["kind"], count, version, ",".join(row["groups"]), row["file"])
        rows.append(tuple([cell or "-" for cell in cells]))
        if row["replaces"]:
            said.append(f"{row['file']} has taken the place of {row['replaces']}")
    said += [f"wrong: {error}" for error in document["errors"]]
    said += [f"collision: {sentence}" for sentence in document["collisions"].values()]
    lines = render.columns(rows) if document["vendors"] else [f"no vendor's file in {' or '.join(folders.FOLDERS)}"]
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


def _check_flag(host: HostRoot, vendor: Vendor) -> None:
    """ConfigError if a file of the host has this flag that this one would not take the place of."""
    name = os.path.basename(vendor.file)
    for other in folders.load_all(host)[0]:
        if other.flag == vendor.flag and os.path.basename(other.file) != name:
            raise ConfigError(
                f"{vendor.file}: {vendor.flag} is the flag of {other.file} too",
                "write another flag, or give it that file's name to take its place",
            )
