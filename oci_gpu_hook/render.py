# SPDX-License-Identifier: Apache-2.0
"""A plan and an inventory for reading: as aligned text, and as the JSON of the documented form.  Pure.

Must not decide or leave out anything: what stands in the value stands in both forms.  Never on the hook's path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook import oci
from oci_gpu_hook.ldmerge import entries_of
from oci_gpu_hook.operations import (
    Device,
    DeviceAllow,
    LdCache,
    Mount,
    Relabel,
    Symlink,
    Tmpfs,
)
from oci_gpu_hook.request import CAPABILITIES
from oci_gpu_hook.sources import FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from oci_gpu_hook.host.inventory import DriverInventory, MigDevice
    from oci_gpu_hook.operations import Operation
    from oci_gpu_hook.plan import Plan
    from oci_gpu_hook.request import Request

Row = tuple[str, ...]


def plan_document(plan: Plan, left_out: Iterable[str] = ()) -> dict[str, object]:
    """The plan as one JSON object: container, request, driver, operations in order of execution, notes.

    left_out: what the host has and the container does not get, see `leftout`.
    """
    request = plan.request
    return {
        "container": {
            "id": plan.container.id,
            "bundle": plan.container.bundle,
            "rootfs": plan.container.rootfs,
        },
        "request": None
        if request is None
        else {
            "source": request.source,
            "devices": list(request.devices),
            "capabilities": list(request.capabilities),
            "requirements": list(request.requirements),
            "imex_channels": list(request.imex_channels),
            "features": list(request.features),
            "mig_config": request.mig_config,
            "mig_monitor": request.mig_monitor,
        },
        "driver": {"version": plan.driver_version} if request else None,
        "label": plan.label,
        "operations": [_operation(operation) for operation in plan.operations],
        "notes": list(plan.notes),
        "left_out": list(left_out),
    }


def no_request_document(
    container_id: str, bundle: str, rootfs: str, notes: Iterable[str]
) -> dict[str, object]:
    """The document for a container that asks for no GPU: the same keys, nothing to do."""
    return {
        "container": {"id": container_id, "bundle": bundle, "rootfs": rootfs},
        "request": None,
        "driver": None,
        "label": "",
        "operations": [],
        "notes": list(notes),
        "left_out": [],
    }


def plan_text(plan: Plan, left_out: Iterable[str] = ()) -> str:
    """The plan for a person: grouped by kind, aligned, the reason beside each operation."""
    container, request = plan.container, plan.request
    lines = [
        f"container  {container.id or '(no id)'}",
        f"bundle     {container.bundle}",
        f"rootfs     {container.rootfs} ({container.loader}, libraries in {container.library_folder})",
    ]
    if request is not None:
        lines.append(f"request    devices {','.join(request.devices)} (from {request.source})")
        lines.append(f"           capabilities {','.join(request.capabilities)}")
        lines += [f"           {words}" for words in _further(request)]
        lines.append(f"driver     {plan.driver_version}")
    else:
        lines.append("request    none")
    if plan.label:
        lines.append(f"label      {plan.label}")
    for title, rows in _groups(plan.operations):
        lines += ["", title, *_aligned(rows)]
    notes = [*plan.notes, *left_out]
    if notes:
        lines += ["", "left out", *[f"  {note}" for note in notes]]
    return "\n".join(lines)


def _further(request: Request) -> list[str]:
    """What a request can ask for beside devices and capabilities."""
    lines = [f"requires {expression}" for expression in request.requirements]
    if request.imex_channels:
        lines.append(f"IMEX channels {','.join(request.imex_channels)}")
    if request.features:
        lines.append(f"features {','.join(request.features)}")
    for asked, what in ((request.mig_config, "configure"), (request.mig_monitor, "monitor")):
        if asked:
            lines.append(f"may {what} MIG")
    return lines


def inventory_document(inventory: DriverInventory) -> dict[str, object]:
    """The inventory as one JSON object, fields by name."""
    document: dict[str, object] = {}
    for field, value in inventory._asdict().items():
        document[field] = [_plain(item) for item in value] if isinstance(value, tuple) else value
    document["proc_files"] = [name for name, _ in inventory.proc_files]
    document["devices"] = [
        {**node._asdict(), "mode": f"{node.mode:04o}"} for node in inventory.devices
    ]
    return document


def _plain(item: Any) -> object:
    return item._asdict() if hasattr(item, "_asdict") else item


def inventory_text(inventory: DriverInventory) -> str:
    """The inventory for a person."""
    cuda = f", CUDA {inventory.cuda_version}" if inventory.cuda_version else ""
    lines = [f"driver {inventory.driver_version}{cuda}"]
    gpus: list[Row] = [
        (
            str(gpu.nvml_index),
            gpu.bus_id,
            f"minor {gpu.minor}",
            gpu.uuid or "(no UUID yet)",
            gpu.model,
            f"{gpu.brand} {gpu.compute_capability}".strip(),
        )
        for gpu in inventory.gpus
    ]
    lines += ["", f"GPUs ({len(gpus)})", *_aligned(gpus)]
    if inventory.mig_devices:
        lines += ["", "MIG devices", *_aligned([_mig_row(item) for item in inventory.mig_devices])]
    nodes: list[Row] = [
        (node.path, f"c {node.major}:{node.minor}", f"{node.mode:04o} {node.uid}:{node.gid}")
        if node.present
        else (node.path, f"c {node.major}:{node.minor}", "not made on the host yet")
        for node in inventory.devices
    ]
    lines += ["", "device nodes", *_aligned(nodes)]
    for word in (*CAPABILITIES, *[feature for feature, _ in FEATURES]):
        rows = _files_of(word, inventory)
        if rows:
            lines += ["", f"capability {word}", *_aligned(rows)]
    lines += ["", "firmware", *_aligned([(file.path,) for file in inventory.firmware])]
    if inventory.misfits:
        misfits: list[Row] = [
            (misfit.name, misfit.found or "missing", misfit.capability)
            for misfit in inventory.misfits
        ]
        lines += ["", "not of the driver's version", *_aligned(misfits)]
    if inventory.unknown:
        lines += ["", "not known", *[f"  {sentence}" for sentence in inventory.unknown]]
    return "\n".join(lines)


def _mig_row(device: MigDevice) -> Row:
    return (
        f"{device.gpu}:{'?' if device.number is None else device.number}",
        f"instances {device.gi}/{device.ci}",
        f"minors {device.gi_minor},{device.ci_minor}",
        device.uuid or "(only NVML knows its UUID)",
        device.profile,
    )


def _files_of(word: str, inventory: DriverInventory) -> list[Row]:
    """What a capability or feature brings; compat32, the 32-bit twins of what the others do."""
    if word == "compat32":
        return [(item.path, item.soname) for item in inventory.libraries if item.bits == 32]
    rows: list[Row] = [
        (library.path, library.soname)
        for library in inventory.libraries
        if word in library.capabilities and library.bits == 64
    ]
    files = (*inventory.binaries, *inventory.files)
    rows += [(file.path, "") for file in files if word in file.capabilities]
    rows += [(ipc.source, "") for ipc in inventory.ipc_paths if ipc.capability == word]
    return rows


def _groups(operations: tuple[Operation, ...]) -> list[tuple[str, list[Row]]]:
    """Consecutive operations of one kind, each group under its title: the order stays that of execution."""
    groups: list[tuple[str, list[Row]]] = []
    for operation in operations:
        title, rows = _rows(operation)
        if groups and groups[-1][0] == title:
            groups[-1][1].extend(rows)
        else:
            groups.append((title, rows))
    return groups


def _rows(operation: Operation) -> tuple[str, list[Row]]:
    """The group's title and the operation's lines."""
    optional = "" if operation.required else " (optional)"
    reason = operation.reason + optional
    if isinstance(operation, Mount):
        return f"mounts, {','.join(operation.options)}", [
            (operation.target, _origin(operation), reason)
        ]
    if isinstance(operation, Device):
        number = f"{operation.type} {operation.major}:{operation.minor}"
        how = f"bound from {operation.source}" if operation.source else f"{operation.mode:04o}"
        return "device nodes", [(operation.path, number, how, reason)]
    if isinstance(operation, Symlink):
        return "links", [(operation.path, f"-> {operation.to}", reason)]
    if isinstance(operation, Tmpfs):
        holds = [file.name for file in operation.files] + [f"{name}/" for name in operation.folders]
        return "new filesystems", [(operation.path, " ".join(holds), reason)]
    if isinstance(operation, LdCache):
        entries = entries_of(operation.additions)
        first: list[Row] = [(operation.path, f"{len(entries)} entries merged", reason)]
        return "loader cache", first + [
            (f"  {entry.soname.decode()}", entry.path.decode(), "") for entry in entries
        ]
    if isinstance(operation, Relabel):
        change = operation.context if operation.context != operation.was else "as it is"
        return "labels", [(operation.path, f"{operation.was} -> {change}", reason)]
    if isinstance(operation, DeviceAllow):
        return f"systemd, {operation.unit}", [(oci.written(rule), reason) for rule in operation.rules]
    where = f"device cgroup {operation.version}, {operation.path or 'found at the start'}"
    return where, [(oci.written(rule), reason) for rule in operation.rules]


def _origin(mount: Mount) -> str:
    """Where a mount comes from, as short as it can be told."""
    folder, _, name = mount.source.rpartition("/")
    origin = name if mount.target.startswith(f"{folder}/") else mount.source
    if mount.source == mount.target:
        origin = "same path"
    return f"{origin}, also {', '.join(mount.names)}" if mount.names else origin


def _aligned(rows: Iterable[Row]) -> list[str]:
    """Rows as lines, two spaces in, each column as wide as its widest cell."""
    table = list(rows)
    if not table:
        return ["  none"]
    columns = max(len(row) for row in table)
    widths = [max(len(row[at]) for row in table if at < len(row)) for at in range(columns)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in table
    ]


def _operation(operation: Operation) -> dict[str, object]:
    """One operation as JSON."""
    if isinstance(operation, Mount):
        return {
            "op": "mount",
            **operation._asdict(),
            "options": list(operation.options),
            "names": list(operation.names),
        }
    if isinstance(operation, Device):
        document: dict[str, object] = {"op": "device", **operation._asdict()}
        document["mode"] = f"{operation.mode:04o}"
        return document
    if isinstance(operation, Symlink):
        return {"op": "symlink", **operation._asdict()}
    if isinstance(operation, Tmpfs):
        return {
            "op": "tmpfs",
            **operation._asdict(),
            "options": list(operation.options),
            "folders": list(operation.folders),
            "files": [{**file._asdict(), "mode": f"{file.mode:04o}"} for file in operation.files],
        }
    if isinstance(operation, LdCache):
        entries = [
            {"soname": entry.soname.decode(), "path": entry.path.decode()}
            for entry in entries_of(operation.additions)
        ]
        document = {"op": "ldcache", **operation._asdict(), "entries": entries}
        # The same as columns.
        del document["additions"]
        return document
    if isinstance(operation, Relabel):
        return {"op": "relabel", **operation._asdict()}
    rules = [rule._asdict() for rule in operation.rules]
    if isinstance(operation, DeviceAllow):
        before = [list(entry) for entry in operation.before]
        return {"op": "deviceallow", **operation._asdict(), "rules": rules, "before": before}
    return {"op": "cgroup", **operation._asdict(), "rules": rules}
