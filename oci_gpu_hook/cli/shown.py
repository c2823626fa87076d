# SPDX-License-Identifier: Apache-2.0
"""How operations are shown: each as cells of a line for people, and as an object for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from oci_gpu_hook.formats import devicerule
from oci_gpu_hook.operations import Device, LdCache, Mount, OpenCgroup, Relabel, Service, Symlink, TellSystemd, Tmpfs

if TYPE_CHECKING:
    from oci_gpu_hook.operations import Operation

    # Cells of one line.
    Row = tuple[str, ...]


def rows(operation: Operation) -> tuple[str, list[Row]]:
    """The title of an operation's group, and its lines there; the last cell of each is the reason."""
    title, lines = KINDS[type(operation)][1](operation)
    # The loader's entries have the reason once.
    further = "" if isinstance(operation, LdCache) else operation.reason
    return title, [(*line, further if number else operation.reason) for number, line in enumerate(lines)]


def document(operation: Operation) -> dict[str, Any]:
    """An operation's fields as JSON has them."""
    fields: dict[str, Any] = operation._asdict()  # type: ignore[attr-defined]  # each kind is a record
    # They are shown as entries of the cache.
    fields.pop("libraries", None)
    return {"op": KINDS[type(operation)][0], **fields, **_FIELDS.get(type(operation), lambda it: {})(operation)}


def _mount(it: Mount) -> tuple[str, list[Row]]:
    folder, _, name = it.source.rpartition("/")
    origin = name if it.target.startswith(f"{folder}/") else it.source
    if it.source == it.target:
        origin = "same path"
    if it.names:
        origin = f"{origin}, also {', '.join(it.names)}"
    return f"mounts, {','.join(it.options)}", [(it.target, origin)]


def _service(it: Service) -> tuple[str, list[Row]]:
    origin = "same path" if it.source == it.target else it.source
    return f"mounts, {','.join(it.options())}", [(it.target, origin)]


def _device(it: Device) -> tuple[str, list[Row]]:
    how = f"bound from {it.source}" if it.source else f"{it.mode:04o}"
    return "device nodes", [(it.path, f"{it.type} {it.major}:{it.minor}", how)]


def _tmpfs(it: Tmpfs) -> tuple[str, list[Row]]:
    holds = [name for name, _, _ in it.files] + [f"{name}/" for name in it.folders]
    return "new filesystems", [(it.path, " ".join(holds))]


def _ldcache(it: LdCache) -> tuple[str, list[Row]]:
    entries = it.entries()
    return "loader cache", [
        (it.path, f"{len(entries)} entries merged"),
        *[(f"  {soname}", path) for soname, path in entries],
    ]


def _written(it: OpenCgroup | TellSystemd) -> list[Row]:
    return [(devicerule.written(rule),) for rule in it.rules]


def _relabel(it: Relabel) -> tuple[str, list[Row]]:
    return "labels", [(it.path, f"{it.was} -> {it.context if it.context != it.was else 'as it is'}")]


# Each with its name in `plan --format json`, and what makes the title and the cells.
KINDS: dict[type, tuple[str, Callable[[Any], tuple[str, list[Row]]]]] = {
    Mount: ("mount", _mount),
    Service: ("service", _service),
    Device: ("device", _device),
    Symlink: ("symlink", lambda it: ("links", [(it.path, f"-> {it.to}")])),
    Tmpfs: ("tmpfs", _tmpfs),
    LdCache: ("ldcache", _ldcache),
    Relabel: ("relabel", _relabel),
    OpenCgroup: ("cgroup", lambda it: (f"device cgroup {it.version}, {it.path or 'found at the start'}", _written(it))),
    TellSystemd: ("deviceallow", lambda it: (f"systemd, {it.unit}", _written(it))),
}

# Fields that are shown otherwise than they are kept.
_FIELDS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Mount: lambda it: {"options": list(it.options), "names": list(it.names)},
    Service: lambda it: {"options": list(it.options())},
    Device: lambda it: {"mode": f"{it.mode:04o}"},
    Tmpfs: lambda it: {
        "options": list(it.options),
        "folders": list(it.folders),
        "files": [{"name": name, "content": content, "mode": f"{mode:04o}"} for name, content, mode in it.files],
    },
    LdCache: lambda it: {"entries": [{"soname": soname, "path": path} for soname, path in it.entries()]},
    OpenCgroup: lambda it: {
        "rules": [rule._asdict() for rule in it.rules],
        "fallback": [rule._asdict() for rule in it.fallback],
    },
    TellSystemd: lambda it: {
        "rules": [rule._asdict() for rule in it.rules],
        "before": [list(entry) for entry in it.before],
    },
}
