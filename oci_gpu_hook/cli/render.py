# SPDX-License-Identifier: Apache-2.0
"""A plan and an inventory as aligned text, and as JSON in the documented form.  Pure.

Must not decide or leave out anything: both forms have all that is in the value.  Never on the hook's path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.cli import shown
from oci_gpu_hook.errors import LONGEST_LIST, plain
from oci_gpu_hook.planning.placement import COMPAT32
from oci_gpu_hook.request.words import CAPABILITIES, FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from oci_gpu_hook.cli.shown import Row
    from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
    from oci_gpu_hook.operations import Operation
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.parse import Request


def joined(lines: Iterable[str]) -> str:
    """A text of these lines: what a container, a user or an engine has written in one of them begins no other."""
    return "\n".join([plain(line, LONGEST_LIST) for line in lines])


def plan_document(plan: Plan, left_out: Iterable[str] = ()) -> dict[str, object]:
    """The plan as one JSON object: container, request, driver, operations in order of execution, notes.

    chosen: what the node would choose now for ``any``; done: what the engine has done, if a CDI spec of ours starts the
    hook; left_out: what the host has and the container
    does not get, see `leftout`.
    """
    request = plan.request
    lists = ("devices", "capabilities", "requirements", "imex_channels", "features")
    return {
        **no_request_document(plan.container.id, plan.container.bundle, plan.container.rootfs, plan.notes),
        "request": request
        and {
            "source": request.source,
            **{name: list(getattr(request, name)) for name in lists},
            "mig_config": request.mig_config,
            "mig_monitor": request.mig_monitor,
            "vendors": [{**item._asdict(), "devices": list(item.devices)} for item in request.vendors],
        },
        "driver": {"version": plan.driver_version} if request else None,
        "label": plan.label,
        **({"chosen": list(plan.chosen)} if plan.chosen else {}),
        **({"done": [shown.document(item) for item in plan.done]} if plan.done else {}),
        "operations": [shown.document(item) for item in plan.operations],
        "left_out": list(left_out),
    }


def no_request_document(container_id: str, bundle: str, rootfs: str, notes: Iterable[str]) -> dict[str, object]:
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
    """The plan as text: operations grouped by kind and aligned, with the reason for each."""
    container, request = plan.container, plan.request
    lines = [
        f"container  {container.id or '(no id)'}",
        f"bundle     {container.bundle}",
        f"rootfs     {container.rootfs} ({plan.layout.loader}, libraries in {plan.layout.library_folder})",
    ]
    if request is not None:
        lines += _requested(request)
        lines += [f"chosen     {words}" for words in plan.chosen]
        if plan.driver_version:
            lines.append(f"driver     {plan.driver_version}")
    else:
        lines.append("request    none")
    if plan.label:
        lines.append(f"label      {plan.label}")
    for operations, by in ((plan.done, ", by the engine"), (plan.operations, "")):
        for title, rows in _groups(operations):
            lines += ["", f"{title}{by}", *aligned(rows)]
    notes = [*plan.notes, *left_out]
    if notes:
        lines += ["", "notes", *[f"  {note}" for note in notes]]
    return joined(lines)


def _requested(request: Request) -> list[str]:
    """What is asked for, first of NVIDIA's."""
    words = []
    if request.devices:
        words.append(f"devices {','.join(request.devices)} (from {request.source})")
        words += [f"capabilities {','.join(request.capabilities)}", *_further(request)]
    words += [f"{item.flag} {','.join(item.devices)} (from {item.source}, by {item.file})" for item in request.vendors]
    return [f"{'' if number else 'request':11}{text}" for number, text in enumerate(words)]


def _further(request: Request) -> list[str]:
    """What the request asks for besides devices and capabilities."""
    lines = [f"requires {expression}" for expression in request.requirements]
    if request.imex_channels:
        lines.append(f"IMEX channels {','.join(request.imex_channels)}")
    if request.features:
        lines.append(f"features {','.join(request.features)}")
    for is_requested, what in ((request.mig_config, "configure"), (request.mig_monitor, "monitor")):
        if is_requested:
            lines.append(f"may {what} MIG")
    return lines


def inventory_document(inventory: DriverInventory) -> dict[str, object]:
    """The inventory as one JSON object, fields by name."""
    document: dict[str, object] = {}
    for field, value in inventory._asdict().items():
        document[field] = [_plain(item) for item in value] if isinstance(value, tuple) else value
    document["proc_files"] = [name for name, _ in inventory.proc_files]
    document["devices"] = [{**node._asdict(), "mode": f"{node.mode:04o}"} for node in inventory.devices]
    return document


def _plain(item: Any) -> object:
    return item._asdict() if hasattr(item, "_asdict") else item


def inventory_text(inventory: DriverInventory) -> str:
    """The inventory as text."""
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
    lines += ["", f"GPUs ({len(gpus)})", *aligned(gpus)]
    if inventory.mig_devices:
        lines += ["", "MIG devices", *aligned([_mig_row(item) for item in inventory.mig_devices])]
    nodes: list[Row] = [
        (node.path, f"c {node.major}:{node.minor}", f"{node.mode:04o} {node.uid}:{node.gid}")
        if node.present
        else (node.path, f"c {node.major}:{node.minor}", "not made on the host yet")
        for node in inventory.devices
    ]
    lines += ["", "device nodes", *aligned(nodes)]
    for word in (*CAPABILITIES, *[feature.name for feature in FEATURES]):
        rows = _files_of(word, inventory)
        if rows:
            lines += ["", f"capability {word}", *aligned(rows)]
    lines += ["", "firmware", *aligned([(file.path,) for file in inventory.firmware])]
    if inventory.misfits:
        misfits: list[Row] = [
            (misfit.name, misfit.found or "missing", misfit.capability) for misfit in inventory.misfits
        ]
        lines += ["", "not of the driver's version", *aligned(misfits)]
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
    """The files that a capability or feature brings; compat32 brings the 32-bit libraries."""
    if word == COMPAT32:
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
    """Operations in the order of execution; consecutive ones of one kind are a group under one title."""
    groups: list[tuple[str, list[Row]]] = []
    for operation in operations:
        title, rows = shown.rows(operation)
        if not operation.required:
            rows = [(*cells, f"{reason} (optional)") for *cells, reason in rows]
        if groups and groups[-1][0] == title:
            groups[-1][1].extend(rows)
        else:
            groups.append((title, rows))
    return groups


def aligned(rows: Iterable[Row]) -> list[str]:
    """Rows as lines, indented by two spaces, each column as wide as its widest cell."""
    return [f"  {line}" for line in columns(rows)] or ["  none"]


def columns(rows: Iterable[Row]) -> list[str]:
    """The same without an indent."""
    table = list(rows)
    count = max([len(row) for row in table], default=0)
    widths = [max([len(row[at]) for row in table if at < len(row)]) for at in range(count)]
    return ["  ".join([cell.ljust(width) for cell, width in zip(row, widths)]).rstrip() for row in table]
