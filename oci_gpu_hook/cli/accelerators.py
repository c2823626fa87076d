# SPDX-License-Identifier: Apache-2.0
"""All accelerators of this host, as text and for JSON: both forms have all that is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from oci_gpu_hook.cli.options import Row, section, sentences
from oci_gpu_hook.driver.inventory import DriverInventory, Library, with_nodes
from oci_gpu_hook.driver.nodes import FAMILIES, DeviceNode
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import counted
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.planning import platforms
from oci_gpu_hook.vendors import platform, tegra
from oci_gpu_hook.vendors.vendorhost import VendorState

# Those that have a description of their driver in the place of NVIDIA's kernel module.
PLATFORMS = (platform.TEGRA, platform.WSL)
# The inventory of a host without NVIDIA's driver.
NOTHING = DriverInventory("", "", (), (), None, None, (), (), (), (), (), (), ())


def check_is_server(host: HostRoot) -> None:
    """DriverError on a Jetson and under WSL 2, for what only knows GPUs that NVIDIA's module drives."""
    kind = platform.platform_of(host)
    if kind in PLATFORMS:
        why = f"this host is {platform.NAMES[kind]}, and no GPU here is driven by NVIDIA's module"
        hint = "containers ask by NVIDIA_VISIBLE_DEVICES; 'oci-gpu-hook info --all' shows what they get"
        raise DriverError(why, hint)


def of_server(host: HostRoot, driver_root: str, families: tuple[str, ...]) -> DriverInventory:
    """What only NVML knows is of the saved inventory.  DriverError without a driver, and on a Jetson and WSL 2."""
    check_is_server(host)
    return with_nodes(host, hardware.nvidia(host, driver_root), families, driver_root=driver_root)


class Accelerators(NamedTuple):
    """nvidia: None if `error` says why; platform: as `platform.prove`; instead: what a Jetson or WSL 2 has, a document,
    lines and further lines; vendors: those of which there is anything, each with what shows that its hardware is here.
    """

    nvidia: DriverInventory | None
    error: DriverError | None
    platform: tuple[str, str]
    instead: tuple[dict[str, object], list[str], list[str]] | None
    vendors: tuple[tuple[VendorState, str], ...]
    wrong: tuple[hardware.WrongFile, ...]

    def here(self) -> tuple[VendorState, ...]:
        return tuple([item for item, proof in self.vendors if proof])


def find_accelerators(
    host: HostRoot, driver_root: str, others: hardware.FoundVendors, nvidia: Callable[[], DriverInventory] | None
) -> Accelerators:
    """nvidia: its inventory without nodes, DriverError if there is nothing at all; None leaves its driver out."""
    named = [(it, it.inventory, hardware.proof(host, it)) for it in others.vendors]
    vendors = [(it, by) for it, its, by in named if by or it.sockets or its.libraries or its.cached or its.files]
    found = Accelerators(None, None, platform.prove(host), None, tuple(vendors), others.wrong)
    try:
        instead = _of_platform(host, *found.platform)
        if instead or not nvidia:
            return found._replace(instead=instead)
        return found._replace(nvidia=with_nodes(host, nvidia(), FAMILIES, driver_root=driver_root))
    except DriverError as err:
        # A vendor's file that is wrong may be that of the hardware that is here.
        if nvidia and not found.here() and not found.wrong:
            raise
        return found._replace(error=err)


def document(found: Accelerators) -> dict[str, Any]:
    """The host for JSON: but for a Jetson and WSL 2, the keys of NVIDIA's inventory are there in any case."""
    inventory = found.nvidia or NOTHING._replace(unknown=(found.error.message,) if found.error else ())
    nvidias = {**inventory._asdict(), "proc_files": [name for name, _ in inventory.proc_files]}
    return {
        "platform": dict(zip(("kind", "proof"), found.platform)),
        **(found.instead[0] if found.instead else nvidias),
        "vendors": [_vendor_document(item, proof) for item, proof in found.vendors],
        "wrong": [{"file": item.file, "fault": item.fault} for item in found.wrong],
    }


def text(found: Accelerators, *, everything: bool) -> list[str]:
    """everything: with device nodes, files, and vendors' files without hardware."""
    lines = [f"no driver of NVIDIA's: {found.error.message}"] if found.error else []
    lines += _inventory_text(found.nvidia, everything) if found.nvidia else []
    lines += [*found.instead[1], *(found.instead[2] if everything else ())] if found.instead else []
    lines += [line for item in found.here() for line in _vendor_text(item)]
    unused = [summary(item) for item, proof in found.vendors if everything and not proof]
    return [*lines, *sentences("files of vendors without hardware here", unused), *wrong_lines(found.wrong)]


def wrong_lines(wrong: tuple[hardware.WrongFile, ...]) -> list[str]:
    return sentences("vendors' files that cannot be served", [item.fault for item in wrong])


def summary(found: VendorState) -> str:
    what = found.inventory
    return f"{what.flag}{what.version and ' '}{what.version}: {_counted(found)}"


def _of_platform(host: HostRoot, kind: str, proof: str) -> tuple[dict[str, Any], list[str], list[str]] | None:
    """As `Accelerators.instead`; None on a host that is neither; DriverError if it gives nothing."""
    if kind not in PLATFORMS:
        return None
    found = platforms.platform_state(host, kind, everything=False)
    left_out = tegra.vendor(host, everything=True)[1] if kind == platform.TEGRA else ()
    if kind == platform.TEGRA and host.remember:
        platforms.platform_state(host, kind, everything=True)
    title = platforms.title(kind, found)
    said = {"driver_version": title, **_document(found), "left_out": left_out}
    faults = [*sentences("missing", found.lacking()), *sentences("not trusted", found.faults)]
    inventory = found.inventory
    given = [*found.common, *[item for device in found.devices for item in device.nodes]]
    more = [
        *_given([(*_node_row(node), group) for node, group in given], (*inventory.libraries, *inventory.cached)),
        *section("files and folders", [(it.path, ", ".join(it.capabilities)) for it in inventory.files], "none"),
        *section("links", [(path, f"-> {text}") for path, text in inventory.links]),
        *sentences("left out", left_out),
    ]
    return said, [f"driver {title}, by {proof}", *faults], more


def _given(nodes: list[Row], libraries: tuple[Library, ...]) -> list[str]:
    rows = [(it.path, it.soname, ", ".join(it.capabilities)) for it in libraries]
    return [*section("device nodes", nodes, "none"), *section("libraries", rows, "none")]


def _node_row(node: DeviceNode) -> Row:
    how = f"{node.mode:04o} {node.uid}:{node.gid}" if node.present else "not made on the host yet"
    return (node.path, f"c {node.major}:{node.minor}", how)


def _document(found: VendorState) -> dict[str, Any]:
    inventory = found.inventory
    return {
        "devices": [{"names": it.names, "nodes": [_node(*node) for node in it.nodes]} for it in found.devices],
        "common": [_node(*item) for item in found.common],
        "libraries": (*inventory.libraries, *inventory.cached),
        "files": inventory.files,
        "links": [{"path": path, "to": text} for path, text in inventory.links],
        "lacking": found.lacking(),
        "faults": found.faults,
    }


def _vendor_document(found: VendorState, proof: str) -> dict[str, Any]:
    what = found.inventory
    return {
        **{name: getattr(what, name) for name in ("flag", "kind", "file", "version")},
        "hardware": proof,
        **_document(found),
        "needed": what.needed,
        "unclaimed": found.unclaimed,
        "sockets": [path for path, _ in found.sockets],
        "environment": dict(what.environment),
        "selinux": {"type": what.selinux_type, "boolean": what.selinux_boolean},
        "absent": [*found.absent, *what.absent],
    }


def _node(node: DeviceNode, group: str) -> dict[str, object]:
    return {"path": node.path, "major": node.major, "minor": node.minor, "mode": node.mode, "group": group}


def _vendor_text(found: VendorState) -> list[str]:
    what = found.inventory
    paths = [" ".join([node.path for node, _ in item.nodes]) for item in found.devices]
    rows: list[Row] = [(it.names[0], " ".join(it.names[1:]), path) for it, path in zip(found.devices, paths)]
    rows += [("-", "every request", node.path) for node in dict(found.common)]
    said = [f"environment that programs may need: {name}={value}" for name, value in what.environment]
    said += [f"SELinux: a container's process must be of type {what.selinux_type}"] if what.selinux_type else []
    said += [f"SELinux: the boolean {what.selinux_boolean} must be on"] if what.selinux_boolean else []
    said += [f"required: {sentence}" for sentence in found.lacking()]
    said += [f"of no device: {', '.join(found.unclaimed)}"] if found.unclaimed else []
    said += [f"needed, where an image has none: {', '.join([it.soname for it in what.needed])}"] if what.needed else []
    absent = (*found.absent, *what.absent)
    said += [f"may be missing, and is: {', '.join(absent)}"] if absent else []
    kind = f" ({what.kind})" if what.kind else ""
    version = f", version {what.version}" if what.version else ""
    return [
        *section(f"{what.flag}{kind}{version}, by {what.file}", rows, "no device"),
        f"  {_counted(found)}",
        *[f"  {sentence}" for sentence in (*said, *found.faults)],
    ]


def _counted(found: VendorState) -> str:
    what = found.inventory
    return counted(
        (len(found.devices), "device", "devices"),
        (len({node.path for node, _ in found.common}), "node of every request", "nodes of every request"),
        (len(what.libraries) + len(what.cached), "library", "libraries"),
        (len(what.files), "file or folder", "files and folders"),
        (len(found.sockets), "socket", "sockets"),
    )


def _inventory_text(inventory: DriverInventory, everything: bool) -> list[str]:
    cuda = f", CUDA {inventory.cuda_version}" if inventory.cuda_version else ""
    gpus: list[Row] = []
    for it in inventory.gpus:
        kind = f"{it.brand} {it.compute_capability}".strip()
        gpus.append((str(it.nvml_index), it.bus_id, f"minor {it.minor}", it.uuid or "(no UUID yet)", it.model, kind))
    mig: list[Row] = []
    for part in inventory.mig_devices:
        name = f"{part.gpu}:{'?' if part.number is None else part.number}"
        uuid = part.uuid or "(only NVML knows its UUID)"
        minors = f"minors {part.gi_minor},{part.ci_minor}"
        mig.append((name, f"instances {part.gi}/{part.ci}", minors, uuid, part.profile))
    lines = [f"driver {inventory.driver_version}{cuda}", *section(f"GPUs ({len(gpus)})", gpus, "none")]
    lines += section("MIG devices", mig)
    if everything:
        files: list[Row] = [(it.path, ", ".join(it.capabilities)) for it in (*inventory.binaries, *inventory.files)]
        files += [(it.source, it.capability) for it in inventory.ipc_paths]
        lines += _given([_node_row(node) for node in inventory.devices], inventory.libraries)
        lines += section("files and sockets", files, "none")
        lines += section("firmware", [(file.path,) for file in inventory.firmware], "none")
    misfits = [(misfit.name, misfit.found or "missing", misfit.capability) for misfit in inventory.misfits]
    return [
        *lines,
        *section("not of the driver's version", misfits),
        *sentences("not listed by NVML", inventory.unlisted),
        *sentences("without a node in this container", inventory.elsewhere),
        *sentences("not known", inventory.unknown),
    ]
