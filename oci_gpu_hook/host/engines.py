# SPDX-License-Identifier: Apache-2.0
"""The host's container engines, by their configuration: where they look for hooks, and which runtimes they start.

containers.conf(5), crio.conf(5), Docker's daemon.json, containerd's config.toml.  Reads only, and starts no engine.
Never on the hook's path.
"""

from __future__ import annotations

from oci_gpu_hook.formats import jsontext, toml
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

VENDORS_FOLDER = "/usr/share/containers/oci/hooks.d"
ADMINISTRATORS_FOLDER = "/etc/containers/oci/hooks.d"
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")

# NVIDIA's runtime adds a hook to config.json and starts runc: nvidia-container-runtime(.cdi, .legacy).
_SHIM = "nvidia-container-runtime"


class Shim(NamedTuple):
    """NVIDIA's runtime as one of an engine's runtimes; is_default: for containers that name none."""

    engine: str
    file: str
    runtime: str
    is_default: bool


class Engine(NamedTuple):
    """An installed engine that reads hooks.d.

    folders: where it looks for hooks, in the order of rising precedence; folders_file: the file that sets them, ""
    where they are the engine's default; cgroup_manager: ``systemd`` or ``cgroupfs``, "" where no file sets it;
    manager_file: the file that sets it.
    """

    name: str
    folders: tuple[str, ...]
    folders_file: str
    cgroup_manager: str
    manager_file: str = ""


class Unread(NamedTuple):
    """A file of an engine's settings that cannot be read, and why; no_parser: because this Python cannot read TOML."""

    engine: str
    path: str
    why: str
    no_parser: bool


class _Kind(NamedTuple):
    """Where an engine has its settings.

    files: in the order in which the engine reads them, ``DIR/*.conf`` for all such files of a folder; hooks, manager,
    default, runtimes: the keys in them.
    """

    program: str
    files: tuple[str, ...]
    hooks: str
    manager: str
    default: str
    runtimes: str


_KINDS = {
    "podman": _Kind(
        "podman",
        (
            "/usr/share/containers/containers.conf",
            "/usr/share/containers/containers.conf.d/*.conf",
            "/etc/containers/containers.conf",
            "/etc/containers/containers.conf.d/*.conf",
        ),
        "engine.hooks_dir",
        "engine.cgroup_manager",
        "engine.runtime",
        "engine.runtimes.",
    ),
    "CRI-O": _Kind(
        "crio",
        ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"),
        "crio.runtime.hooks_dir",
        "crio.runtime.cgroup_manager",
        "crio.runtime.default_runtime",
        "crio.runtime.runtimes.",
    ),
}
_DOCKER = "/etc/docker/daemon.json"
_CONTAINERD = ("/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml")


def installed(root: HostRoot) -> tuple[Engine, ...]:
    """Those engines that read hooks.d and whose program is there."""
    return tuple(
        [_engine(root, name) for name in _KINDS if has_program(root, _KINDS[name].program)]
    )


def shims(root: HostRoot) -> tuple[Shim, ...]:
    """NVIDIA's runtimes in the settings of all engines."""
    found = [shim for name in _KINDS for shim in _shims(root, name)]
    return (*found, *_docker(root), *_containerd(root))


def has_program(root: HostRoot, name: str) -> bool:
    """Whether one of the host's folders for programs has this one."""
    return any([root.stat(f"{folder}/{name}") is not None for folder in _PROGRAM_FOLDERS])


def _engine(root: HostRoot, name: str) -> Engine:
    kind = _KINDS[name]
    folders: tuple[str, ...] = (VENDORS_FOLDER,)
    folders_file = manager = manager_file = ""
    appends = False
    for file, values in _read(root, kind.files):
        found = values.get(kind.hooks)
        if isinstance(found, list):
            # podman's {append = true} holds for later files too (containers.conf(5)).
            for item in [item for item in found if isinstance(item, dict)]:
                appends = item.get("append") is True
            named = tuple([item for item in found if isinstance(item, str)])
            folders, folders_file = (*folders, *named) if appends else named, file
        if kind.manager in values:
            manager, manager_file = str(values[kind.manager]), file
    return Engine(name, folders, folders_file, manager, manager_file)


def _shims(root: HostRoot, name: str) -> list[Shim]:
    """NVIDIA's runtimes of podman or CRI-O.  For each runtime CRI-O has a table, and podman a list of paths."""
    kind = _KINDS[name]
    default, runtimes = "", {}
    for file, values in _read(root, kind.files):
        default = str(values.get(kind.default, default))
        for key, value in values.items():
            if key.startswith(kind.runtimes) and _SHIM in str(value):
                runtimes[key[len(kind.runtimes) :].partition(".")[0]] = file
        if _SHIM in default:
            runtimes[default] = file
    return [Shim(name, file, runtime, runtime == default) for runtime, file in runtimes.items()]


def _docker(root: HostRoot) -> list[Shim]:
    try:
        document = jsontext.loads(root.read(_DOCKER) or b"{}")
        runtimes = document["runtimes"]  # type: ignore[index]
        default = document.get("default-runtime", "")  # type: ignore[attr-defined]
        names = [name for name in runtimes if _SHIM in str(runtimes[name])]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [Shim("Docker", _DOCKER, name, name == default) for name in names]


def _containerd(root: HostRoot) -> list[Shim]:
    default, runtimes = "", {}
    for file, values in _read(root, _CONTAINERD):
        for key, value in values.items():
            words = key.split(".")
            if words[-1] == "default_runtime_name":
                default = str(value)
            if words[-1] == "BinaryName" and _SHIM in str(value) and "runtimes" in words:
                runtimes[words[words.index("runtimes") + 1]] = file
    return [Shim("containerd", file, name, name == default) for name, file in runtimes.items()]


def unread(root: HostRoot) -> tuple[Unread, ...]:
    """The engines' files that cannot be read: what is known of such an engine may be wrong."""
    engines = {**{name: kind.files for name, kind in _KINDS.items()}, "containerd": _CONTAINERD}
    found = []
    for name, files in engines.items():
        for path, data in _contents(root, files):
            try:
                toml.parse(data)
            except (toml.MalformedToml, toml.NoParser) as err:
                found.append(Unread(name, path, str(err), isinstance(err, toml.NoParser)))
    return tuple(found)


def _read(root: HostRoot, files: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each file that can be read, with its values by dotted keys such as ``engine.hooks_dir``."""
    for path, data in _contents(root, files):
        try:
            document = toml.parse(data)
        except (toml.MalformedToml, toml.NoParser):
            continue
        yield path, dict(_flat(document, ""))


def _contents(root: HostRoot, files: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Path and content of each of `files` that exists."""
    for file in files:
        folder, star, ending = file.partition("/*")
        names = [name for name in root.names(folder) if name.endswith(ending)] if star else []
        for path in [f"{folder}/{name}" for name in names] if star else [file]:
            data = root.read(path)
            if data is not None:
                yield path, data


def _flat(table: dict[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a table; `above` is put in front of each key."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
