# SPDX-License-Identifier: Apache-2.0
"""What a host has of one vendor's, as text and for JSON.  Must not decide or look at anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.cli import onhost
from oci_gpu_hook.cli.render import aligned

if TYPE_CHECKING:
    from typing import Any

    from oci_gpu_hook.cli.shown import Row
    from oci_gpu_hook.node.gpus.present import Wrong
    from oci_gpu_hook.vendors.vendorhost import OnHost


def document(found: OnHost, hardware: str) -> dict[str, Any]:
    """One vendor; hardware: what shows that it is here, "" for nothing."""
    what = found.inventory
    return {
        "flag": what.flag,
        "kind": what.kind,
        "file": what.file,
        "version": what.version,
        "hardware": hardware,
        **onhost.document(found),
        "sockets": [path for path, _ in found.sockets],
        "environment": dict(what.environment),
        "selinux": {"type": what.selinux_type, "boolean": what.selinux_boolean},
        "lacking": lacking(found),
        "absent": [*found.devices.absent, *what.absent],
    }


def wrong_document(wrong: tuple[Wrong, ...]) -> list[dict[str, str]]:
    """The vendors' files that cannot be served."""
    return [{"file": item.file, "fault": item.fault} for item in wrong]


def lacking(found: OnHost) -> list[str]:
    """A sentence for each thing that the vendor's file requires and the host has not."""
    patterns = [f"{pattern} is missing" for pattern in found.devices.lacking]
    return [*found.unmet, *found.inventory.lacking, *patterns]


def title(found: OnHost) -> str:
    """The vendor's flag, kind and version, and its file."""
    what = found.inventory
    kind = f" ({what.kind})" if what.kind else ""
    version = f", version {what.version}" if what.version else ""
    return f"{what.flag}{kind}{version}, by {what.file}"


def summary(found: OnHost) -> str:
    """The vendor on one line."""
    what = found.inventory
    version = f" {what.version}" if what.version else ""
    return f"{what.flag}{version}: {counted(found)}"


def counted(found: OnHost) -> str:
    """How much of each is there."""
    what, devices = found.inventory, found.devices
    nodes = {node.path for node, _ in devices.common}
    counts = (
        (len(devices.devices), "device", "devices"),
        (len(nodes), "node of every request", "nodes of every request"),
        (len(what.libraries) + len(what.cached), "library", "libraries"),
        (len(what.files), "file or folder", "files and folders"),
        (len(found.sockets), "socket", "sockets"),
    )
    words = [f"{number} {one if number == 1 else many}" for number, one, many in counts if number]
    return ", ".join(words) or "nothing"


def text(found: OnHost) -> list[str]:
    """The vendor in several lines: its devices by the names that ask for them, and what must be said of it."""
    what, devices = found.inventory, found.devices
    rows: list[Row] = [
        (item.names[0], " ".join(item.names[1:]), " ".join([node.path for node, _ in item.nodes]))
        for item in devices.devices
    ]
    rows += [("-", "every request", node.path) for node in dict(devices.common)]
    said = [f"environment that programs may need: {name}={value}" for name, value in what.environment]
    if what.selinux_type:
        said.append(f"SELinux: a container's process must be of type {what.selinux_type}")
    if what.selinux_boolean:
        said.append(f"SELinux: the boolean {what.selinux_boolean} must be on")
    said += [f"required: {sentence}" for sentence in lacking(found)]
    absent = (*devices.absent, *what.absent)
    if absent:
        said.append(f"may be missing, and is: {', '.join(absent)}")
    said += [*what.faults, *found.faults]
    return [
        title(found),
        *(aligned(rows) if rows else ["  no device"]),
        f"  {counted(found)}",
        *[f"  {sentence}" for sentence in said],
    ]
