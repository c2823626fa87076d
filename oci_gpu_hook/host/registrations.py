# SPDX-License-Identifier: Apache-2.0
"""The hooks that are registered with engines (oci-hooks(5)), and what of ours is installed behind a registration.

Reads only, runs nothing.  Never on the hook's path.
"""

from __future__ import annotations

from oci_gpu_hook import jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

DOOR = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
REGISTRATION = "oci-gpu-hook.json"
_PACKAGE = "oci_gpu_hook/__main__.py"
_WRITABLE_BY_OTHERS = 0o022
_EXECUTABLE = 0o111

OURS, NVIDIAS, OTHER = "ours", "NVIDIA's", "other"
_NVIDIAS = ("nvidia-container-", "oci-nvidia-hook", "nvidia-ctk", "nvidia-cdi-hook")


class Registration(NamedTuple):
    """One JSON file of a hooks folder; fault: why an engine refuses it, "" where it takes it."""

    path: str
    kind: str
    program: str
    stages: tuple[str, ...]
    always: bool
    fault: str

    @property
    def file(self) -> str:
        """By this name files of several folders mask one another."""
        return self.path.rpartition("/")[2]


class Installation(NamedTuple):
    """What the engine starts.  Paths are "" where they are not there.

    interpreter: as the door names it; python: the file that it leads to; library: the folder that the door
    imports from; leftovers: what an installation that did not end has left; open_to_others: what others may write.
    """

    door: str
    is_there: bool
    interpreter: str
    python: str
    library: str
    is_whole: bool
    leftovers: tuple[str, ...]
    open_to_others: tuple[str, ...]


def of_folder(root: HostRoot, folder: str) -> tuple[Registration, ...]:
    """A folder's registrations, in the order of their names."""
    names = [name for name in root.names(folder) if name.endswith(".json")]
    return tuple([_registration(root, f"{folder}/{name}") for name in names])


def installation(root: HostRoot, door: str) -> Installation:
    """What lies behind a door, ours or not."""
    text = (root.read(door) or b"").decode("utf-8", "replace")
    # As packaging/install.sh writes them into hooks.d/oci-gpu-hook: the door is bash, and these are what it starts.
    interpreter = text.partition(" exec ")[2].partition(" ")[0]
    library = text.partition('library = "')[2].partition('"')[0]
    status = root.stat(door)
    package = f"{library}/{_PACKAGE}"
    return Installation(
        door=door,
        is_there=status is not None and bool(status.st_mode & _EXECUTABLE),
        interpreter=interpreter,
        python=root.real(interpreter) if interpreter and root.stat(interpreter) else "",
        library=library,
        is_whole=bool(library) and root.stat(package) is not None,
        leftovers=_leftovers(root, door, library),
        open_to_others=tuple([p for p in (door, library, package) if p and _is_open(root, p)]),
    )


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
        return Registration(path, OTHER, "", (), False, "it leads nowhere or cannot be read")
    try:
        document = jsontext.loads(data)
        hook = document["hook"]  # type: ignore[index]
        stages = document.get("stages", document.get("stage", ()))  # type: ignore[attr-defined]
        # Version 0.1.0 has the program itself there.
        program = hook if isinstance(hook, str) else hook["path"]
        when = document.get("when", {})  # type: ignore[attr-defined]
        always = isinstance(when, dict) and when.get("always") is True
        words = (stages,) if isinstance(stages, str) else tuple([str(word) for word in stages])
        return Registration(path, _kind(program), program, words, always, "")
    except ValueError as err:
        return Registration(path, OTHER, "", (), False, f"it is no JSON: {err}")
    except (KeyError, TypeError, AttributeError):
        return Registration(path, OTHER, "", (), False, "it is no hook's registration")


def _kind(program: str) -> str:
    name = program.rpartition("/")[2]
    if name.startswith(_NVIDIAS):
        return NVIDIAS
    return OURS if name.startswith(("oci-gpu-hook", "oci_gpu_hook")) else OTHER
