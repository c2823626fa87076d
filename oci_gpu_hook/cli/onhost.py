# SPDX-License-Identifier: Apache-2.0
"""What a driver other than NVIDIA's module has on this host, as text and for JSON: a vendor's, a Jetson's, WSL's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.cli.render import aligned
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.planning import platforms
from oci_gpu_hook.vendors import platform, tegra

if TYPE_CHECKING:
    from typing import Any

    from oci_gpu_hook.cli.shown import Row
    from oci_gpu_hook.driver.nodes import DeviceNode
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.vendors.vendorhost import VendorState

# Those that have a description of their driver in the place of NVIDIA's kernel module.
PLATFORMS = (platform.TEGRA, platform.WSL)


def of_platform(root: HostRoot) -> tuple[dict[str, Any], str] | None:
    """What a Jetson or WSL 2 gives to containers, as a document and as text; None on a host that is neither.

    DriverError if it gives nothing.
    """
    kind, proof = platform.prove(root)
    if kind not in PLATFORMS:
        return None
    left_out: tuple[str, ...] = ()
    found = platforms.look(root, kind, everything=False)
    if kind == platform.TEGRA:
        _, left_out = tegra.vendor(root, everything=True)
        if root.remember:
            platforms.look(root, kind, everything=True)
    title = platforms.title(kind, found)
    said = {
        "platform": {"kind": kind, "proof": proof},
        "driver_version": title,
        **document(found),
        "left_out": list(left_out),
    }
    lines = [f"driver {title}, by {proof}", *_platform_text(found)]
    if left_out:
        lines += ["", "left out", *[f"  {sentence}" for sentence in left_out]]
    return said, "\n".join(lines)


def check_is_server(root: HostRoot) -> None:
    """DriverError on a Jetson and under WSL 2, for what only knows GPUs that NVIDIA's module drives."""
    kind = platform.look(root)
    if kind in PLATFORMS:
        raise DriverError(
            f"this host is {platform.NAMES[kind]}, and no GPU here is driven by NVIDIA's module",
            "containers ask by NVIDIA_VISIBLE_DEVICES; 'oci-gpu-hook info' shows what they get",
        )


def document(found: VendorState) -> dict[str, Any]:
    """What there is, for programs."""
    inventory = found.inventory
    return {
        "devices": [
            {"names": list(device.names), "nodes": [_node(node, group) for node, group in device.nodes]}
            for device in found.devices
        ],
        "common": [_node(node, group) for node, group in found.common],
        "libraries": [library._asdict() for library in (*inventory.libraries, *inventory.cached)],
        "files": [file._asdict() for file in inventory.files],
        "links": [link._asdict() for link in inventory.links],
        "lacking": found.lacking(),
        "faults": list(found.faults),
    }


def vendor_document(found: VendorState, hardware: str) -> dict[str, Any]:
    """One vendor, for programs; hardware: what shows that it is here, "" for nothing."""
    what = found.inventory
    return {
        "flag": what.flag,
        "kind": what.kind,
        "file": what.file,
        "version": what.version,
        "hardware": hardware,
        **document(found),
        "sockets": [path for path, _ in found.sockets],
        "environment": dict(what.environment),
        "selinux": {"type": what.selinux_type, "boolean": what.selinux_boolean},
        "absent": [*found.absent, *what.absent],
    }


def summary(found: VendorState) -> str:
    """The vendor on one line."""
    what = found.inventory
    return f"{what.flag}{what.version and ' '}{what.version}: {_counted(found)}"


def vendor_text(found: VendorState) -> list[str]:
    """The vendor in several lines: its devices by the names that ask for them, and what must be said of it."""
    what = found.inventory
    rows: list[Row] = [
        (item.names[0], " ".join(item.names[1:]), " ".join([node.path for node, _ in item.nodes]))
        for item in found.devices
    ]
    rows += [("-", "every request", node.path) for node in dict(found.common)]
    said = [f"environment that programs may need: {name}={value}" for name, value in what.environment]
    if what.selinux_type:
        said.append(f"SELinux: a container's process must be of type {what.selinux_type}")
    if what.selinux_boolean:
        said.append(f"SELinux: the boolean {what.selinux_boolean} must be on")
    said += [f"required: {sentence}" for sentence in found.lacking()]
    absent = (*found.absent, *what.absent)
    if absent:
        said.append(f"may be missing, and is: {', '.join(absent)}")
    kind = f" ({what.kind})" if what.kind else ""
    version = f", version {what.version}" if what.version else ""
    return [
        f"{what.flag}{kind}{version}, by {what.file}",
        *(aligned(rows) if rows else ["  no device"]),
        f"  {_counted(found)}",
        *[f"  {sentence}" for sentence in (*said, *found.faults)],
    ]


def _counted(found: VendorState) -> str:
    """How much of each is there."""
    what = found.inventory
    return counted(
        (len(found.devices), "device", "devices"),
        (len({node.path for node, _ in found.common}), "node of every request", "nodes of every request"),
        (len(what.libraries) + len(what.cached), "library", "libraries"),
        (len(what.files), "file or folder", "files and folders"),
        (len(found.sockets), "socket", "sockets"),
    )


def counted(*counts: tuple[int, str, str]) -> str:
    """Each number that is not 0, with the word for one or for many."""
    words = [f"{number} {one if number == 1 else many}" for number, one, many in counts if number]
    return ", ".join(words) or "nothing"


def _node(node: DeviceNode, group: str) -> dict[str, object]:
    return {"path": node.path, "major": node.major, "minor": node.minor, "mode": f"{node.mode:04o}", "group": group}


def _platform_text(found: VendorState) -> list[str]:
    """What a platform has, for people, below a title."""
    inventory = found.inventory
    nodes = [*found.common, *[item for device in found.devices for item in device.nodes]]
    tables: tuple[tuple[str, list[Row]], ...] = (
        (
            "device nodes",
            [
                (node.path, f"c {node.major}:{node.minor}", f"{node.mode:04o} {node.uid}:{node.gid}", group)
                for node, group in nodes
            ],
        ),
        (
            "libraries",
            [
                (library.path, library.soname, ", ".join(library.capabilities))
                for library in (*inventory.libraries, *inventory.cached)
            ],
        ),
        ("files and folders", [(file.path, ", ".join(file.capabilities)) for file in inventory.files]),
        ("links", [(link.path, f"-> {link.to}") for link in inventory.links]),
    )
    lines = [line for title, rows in tables if rows or title != "links" for line in ("", title, *aligned(rows))]
    for title, sentences in (("missing", found.lacking()), ("not trusted", found.faults)):
        if sentences:
            lines += ["", title, *[f"  {sentence}" for sentence in sentences]]
    return lines
