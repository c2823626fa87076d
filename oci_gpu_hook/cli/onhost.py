# SPDX-License-Identifier: Apache-2.0
"""What a vendor's driver has on this host, for people and programs: of a file, of a Jetson, of WSL 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.cli.render import aligned
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.planning import platforms
from oci_gpu_hook.vendors import platform, tegra

if TYPE_CHECKING:
    from oci_gpu_hook.cli.shown import Row
    from oci_gpu_hook.driver.nodes import DeviceNode
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.vendors.vendorhost import OnHost

# Those that have a description of their driver in the place of NVIDIA's kernel module.
PLATFORMS = (platform.TEGRA, platform.WSL)


def of_platform(root: HostRoot) -> tuple[dict[str, object], str] | None:
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
    lines = [f"driver {title}, by {proof}", *_text(found)]
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


def document(found: OnHost) -> dict[str, object]:
    """What there is, for programs."""
    inventory = found.inventory
    return {
        "devices": [
            {"names": list(device.names), "nodes": [_node(node, group) for node, group in device.nodes]}
            for device in found.devices.devices
        ],
        "common": [_node(node, group) for node, group in found.devices.common],
        "libraries": [library._asdict() for library in (*inventory.libraries, *inventory.cached)],
        "files": [file._asdict() for file in inventory.files],
        "links": [link._asdict() for link in inventory.links],
        "lacking": [*found.unmet, *inventory.lacking, *found.devices.lacking],
        "faults": [*inventory.faults, *found.faults],
    }


def _node(node: DeviceNode, group: str) -> dict[str, object]:
    return {"path": node.path, "major": node.major, "minor": node.minor, "mode": f"{node.mode:04o}", "group": group}


def _text(found: OnHost) -> list[str]:
    """What there is, for people, below a title."""
    inventory = found.inventory
    nodes = [*found.devices.common, *[item for device in found.devices.devices for item in device.nodes]]
    rows: list[Row] = [
        (node.path, f"c {node.major}:{node.minor}", f"{node.mode:04o} {node.uid}:{node.gid}", group)
        for node, group in nodes
    ]
    lines = ["", "device nodes", *aligned(rows)]
    libraries: list[Row] = [
        (library.path, library.soname, ", ".join(library.capabilities))
        for library in (*inventory.libraries, *inventory.cached)
    ]
    lines += ["", "libraries", *aligned(libraries)]
    files: list[Row] = [(file.path, ", ".join(file.capabilities)) for file in inventory.files]
    lines += ["", "files and folders", *aligned(files)]
    if inventory.links:
        lines += ["", "links", *aligned([(link.path, f"-> {link.to}") for link in inventory.links])]
    lacking = [*found.unmet, *inventory.lacking, *found.devices.lacking]
    for title, sentences in (("missing", lacking), ("not trusted", [*inventory.faults, *found.faults])):
        if sentences:
            lines += ["", title, *[f"  {sentence}" for sentence in sentences]]
    return lines
