# SPDX-License-Identifier: Apache-2.0
"""Docker on this host: the program that dockerd starts for ``--gpus``, and its settings.

dockerd looks for ``nvidia-container-runtime-hook`` in its PATH, once, when it starts.  Reads only, asks no daemon, and
starts nothing.
"""

from __future__ import annotations

import posix
from contextlib import suppress
from typing import TYPE_CHECKING

from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_open_to_others, is_regular
from oci_gpu_hook.node.engines import containerdevices, states
from oci_gpu_hook.node.machine import closing, processes, untrusted
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LINK = "nvidia-container-runtime-hook"
RUNTIME = "oci-gpu-runtime"
# NVIDIA's packages bring them: with the first comes the program of the link's name, and by the second Docker 29.2 and
# later see that they can serve --gpus by CDI.
TOOLKIT, CDI_HOOK = "nvidia-container-toolkit", "nvidia-cdi-hook"
OPEN, LED = "open", "led"
SETTINGS = "/etc/docker/daemon.json"
_OURS = f"/usr/bin/{RUNTIME}"
_ROOTLESS = ".config/docker/daemon.json"
# systemd's own, where no dockerd runs that could tell.
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
_EXECUTABLE = 0o111
_SECONDS_OF_USERS = 1.0
# Far above what anybody writes.
_LARGEST_SETTINGS = 1 << 20


class Daemon(NamedTuple):
    """A dockerd that runs: its process, when it began (seconds since 1970), its PATH and its file of settings."""

    pid: int
    began: float
    folders: tuple[str, ...]
    settings: str


class Runtime(NamedTuple):
    """A runtime that an engine's settings name; is_ours: by a link, too; is_default: of containers that name none."""

    file: str
    name: str
    program: str
    is_there: bool
    is_ours: bool
    is_default: bool


class Settings(NamedTuple):
    """daemon.json: its path, what is wrong with it, whether dockerd can read it, and what it says of runtimes.

    fault: "" for nothing, and where there is no file; danger: whether others than root could write it, `OPEN`, or have
    it lead elsewhere, `LED`; "" for neither.
    """

    path: str
    fault: str = ""
    danger: str = ""
    runtimes: tuple[Runtime, ...] = ()


class Docker(NamedTuple):
    """Docker on this host.

    program: what dockerd finds first of the link's name, "" for nothing; leads_to: that without links; placed: when
    that name was made (seconds since 1970); lost: a link of that name that leads nowhere; rivals: programs of NVIDIA's
    packages; daemon: None if none runs, or we may not see it; of_users: ours that users' own daemons are set to.
    """

    program: str
    leads_to: str
    placed: float
    lost: str
    rivals: tuple[str, ...]
    daemon: Daemon | None
    settings: Settings
    of_users: tuple[Runtime, ...] = ()


def look(root: HostRoot) -> Docker | None:
    """Docker on this host; None if there is none."""
    daemon = _daemon(root)
    folders = daemon.folders if daemon else _PATH
    if daemon is None and not _program(root, "dockerd", folders):
        return None
    program = _program(root, LINK, folders)
    named = [f"{folder}/{LINK}" for folder in folders]
    lost = [path for path in named if root.link(path) is not None and root.stat(path) is None]
    rivals = [_program(root, name, folders) for name in (TOOLKIT, CDI_HOOK)]
    return Docker(
        program=program,
        leads_to=root.real(program) if program else "",
        placed=_placed(root, program) if program else 0.0,
        lost=lost[0] if lost else "",
        rivals=tuple([path for path in rivals if path]),
        daemon=daemon,
        settings=settings(root, daemon.settings if daemon else SETTINGS, folders),
        of_users=tuple(_of_users(root)),
    )


def _of_users(root: HostRoot) -> Iterator[Runtime]:
    """What users' own daemons read; nothing else that a user names is looked at."""
    mounts, budget = untrusted.our_mounts(), untrusted.Budget(_SECONDS_OF_USERS)
    for uid, home in states.homes(root).items():
        path = f"{home}/{_ROOTLESS}"
        document = untrusted.Files(root, uid, mounts, budget).parsed(path)
        if isinstance(document, dict):
            programs, default = _runtimes(document)
            for name in [name for name, program in programs if program in (_OURS, RUNTIME)]:
                yield runtime(root, path, name, _OURS, default)


def _program(root: HostRoot, name: str, folders: tuple[str, ...]) -> str:
    """The first file of this name that can be run; "" for none."""
    for folder in folders:
        status = root.stat(f"{folder}/{name}")
        if status is not None and is_regular(status) and status.st_mode & _EXECUTABLE:
            return f"{folder}/{name}"
    return ""


def _placed(root: HostRoot, path: str) -> float:
    """When a name came to lie where it lies: a link's own time, which no package sets."""
    with suppress(OSError), closing(root.open(path, posix.O_PATH | posix.O_NOFOLLOW)) as fd:
        return posix.fstat(fd).st_ctime
    return 0.0


def _daemon(root: HostRoot) -> Daemon | None:
    """The first dockerd that root runs on the host itself."""
    for pid in processes.numbers(root):
        if processes.program(root, pid) != "dockerd":
            continue
        began = processes.started(root, pid)
        if began is None:
            continue  # it has ended
        variables = dict([item.partition("=")[::2] for item in processes.environment(root, pid)])
        path = variables.get("PATH", ":".join(_PATH))
        folders = [folder for folder in path.split(":") if folder[:1] == "/"]
        words = processes.command_line(root, pid)
        pairs = [(*word.partition("="), after) for word, after in zip(words, [*words[1:], ""])]
        named = [value if equals else after for name, equals, value, after in pairs if name == "--config-file"]
        file = named[0] if named else SETTINGS
        return Daemon(pid, containerdevices.since(root, began), tuple(folders), file)
    return None


def settings(root: HostRoot, path: str = SETTINGS, folders: tuple[str, ...] = _PATH) -> Settings:
    """What a file of settings says; folders: those in which dockerd looks for programs."""
    status = root.stat(path)
    if status is None:
        return Settings(path)
    if not is_regular(status):
        return Settings(path, "it is no file")
    if status.st_size > _LARGEST_SETTINGS:
        return Settings(path, f"it is larger than {_LARGEST_SETTINGS >> 20} MiB")
    # Where it is a link, others may have put another thing in its place meanwhile.
    data = untrusted.read(root, path, _LARGEST_SETTINGS)
    if data is None:
        return Settings(path, "it cannot be read")
    try:
        document = jsontext.loads(data)
    except ValueError as err:
        return Settings(path, f"it is no JSON: {str(err)[:200]}")
    if not isinstance(document, dict):
        return Settings(path, "it is no JSON object")
    programs, default = _runtimes(document)
    runtimes = [runtime(root, path, name, program, default, folders) for name, program in programs]
    found = root.source(path)
    # Who else than root could decide what dockerd reads could be root.
    fault = found[1] if found else ""
    if not fault and is_open_to_others(status, posix.fstat(root.fd).st_uid):
        fault = "others than root may write it"
    danger = (LED if root.link(path) is not None else OPEN) if fault else ""
    return Settings(path, fault, danger, tuple(runtimes))


def _runtimes(document: dict[str, Any]) -> tuple[list[tuple[str, str]], str]:
    """Name and program of each runtime in a daemon.json, and the name of the default one."""
    named = document.get("runtimes")
    programs = [
        (name, str(value.get("path", "")) if isinstance(value, dict) else "")
        for name, value in (named.items() if isinstance(named, dict) else ())
    ]
    return programs, str(document.get("default-runtime") or "")


def runtime(
    root: HostRoot, file: str, name: str, program: str, default: str, folders: tuple[str, ...] = _PATH
) -> Runtime:
    """The runtime that a file names so; folders: those in which its engine looks for programs."""
    # A name without a folder is looked for in the PATH.
    found = program if program.startswith("/") else _program(root, program, folders)
    is_there = bool(found) and root.stat(found) is not None
    return Runtime(file, name, program, is_there, is_ours(root, found or program), name == default)


def is_ours(root: HostRoot, program: str) -> bool:
    """Whether this is our runtime's path, or a link leads from it to our runtime."""
    paths = (program, root.real(program) if program.startswith("/") else "")
    return RUNTIME in [path.rpartition("/")[2] for path in paths]
