# SPDX-License-Identifier: Apache-2.0
"""The container engines of this host, as their own configuration has them: where they look for hooks, what they start.

containers.conf(5), crio.conf(5), Docker's daemon.json, containerd's config.toml.  Reads only, starts no engine, and is
never on the hook's path.
"""

from __future__ import annotations

from oci_gpu_hook import jsontext, toml
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VENDORS_FOLDER = "/usr/share/containers/oci/hooks.d"
ADMINISTRATORS_FOLDER = "/etc/containers/oci/hooks.d"
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")

# NVIDIA's runtime, which starts runc with a hook of its own put in: nvidia-container-runtime(.cdi, .legacy).
_SHIM = "nvidia-container-runtime"


class Shim(NamedTuple):
    """NVIDIA's runtime as one of an engine's runtimes; is_default: for containers that name none."""

    engine: str
    file: str
    runtime: str
    is_default: bool


class Engine(NamedTuple):
    """An installed engine that reads hooks.d.

    folders: where it looks for hooks, in the order of rising precedence; said_by: the file that names them, "" where
    they are the engine's own default; cgroup_manager: ``systemd`` or ``cgroupfs``, "" where no file says, and the file.
    """

    name: str
    folders: tuple[str, ...]
    said_by: str
    cgroup_manager: str
    manager_said_by: str = ""


class _Kind(NamedTuple):
    """files: read in this order, ``DIR/*.conf`` is all such of a folder; the others: keys in them."""

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
    """Every place where an engine is told to start NVIDIA's runtime."""
    found = [shim for name in _KINDS for shim in _shims(root, name)]
    return (*found, *_docker(root), *_containerd(root))


def has_program(root: HostRoot, name: str) -> bool:
    """Whether a program lies where programs lie."""
    return any([root.stat(f"{folder}/{name}") is not None for folder in _PROGRAM_FOLDERS])


def _engine(root: HostRoot, name: str) -> Engine:
    kind = _KINDS[name]
    folders: tuple[str, ...] = (VENDORS_FOLDER,)
    said_by = manager = manager_said_by = ""
    for file, values in _read(root, kind.files):
        given = values.get(kind.hooks)
        if isinstance(given, tuple):
            folders, said_by = given, file
        if kind.manager in values:
            manager, manager_said_by = str(values[kind.manager]), file
    return Engine(name, folders, said_by, manager, manager_said_by)


def _shims(root: HostRoot, name: str) -> list[Shim]:
    """CRI-O has a table a runtime, podman a list of paths a runtime."""
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


def _read(root: HostRoot, files: tuple[str, ...]) -> Iterator[tuple[str, dict[str, toml.Value]]]:
    for file in files:
        folder, star, ending = file.partition("/*")
        names = [name for name in root.names(folder) if name.endswith(ending)] if star else []
        for path in [f"{folder}/{name}" for name in names] if star else [file]:
            data = root.read(path)
            if data is not None:
                yield path, toml.parse(data.decode("utf-8", "replace"))
