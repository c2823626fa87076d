# SPDX-License-Identifier: Apache-2.0
"""The host's container engines, by their configuration: their folders of hooks and CDI specs, the hooks that are
registered there, and their runtimes.  Reads only, and starts no engine.

containers.conf(5), crio.conf(5), oci-hooks(5), Docker's daemon.json, containerd's config.toml.
"""

from __future__ import annotations

import importlib
import posixpath
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.formats import glob, jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.node.engines.enginekinds import CONTAINERD, DOCKER, ENGINES, K0S_MERGED, EngineKind
from oci_gpu_hook.node.machine import foreignfile
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.state import object_of
from oci_gpu_hook.request.words import CDI_FOLDERS


def prefix_of(file: str) -> str:
    """Where a file of ours was installed, in a folder of its version too; /usr for one of a checkout."""
    prefix, library, below = file.rpartition("/lib/oci-gpu-hook/")
    return prefix if library and "oci_gpu_hook" in below.split("/")[:2] else "/usr"


_PREFIX = prefix_of(__file__)
# The entry script; and the start program, for those who know that a container asks for a device.
ENTRY = f"{_PREFIX}/libexec/oci/hooks.d/oci-gpu-hook"
START = f"{_PREFIX}/libexec/oci-gpu-hook-start"
VENDORS_FOLDER = "/usr/share/containers/oci/hooks.d"
ADMINISTRATORS_FOLDER = "/etc/containers/oci/hooks.d"
HOOKS_FOLDER = f"{_PREFIX}/share/containers/oci/hooks.d"
RUNTIME = "oci-gpu-runtime"
PROGRAM = f"{_PREFIX}/bin/{RUNTIME}"

# NVIDIA's runtime, also .cdi and .legacy, adds a hook to config.json and starts runc.
_SHIM = "nvidia-container-runtime"


# Each with its path, and its values by dotted keys such as ``engine.hooks_dir``.
Files = list[tuple[str, dict[str, Any]]]


class NoParser(Exception):
    """This Python has neither tomllib nor tomli, or no PyYAML."""


class Runtime(NamedTuple):
    """A runtime that an engine's settings name; is_default: of containers that name none; is_ours: by a link, too."""

    engine: str
    file: str
    name: str
    is_default: bool
    program: str = ""
    is_there: bool = False
    is_ours: bool = False


class Engine(NamedTuple):
    """An installed engine.  folders: where it looks for hooks, the later goes first, or for CDI specs, without links;
    folders_file: that says so, "" for the engine's default; runtime: of containers that name none, "" if no file sets
    it; shims: those of its runtimes that are NVIDIA's.
    """

    name: str
    folders: tuple[str, ...]
    folders_file: str = ""
    runtime: str = ""
    shims: tuple[Runtime, ...] = ()


# systemd's, where no dockerd runs that could tell another.
PATH: tuple[str, ...] = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
# As podman looks for its runtime.
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
# Swarm's, in daemon.json, and how often `configure` names a GPU there at most.
RESOURCES, MAX_SHARES = "node-generic-resources", 100
# Far above what anybody writes.
_LARGEST = 1 << 20
_MAX_IMPORTS = 64
_LONGEST_PATH = 4096  # PATH_MAX
_SPECS, _IS_ON = "cdi_spec_dirs", "enable_cdi"


def installed(host: HostRoot) -> tuple[Engine, ...]:
    """Those engines that read hooks.d and whose program is there."""
    return tuple([_engine(host, kind) for kind in ENGINES if kind.table and is_there(host, kind)])


def is_there(host: HostRoot, kind: EngineKind) -> bool:
    return any([find_program(host, name) for name in kind.programs])


def shims(host: HostRoot, engines: tuple[Engine, ...]) -> list[Runtime]:
    """NVIDIA's runtimes in the settings of these engines, and those that are there of Docker and containerd."""
    named = of_containerd(host)
    with suppress(ValueError):
        named = [*of_docker(host, docker_settings(host), DOCKER.ours, PATH), *named]
    of_readers = [item for engine in engines for item in engine.shims]
    return of_readers + [item for item in named if item.is_there and is_nvidias(host, item.program)]


def find_program(host: HostRoot, name: str, folders: tuple[str, ...] = _PROGRAM_FOLDERS) -> str:
    """The first file of this name that can be run, in these folders, without them in the host's; "" for none."""
    for folder in folders:
        status = host.stat(f"{folder}/{name}")
        if status is not None and is_regular(status) and status.st_mode & 0o111:
            return f"{folder}/{name}"
    return ""


def package_manager(host: HostRoot) -> str:
    return "dnf" if find_program(host, "dnf") else "apt"


def _engine(host: HostRoot, kind: EngineKind) -> Engine:
    name, table = kind.name, kind.table
    files, runtimes = values_of(host, kind), f"{table}.runtimes."
    merged = {key: (value, file) for file, values in files for key, value in values.items()}
    runtime, file = merged.get(f"{table}.{kind.default}", ("", ""))
    # For each runtime CRI-O has a table, and podman a list of paths.
    of_runtimes = [(key[len(runtimes) :], item) for key, item in merged.items() if key.startswith(runtimes)]
    nvidias = {key.partition(".")[0]: at for key, (value, at) in of_runtimes if is_nvidias(host, value)}
    if is_nvidias(host, runtime):
        nvidias[str(runtime)] = file
    shims = tuple([Runtime(name, at, item, item == runtime) for item, at in nvidias.items()])
    return Engine(name, *hook_folders(kind, files), str(runtime), shims)


def hook_folders(kind: EngineKind, files: Files) -> tuple[tuple[str, ...], str]:
    return named_folders(files, f"{kind.table}.hooks_dir", (VENDORS_FOLDER,))


def named_folders(files: Files, ending: str, folders: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The folders that an engine's files name by a key with this ending, else `folders`; and the last such file."""
    at, appends = "", False
    every = [(file, it) for file, values in files for key, it in values.items() if key.endswith(ending)]
    for file, found in [(file, it) for file, it in every if isinstance(it, list)]:
        # podman's {append = true} holds for later files too (containers.conf(5)).
        for item in [item for item in found if isinstance(item, dict)]:
            appends = item.get("append") is True
        named = tuple([item for item in found if isinstance(item, str)])
        folders, at = (*folders, *named) if appends else named, file
    return folders, at


def find_readers(host: HostRoot, docker: dict[str, Any] | None, docker_file: str) -> tuple[Engine, ...]:
    """What gives devices by CDI; docker: dockerd's settings, None if there is no dockerd, or they cannot be read."""
    of_engines = [(kind.name, values_of(host, kind)) for kind in ENGINES if kind.files and is_there(host, kind)]
    if docker is not None:
        features = docker.get("features")
        is_on = features.get("cdi") if isinstance(features, dict) else None
        # For dockerd an empty list is its default, and an empty name no folder.
        of_engines.append((DOCKER.name, [(docker_file, {_SPECS: docker.get("cdi-spec-dirs") or None, _IS_ON: is_on})]))
    found = []
    for name, files in of_engines:
        folders, file = named_folders(files, _SPECS, CDI_FOLDERS)
        # Of a key that several files have the last one counts.
        told = [(file, it) for file, values in files for key, it in values.items() if key.endswith(_IS_ON)]
        if told and told[-1][1] is False:
            folders, file = (), told[-1][0]
        paths = [host.real(it.rstrip("/") or "/") for it in folders if it[:1] == "/" and len(it) < _LONGEST_PATH]
        found.append(Engine(name, tuple(dict.fromkeys(paths)), file))
    return tuple(found)


def of_containerd(host: HostRoot) -> list[Runtime]:
    """containerd's runtimes for pods; program: their BinaryName."""
    default, found = "runc", {}
    for file, key, value in [(file, *item) for file, values in values_of(host, CONTAINERD) for item in values.items()]:
        words = key.split(".")
        if words[-1] == CONTAINERD.default:
            default = str(value)
        if words[-1] == "BinaryName" and value and "runtimes" in words:
            found[words[words.index("runtimes") + 1]] = (file, str(value))
    return [runtime_of(host, CONTAINERD.name, file, name, its, default) for name, (file, its) in found.items()]


def is_nvidias(host: HostRoot, value: object) -> bool:
    """Whether a runtime's path, or one of several, is NVIDIA's runtime, and no link to ours by its name."""
    paths = [str(path) for path in (value if isinstance(value, list) else [value])]
    return any([_SHIM in path and not is_ours(host, path) for path in paths])


def unread(host: HostRoot) -> list[tuple[str, str, Exception]]:
    """Engine, path and error of each file that cannot be read: what is known of such an engine may be wrong."""
    every = [(kind.name, path, found) for kind in ENGINES for path, found in contents(host, kind)]
    return [(name, path, err) for name, path, err in every if isinstance(err, Exception)]


def values_of(host: HostRoot, kind: EngineKind) -> Files:
    return [(path, found) for path, found in contents(host, kind) if isinstance(found, dict)]


def contents(host: HostRoot, kind: EngineKind) -> Iterator[tuple[str, dict[str, Any] | Exception]]:
    """Each file of an engine's that exists, with its values, or why it cannot be read."""
    patterns, seen = [*kind.files], set()
    for pattern in patterns:
        folder, _, name = pattern.rpartition("/")
        if glob.is_pattern(folder):
            yield pattern, ValueError("a pattern of folders is not followed")
        names = [it for it in host.names(folder) if glob.matches(name, it)] if glob.is_pattern(name) else [name]
        for path in [path for it in names if (path := f"{folder}/{it}") not in seen]:
            seen.add(path)
            # A link may lead to a file of a user's.
            data = foreignfile.read_file(host, path, _LARGEST)
            if data is not None:
                values = _values(data)
                yield path, values
                # containerd's, which reads these behind all others (containerd-config.toml(5)).
                found = values.get("imports") if isinstance(values, dict) and kind == CONTAINERD else None
                imports = [item for item in found if isinstance(item, str)] if isinstance(found, list) else []
                imports = [item for item in imports if item != K0S_MERGED]
                patterns += [posixpath.join(folder, item) for item in imports][: max(0, _MAX_IMPORTS - len(patterns))]


def _values(data: bytes) -> dict[str, Any] | Exception:
    try:
        return dict(_flat(parse_toml(data), ""))
    except (ValueError, NoParser) as err:
        return err
    except RecursionError:
        return ValueError("it is nested too deep")


def parse_toml(data: bytes) -> dict[str, Any]:
    """By Python's tomllib, or by tomli before 3.11.  ValueError says why not, on one line of ASCII; NoParser."""
    try:
        return dict(_parser().loads(data.decode()))
    except UnicodeDecodeError as err:
        raise ValueError("it is not UTF-8 text") from err
    except RecursionError as err:
        raise ValueError("it is nested too deep") from err
    except ValueError as err:
        why = str(err).encode("ascii", "backslashreplace").decode()[:200]
        raise ValueError(f"{why[:1].lower()}{why[1:]}") from err


def _parser() -> Any:
    for name in ("tomllib", "tomli"):
        with suppress(ImportError):
            return importlib.import_module(name)
    raise NoParser("this Python has no tomllib, and no tomli")


def _flat(table: dict[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def of_docker(host: HostRoot, document: dict[str, Any], path: str, folders: tuple[str, ...]) -> list[Runtime]:
    """The runtimes in a daemon.json; folders: those in which dockerd looks for programs."""
    named, default = document.get("runtimes"), str(document.get("default-runtime") or "")
    items = named.items() if isinstance(named, dict) else ()
    programs = {name: str(value.get("path", "")) if isinstance(value, dict) else "" for name, value in items}
    return [runtime_of(host, DOCKER.name, path, name, its, default, folders) for name, its in programs.items()]


def docker_settings(host: HostRoot, path: str = DOCKER.ours) -> dict[str, Any]:
    """What a daemon.json says, {} without a file; ValueError says why dockerd cannot read it."""
    if host.stat(path) is None:
        return {}
    # It may be a link to what others have made.
    data = foreignfile.read_file(host, path, _LARGEST)
    if data is None:
        raise ValueError(f"it cannot be read as a file of at most {_LARGEST >> 20} MiB")
    try:
        return object_of(data, "it", _LARGEST)
    except BundleError as err:
        raise ValueError(err.message) from err


def runtime_of(
    host: HostRoot, engine: str, file: str, name: str, path: str, default: str, folders: tuple[str, ...] = PATH
) -> Runtime:
    """The runtime that a file names so; folders: where its engine looks for a name without a folder."""
    found = path if path.startswith("/") else find_program(host, path, folders)
    is_there = bool(found) and host.stat(found) is not None
    return Runtime(engine, file, name, name == default, path, is_there, is_ours(host, found or path))


def is_ours(host: HostRoot, path: str) -> bool:
    """Whether this is our runtime's path, or a link leads from it to our runtime."""
    paths = (path, host.real(path) if path.startswith("/") else "")
    return RUNTIME in [path.rpartition("/")[2] for path in paths]


# --- the hooks that are registered with engines (oci-hooks(5))

REGISTRATION = "oci-gpu-hook.json"

# oci-hooks(5).
_STAGES = ("precreate", "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

OURS, NVIDIAS, OTHER = "ours", "NVIDIA's", "other"
# How the names of their programs begin.
_KINDS = {
    NVIDIAS: ("nvidia-container-", "oci-nvidia-hook", "nvidia-ctk", "nvidia-cdi-hook"),
    OURS: ("oci-gpu-hook", "oci_gpu_hook"),
}


class Registration(NamedTuple):
    """One JSON file of a hooks folder.  words: its program's arguments; timeout: in seconds; fault: why an engine
    refuses it, "" if it is valid.
    """

    path: str
    kind: str = OTHER
    program: str = ""
    words: tuple[str, ...] = ()
    timeout: int | None = None
    stages: tuple[str, ...] = ()
    always: bool = False
    fault: str = ""

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def file(self) -> str:
        """The file's name: a file masks those of the same name in folders of lower precedence."""
        return self.path.rpartition("/")[2]


def of_engines(host: HostRoot, engines: tuple[Engine, ...]) -> tuple[Registration, ...]:
    """The registrations in the engines' default folders, and in those that these engines are set to."""
    folders = {VENDORS_FOLDER, ADMINISTRATORS_FOLDER, *[folder for engine in engines for folder in engine.folders]}
    paths = [f"{folder}/{name}" for folder in sorted(folders) for name in host.names(folder) if name.endswith(".json")]
    # Engines pass over a link that leads nowhere.
    return tuple([_registration(host, path) for path in paths if host.stat(path) is not None])


def effective(engine: Engine, registered: tuple[Registration, ...]) -> list[Registration]:
    """What an engine takes: of files of one name that of its last folder."""
    read = [item for folder in engine.folders for item in registered if item.folder == folder]
    return list({item.file: item for item in read}.values())


def _registration(host: HostRoot, path: str) -> Registration:
    # An engine may be told to look in a folder of a user's.
    data = foreignfile.read_file(host, path)
    if data is None:
        return Registration(path, fault="it cannot be read")
    try:
        return _read(path, jsontext.loads(data))
    except ValueError as err:
        return Registration(path, fault=f"it is not JSON: {err}")
    except (KeyError, TypeError, AttributeError):
        return Registration(path, fault="it is not a hook's registration")


def _read(path: str, document: Any) -> Registration:
    version = document.get("version", "0.1.0")
    if version not in ("0.1.0", "1.0.0"):
        return Registration(path, fault=f"its version {version} is unknown to engines")
    hook = document["hook"]
    stages = document.get("stages", document.get("stage", "(none)"))
    listed = (stages,) if isinstance(stages, str) else tuple([str(word) for word in stages])
    unknown = [stage for stage in listed if stage not in _STAGES]
    if unknown:
        return Registration(path, fault=f"its stage {unknown[0]} is unknown to engines")
    when = document.get("when", {})
    # In version 0.1.0 the value is the program's path.
    details = {"path": hook} if isinstance(hook, str) else hook
    program, timeout = details["path"], details.get("timeout")
    name = program.rpartition("/")[2]
    return Registration(
        path=path,
        kind=next((kind for kind, beginnings in _KINDS.items() if name.startswith(beginnings)), OTHER),
        program=program,
        words=tuple([str(word) for word in details.get("args") or ()]),
        timeout=timeout if isinstance(timeout, int) else None,
        stages=listed,
        always=isinstance(when, dict) and when.get("always") is True,
    )
