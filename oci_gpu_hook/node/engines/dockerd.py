# SPDX-License-Identifier: Apache-2.0
"""Docker on this host: the program that dockerd starts for ``--gpus``, and its settings.

dockerd looks for ``nvidia-container-runtime-hook`` in its PATH, once, when it starts.  Reads only, asks no daemon, and
starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.node.engines import containerdevices, states
from oci_gpu_hook.node.machine import processes, untrusted
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LINK = "nvidia-container-runtime-hook"
RUNTIME = "oci-gpu-runtime"
SETTINGS = "/etc/docker/daemon.json"
_OURS = f"/usr/bin/{RUNTIME}"
_ROOTLESS = ".config/docker/daemon.json"
# systemd's own, where no dockerd runs that could tell.
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
_EXECUTABLE = 0o111
_SECONDS_OF_USERS = 1.0
# Far above what anybody writes.
_LARGEST_SETTINGS = 1 << 20


class Runtime(NamedTuple):
    """A runtime that an engine's settings name; is_default: of containers that name none; is_ours: by a link, too."""

    engine: str
    file: str
    name: str
    is_default: bool
    program: str = ""
    is_there: bool = False
    is_ours: bool = False


class Docker(NamedTuple):
    """Docker on this host.

    folders: its PATH; file: of its settings; program: what it finds first of the link's name, "" for nothing; leads_to:
    that without links; pid, began: of the dockerd that runs, began in seconds since 1970; 0 if none runs, or we may not
    see it.
    """

    folders: tuple[str, ...]
    file: str
    program: str
    leads_to: str
    pid: int = 0
    began: float = 0.0


def look(root: HostRoot) -> Docker | None:
    """Docker on this host: by the first dockerd that root runs on the host itself, else by its program; else None."""
    for pid in processes.numbers(root):
        if processes.program(root, pid) != "dockerd" or (began := processes.started(root, pid)) is None:
            continue
        variables = dict([item.partition("=")[::2] for item in processes.environment(root, pid)])
        path = variables.get("PATH", ":".join(_PATH))
        words = processes.command_line(root, pid)
        pairs = [(*word.partition("="), after) for word, after in zip(words, [*words[1:], ""])]
        named = [value if equals else after for name, equals, value, after in pairs if name == "--config-file"]
        folders = tuple([folder for folder in path.split(":") if folder[:1] == "/"])
        return _docker(root, folders, named[0] if named else SETTINGS, pid, containerdevices.since(root, began))
    return _docker(root, _PATH, SETTINGS) if program(root, "dockerd", _PATH) else None


def _docker(root: HostRoot, folders: tuple[str, ...], file: str, pid: int = 0, began: float = 0.0) -> Docker:
    found = program(root, LINK, folders)
    return Docker(folders, file, found, root.real(found) if found else "", pid, began)


def of_users(root: HostRoot) -> Iterator[Runtime]:
    """Our runtimes in what users' own daemons read; nothing else that a user names is looked at."""
    mounts, budget = untrusted.our_mounts(), untrusted.Budget(_SECONDS_OF_USERS)
    for uid, home in states.homes(root).items():
        path = f"{home}/{_ROOTLESS}"
        programs, default = _named(untrusted.Files(root, uid, mounts, budget).object(path))
        for name in [name for name, its in programs if its in (_OURS, RUNTIME)]:
            yield runtime(root, "Docker", path, name, _OURS, default)


def program(root: HostRoot, name: str, folders: tuple[str, ...]) -> str:
    """The first file of this name that can be run; "" for none."""
    for folder in folders:
        status = root.stat(f"{folder}/{name}")
        if status is not None and is_regular(status) and status.st_mode & _EXECUTABLE:
            return f"{folder}/{name}"
    return ""


def runtimes(root: HostRoot, path: str = SETTINGS, folders: tuple[str, ...] = _PATH) -> list[Runtime]:
    """The runtimes in a daemon.json; folders: those in which dockerd looks for programs.

    None without a file; ValueError says why dockerd cannot read it.
    """
    status = root.stat(path)
    if status is None:
        return []
    if not is_regular(status):
        raise ValueError("it is no file")
    if status.st_size > _LARGEST_SETTINGS:
        raise ValueError(f"it is larger than {_LARGEST_SETTINGS >> 20} MiB")
    # Where it is a link, others may have put another thing in its place meanwhile.
    data = untrusted.read(root, path, _LARGEST_SETTINGS)
    if data is None:
        raise ValueError("it cannot be read")
    try:
        document = jsontext.loads(data)
    except ValueError as err:
        raise ValueError(f"it is no JSON: {str(err)[:200]}") from err
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    programs, default = _named(document)
    return [runtime(root, "Docker", path, name, its, default, folders) for name, its in programs]


def _named(document: dict[str, Any]) -> tuple[list[tuple[str, str]], str]:
    """Name and program of each runtime in a daemon.json, and the name of the default one."""
    named = document.get("runtimes")
    programs = [
        (name, str(value.get("path", "")) if isinstance(value, dict) else "")
        for name, value in (named.items() if isinstance(named, dict) else ())
    ]
    return programs, str(document.get("default-runtime") or "")


def runtime(
    root: HostRoot, engine: str, file: str, name: str, path: str, default: str, folders: tuple[str, ...] = _PATH
) -> Runtime:
    """The runtime that a file names so; folders: those in which its engine looks for programs."""
    # A name without a folder is looked for in the PATH.
    found = path if path.startswith("/") else program(root, path, folders)
    is_there = bool(found) and root.stat(found) is not None
    return Runtime(engine, file, name, name == default, path, is_there, is_ours(root, found or path))


def is_ours(root: HostRoot, path: str) -> bool:
    """Whether this is our runtime's path, or a link leads from it to our runtime."""
    paths = (path, root.real(path) if path.startswith("/") else "")
    return RUNTIME in [path.rpartition("/")[2] for path in paths]
