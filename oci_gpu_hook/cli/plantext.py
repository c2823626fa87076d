# SPDX-License-Identifier: Apache-2.0
"""A plan as text for people and as the documented object for programs, with what the host has and the plan leaves out:
the hook itself reports only what was requested and could not be given (`Plan.notes`).  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Callable

from oci_gpu_hook import operations as kinds
from oci_gpu_hook.cli.options import Row, section, sentences
from oci_gpu_hook.driver.inventory import DriverInventory, Library
from oci_gpu_hook.formats import devicerule
from oci_gpu_hook.planning.plan import Plan, some
from oci_gpu_hook.planning.provision import COMPAT32, brought_by
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.words import FEATURES

Group = tuple[str, list[Row]]
_OVER, _LATER = "files over the image's own, where it has them", "found at the start"


def plan_document(plan: Plan, left_out: Iterable[str] = ()) -> dict[str, object]:
    """left_out: what the host has and the container does not get; see oci-gpu-hook(8) for each key."""
    request = plan.request
    fields = ("source", "devices", "capabilities", "requirements", "imex_channels", "features", "mig_config")
    others = ("mig_monitor", "memory_limit", "memory_request")
    rows = [(it.flag, it.file, it.source, it.words()) for it in request.vendors] if request else []
    return {
        "container": {name: getattr(plan.container, name) for name in ("id", "bundle", "rootfs")},
        "request": request
        and {
            **{name: getattr(request, name) for name in (*fields, *others)},
            "devices": request.words(),
            "vendors": [dict(zip(("flag", "file", "source", "devices"), row)) for row in rows],
        },
        "driver": {"version": plan.provision.driver_version} if request else None,
        "label": plan.label,
        **({"chosen": plan.provision.chosen} if plan.provision.chosen else {}),
        **({"done": [document(item) for item in plan.done]} if plan.done else {}),
        "operations": [document(item) for item in plan.operations],
        "notes": list(plan.notes),
        "left_out": list(left_out),
    }


def plan_text(plan: Plan, left_out: Iterable[str] = ()) -> list[str]:
    container, request = plan.container, plan.request
    alone = "" if plan.operations else ": the hook would leave this container alone"
    # Without a folder nothing of the root was looked at.
    loader = f" ({plan.layout.loader or 'a loader that is not known'})" if plan.layout.library_folder else ""
    lines = [
        f"container  {container.id or '(no id)'}",
        f"bundle     {container.bundle}",
        f"rootfs     {container.rootfs}{loader}",
        *(_requested(request) if request else [f"request    none{alone}"]),
        *[f"chosen     {words}" for words in plan.provision.chosen],
    ]
    lines += [f"driver     {plan.provision.driver_version}"] if plan.provision.driver_version else []
    lines += [f"label      {plan.label}"] if plan.label else []
    for operations, by in ((plan.done, ", by the engine"), (plan.operations, "")):
        # Consecutive ones of one kind are a group under one title.
        for title, group in groupby(map(rows, operations), lambda found: found[0]):
            lines += section(f"{title}{by}", [row for _, found in group for row in found])
    return [*lines, *sentences("notes", [*plan.notes, *left_out])]


def _requested(request: Request) -> list[str]:
    words = []
    if request.words():
        words = [f"devices {','.join(request.words())} (from {request.source})"]
        words.append(f"capabilities {','.join(request.capabilities)}")
        words += [f"requires {expression}" for expression in request.requirements]
        words += [f"IMEX channels {','.join(request.imex_channels)}"] if request.imex_channels else []
        words += [f"features {','.join(request.features)}"] if request.features else []
        words += ["may configure MIG"] if request.mig_config else []
        words += ["may monitor MIG"] if request.mig_monitor else []
        words += [f"at most {request.memory_limit >> 20} MiB of each device"] if request.memory_limit else []
        words += [f"needs {request.memory_request >> 20} MiB of each device"] if request.memory_request else []
    words += [f"{item.flag} {','.join(item.words())} (from {item.source}, by {item.file})" for item in request.vendors]
    return [f"{'' if number else 'request':11}{text}" for number, text in enumerate(words)]


def missing(plan: Plan) -> tuple[str, ...]:
    found, inventory = [], plan.provision.inventory
    given = {operation.path for operation in plan.given() if isinstance(operation, kinds.Device)}
    if plan.request is not None and inventory is not None:
        found += [] if plan.layout.dev_is_hosts else _gpus(given, inventory)
        found += _files(plan, plan.request, inventory)
    for vendor in plan.provision.vendors:
        flag, absent = vendor.inventory.flag, vendor.inventory.absent
        devices = () if plan.layout.dev_is_hosts else vendor.devices
        left = [it for it in devices if given.isdisjoint([node.path for node, _ in it.nodes])]
        found += [f"{flag}={it.names[0]}, {it.names[-1]}: not asked for" for it in left]
        # Patterns: without their folders many are alike.
        found += [f"{flag}: this host has no {some(absent)}"] if absent else []
        environment = [f"{name}={value}" for name, value in vendor.inventory.environment]
        found += [f"{flag}: programs may need {variable}, which no hook can set" for variable in environment]
    return tuple(found)


def _gpus(given: set[str], inventory: DriverInventory) -> list[str]:
    gpus = [f"GPU {gpu.nvml_index}, {gpu.model}" for gpu in inventory.gpus if f"/dev/nvidia{gpu.minor}" not in given]
    migs = [it for it in inventory.mig_devices if f"/dev/nvidia-caps/nvidia-cap{it.ci_minor}" not in given]
    names = [*gpus, *[f"MIG device {it.gi}/{it.ci} of GPU {it.gpu}" for it in migs]]
    return [f"{name}: not asked for" for name in names]


def _files(plan: Plan, request: Request, inventory: DriverInventory) -> list[str]:
    sources = {operation.source for operation in plan.given() if isinstance(operation, (kinds.Mount, kinds.Service))}
    links = {operation.path for operation in plan.given() if isinstance(operation, kinds.Symlink)}
    files = (*inventory.binaries, *inventory.files)
    whys = [(item.path, _why_library(item, request)) for item in inventory.libraries]
    names: dict[str, list[str]] = {}
    for path, why in (*whys, *[(file.path, _why(file.capabilities)) for file in files if file.target not in links]):
        if path not in sources:
            names.setdefault(why, []).append(path.rpartition("/")[2])
    return [f"{some(found)}: {why}" for why, found in sorted(names.items())]


def _why_library(library: Library, request: Request) -> str:
    if brought_by(library, request):
        return "this container's loader runs no 32-bit programs"
    if library.bits == 64 or COMPAT32 in request.capabilities:
        return _why(library.capabilities)
    return f"{COMPAT32} and {_why(library.capabilities)}"


def _why(capabilities: tuple[str, ...]) -> str:
    variables = [feature.variable for feature in FEATURES if feature.name in capabilities]
    if variables:
        return f"{' or '.join(variables)} is not 'enabled' or not accepted"
    return f"{' or '.join(capabilities)}, not in NVIDIA_DRIVER_CAPABILITIES or not allowed"


def rows(operation: kinds.Operation) -> Group:
    """The title of an operation's group, and its lines there; the last cell of each is the reason."""
    title, lines = KINDS[type(operation)][1](operation)
    # The loader's entries have the reason once.
    further = "" if isinstance(operation, kinds.LdCache) else operation.reason
    optional = "" if operation.required else " (optional)"
    whys = [operation.reason, *[further] * (len(lines) - 1)]
    return title, [(*line, f"{why}{optional}") for line, why in zip(lines, whys)]


def document(operation: kinds.Operation) -> dict[str, Any]:
    fields: dict[str, Any] = operation._asdict()  # type: ignore[attr-defined]  # each kind is a record
    if isinstance(operation, kinds.Service):
        fields["options"] = operation.options()
    elif isinstance(operation, kinds.Tmpfs):
        fields["files"] = [dict(zip(("name", "content", "mode"), file)) for file in operation.files]
    elif isinstance(operation, kinds.LdCache):
        del fields["libraries"]
        fields["entries"] = [{"soname": soname, "path": path} for soname, path in operation.entries()]
    return {"op": KINDS[type(operation)][0], **fields}


def _mount(it: kinds.Mount | kinds.Service, options: tuple[str, ...], names: tuple[str, ...] = ()) -> Group:
    folder, _, name = it.source.rpartition("/")
    origin = name if it.target.startswith(f"{folder}/") else it.source
    origin = "same path" if it.source == it.target else origin
    return f"mounts, {','.join(options)}", [(it.target, f"{origin}, also {', '.join(names)}" if names else origin)]


def _device(it: kinds.Device) -> Group:
    how = f"bound from {it.source}" if it.source else f"{it.mode:04o}"
    return "device nodes", [(it.path, f"{it.type} {it.major}:{it.minor}", how)]


def _tmpfs(it: kinds.Tmpfs) -> Group:
    holds = [name for name, _, _ in it.files] + [f"{name}/" for name in it.folders]
    return "new filesystems", [(it.path, " ".join(holds))]


def _ldcache(it: kinds.LdCache) -> Group:
    entries = it.entries()
    return "loader cache", [
        (it.path, f"{len(entries)} entries merged"),
        (it.configuration, "for an ldconfig in the container"),
        *[(f"  {soname}", path) for soname, path in entries],
    ]


def _written(it: kinds.OpenCgroup | kinds.TellSystemd) -> list[Row]:
    pinned = f"also in {it.pinned}" if isinstance(it, kinds.OpenCgroup) and it.pinned else ""
    return [*[(devicerule.text_of(rule),) for rule in it.rules], *([(pinned,)] if pinned else [])]


def _limits(it: kinds.LimitMemory) -> list[Row]:
    return [(name, f"{most >> 20} MiB", *(["by NVML"] if it.library else [])) for name, most in it.limits]


def _relabel(it: kinds.Relabel) -> Group:
    return "labels", [(it.path, f"{it.was} -> {it.context if it.context != it.was else 'as it is'}")]


# Each with its name in `plan --json`, and what makes the title and the cells.
KINDS: dict[type, tuple[str, Callable[[Any], Group]]] = {
    kinds.Mount: ("mount", lambda it: _mount(it, it.options, it.names)),
    kinds.Service: ("service", lambda it: _mount(it, it.options())),
    kinds.Device: ("device", _device),
    kinds.Cover: ("cover", lambda it: (_OVER, [(path,) for path in it.paths()])),
    kinds.Symlink: ("symlink", lambda it: ("links", [(it.path, f"-> {it.to}")])),
    kinds.Tmpfs: ("tmpfs", _tmpfs),
    kinds.LdCache: ("ldcache", _ldcache),
    kinds.Relabel: ("relabel", _relabel),
    kinds.LimitMemory: ("memory", lambda it: (f"device memory, {it.path or _LATER}", _limits(it))),
    kinds.OpenCgroup: ("cgroup", lambda it: (f"device cgroup {it.version}, {it.path or _LATER}", _written(it))),
    kinds.TellSystemd: ("deviceallow", lambda it: (f"systemd, {it.unit}", _written(it))),
}
