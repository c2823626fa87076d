# SPDX-License-Identifier: Apache-2.0
"""The hooks that are registered with engines (oci-hooks(5)), and what of ours is installed behind a registration.

Reads only, runs nothing.  Never on the hook's path.
"""

from __future__ import annotations

from oci_gpu_hook import jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DOOR = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
REGISTRATION = "oci-gpu-hook.json"
_PACKAGE = "oci_gpu_hook/__main__.py"
_LINKED = "oci_gpu_hook/__linked__"
_WRITABLE_BY_OTHERS = 0o022
_EXECUTABLE = 0o111

# oci-hooks(5).
_STAGES = (
    "precreate",
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)

OURS, NVIDIAS, OTHER = "ours", "NVIDIA's", "other"
_NVIDIAS = ("nvidia-container-", "oci-nvidia-hook", "nvidia-ctk", "nvidia-cdi-hook")


class Registration(NamedTuple):
    """One JSON file of a hooks folder.

    words: what its program is started with; timeout: in seconds, None where there is none; fault: why an engine refuses
    it, "" where it takes it.
    """

    path: str
    kind: str
    program: str
    words: tuple[str, ...]
    timeout: int | None
    stages: tuple[str, ...]
    always: bool
    fault: str

    @property
    def file(self) -> str:
        """By this name files of several folders mask one another."""
        return self.path.rpartition("/")[2]


class Installation(NamedTuple):
    """What the engine starts.  Paths are "" where they are not there.

    missing_shell: what the door is written for, where that is not there; interpreter: as the door names it; python: the
    file that it leads to; library: the folder that the door imports from; is_linked: whether that holds what is linked
    for this Python; leftovers: what an installation that did not end has left; open_to_others: what others may write.
    """

    door: str
    is_there: bool
    missing_shell: str
    interpreter: str
    python: str
    library: str
    is_whole: bool
    is_linked: bool
    leftovers: tuple[str, ...]
    open_to_others: tuple[str, ...]


def of_folder(root: HostRoot, folder: str) -> tuple[Registration, ...]:
    """A folder's registrations, in the order of their names."""
    paths = [f"{folder}/{name}" for name in root.names(folder) if name.endswith(".json")]
    # Engines pass over a link that leads nowhere.
    return tuple([_registration(root, path) for path in paths if root.stat(path) is not None])


def installation(root: HostRoot, door: str, hooks: tuple[Registration, ...]) -> Installation:
    """What lies behind a door, ours or not; `hooks`: those by which engines find it."""
    text = (root.read(door) or b"").decode("utf-8", "replace")
    # As packaging/install.sh writes them into hooks.d/oci-gpu-hook: the door is bash, and these are what it starts.
    interpreter = text.partition(" exec ")[2].partition(" ")[0]
    library = text.partition("PYTHONPATH=")[2].partition("/oci_gpu_hook/startup ")[0]
    status = root.stat(door)
    shell = text.partition("\n")[0].partition("#!")[2].partition(" ")[0]
    python = root.real(interpreter) if interpreter and root.stat(interpreter) else ""
    ours = {hook.path for hook in hooks if hook.kind == OURS}
    registered = sorted(ours | {path.rpartition("/")[0] for path in ours})
    run = [door, door.rpartition("/")[0], *registered, *(_below(root, library) if library else ())]
    return Installation(
        door=door,
        is_there=status is not None and bool(status.st_mode & _EXECUTABLE),
        missing_shell=shell if shell and root.stat(shell) is None else "",
        interpreter=interpreter,
        python=python,
        library=library,
        is_whole=bool(library) and root.stat(f"{library}/{_PACKAGE}") is not None,
        is_linked=_is_linked(root.names(f"{library}/{_LINKED}"), python),
        leftovers=_leftovers(root, door, library),
        open_to_others=tuple([path for path in run if _is_open(root, path)]),
    )


def _below(root: HostRoot, path: str) -> list[str]:
    """A folder and all that is in it."""
    if root.link(path) is not None:
        return []
    inside = [f"{path}/{name}" for name in root.names(path)]
    return [path, *[found for item in inside for found in _below(root, item)]]


def _is_linked(names: list[str], python: str) -> bool:
    """Whether there is what link.py writes for the Python of this name; one that tells no version has the say."""
    version = python.rpartition("/python")[2].partition(".")
    if not version[2]:
        return True
    tag = f"cpython-{version[0]}{version[2]}"
    return f"rooms.{tag}" in names


def _leftovers(root: HostRoot, door: str, library: str) -> tuple[str, ...]:
    """What install.sh moves into place last, when it could not: see there."""
    paths = [f"{door}.new"]
    paths += [f"{library}/{name}" for name in (".new", ".old") if library]
    return tuple([path for path in paths if root.stat(path) is not None])


def _is_open(root: HostRoot, path: str) -> bool:
    status = root.stat(path)
    return status is not None and (status.st_uid != 0 or bool(status.st_mode & _WRITABLE_BY_OTHERS))


def _registration(root: HostRoot, path: str) -> Registration:
    data = root.read(path)
    if data is None:
        return _refused(path, "it cannot be read")
    try:
        document: Any = jsontext.loads(data)
        return _read(path, document)
    except ValueError as err:
        return _refused(path, f"it is no JSON: {err}")
    except (KeyError, TypeError, AttributeError):
        return _refused(path, "it is no hook's registration")


def _refused(path: str, fault: str) -> Registration:
    return Registration(path, OTHER, "", (), None, (), False, fault)


def _read(path: str, document: Any) -> Registration:
    version = document.get("version", "0.1.0")
    if version not in ("0.1.0", "1.0.0"):
        return _refused(path, f"its version {version} is none that engines know")
    hook = document["hook"]
    stages = document.get("stages", document.get("stage"))
    if stages is None:
        return _refused(path, "it names no stages")
    named = (stages,) if isinstance(stages, str) else tuple([str(word) for word in stages])
    unknown = [stage for stage in named if stage not in _STAGES]
    if unknown:
        return _refused(path, f"its stage {unknown[0]} is none that engines know")
    when = document.get("when", {})
    # Version 0.1.0 has the program itself there.
    details = {"path": hook} if isinstance(hook, str) else hook
    program, timeout = details["path"], details.get("timeout")
    return Registration(
        path=path,
        kind=_kind(program),
        program=program,
        words=tuple([str(word) for word in details.get("args") or ()]),
        timeout=timeout if isinstance(timeout, int) else None,
        stages=named,
        always=isinstance(when, dict) and when.get("always") is True,
        fault="",
    )


def _kind(program: str) -> str:
    name = program.rpartition("/")[2]
    if name.startswith(_NVIDIAS):
        return NVIDIAS
    return OURS if name.startswith(("oci-gpu-hook", "oci_gpu_hook")) else OTHER
