# SPDX-License-Identifier: Apache-2.0
"""The hooks that are registered with engines (oci-hooks(5)), and the installation that a registration of ours leads to.

Reads only, runs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_open_to_others
from oci_gpu_hook.node.machine import text, untrusted
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from typing import Any

ENTRY = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
REGISTRATION = "oci-gpu-hook.json"
_PACKAGE = "oci_gpu_hook/__main__.py"
_LINKED = "oci_gpu_hook/__linked__"
_EXECUTABLE = 0o111

# oci-hooks(5).
_STAGES = ("precreate", "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

OURS, NVIDIAS, OTHER = "ours", "NVIDIA's", "other"
_NVIDIAS = ("nvidia-container-", "oci-nvidia-hook", "nvidia-ctk", "nvidia-cdi-hook")


class Registration(NamedTuple):
    """One JSON file of a hooks folder.

    words: the arguments of its program; timeout: in seconds, None if there is none; fault: why an engine refuses it,
    "" if it is valid.
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
    def file(self) -> str:
        """The file's name: a file masks those of the same name in folders of lower precedence."""
        return self.path.rpartition("/")[2]


class Installation(NamedTuple):
    """The files that an engine starts and needs.  A path is "" if there is no such file.

    entry: the entry script; is_there: whether it exists and can be run; missing_shell: the shell that it names, if that
    does not exist; interpreter: the Python that it names; python: the file that this name leads to; library: the folder
    that it imports from; is_whole: whether the package is there; is_linked: whether it is linked for this Python (see
    packaging/link.py); leftovers: files of an installation that was interrupted; open_to_others: files that others than
    root may write.
    """

    entry: str
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
    """The registrations in a folder, in the order of their names."""
    paths = [f"{folder}/{name}" for name in root.names(folder) if name.endswith(".json")]
    # Engines pass over a link that leads nowhere.
    return tuple([_registration(root, path) for path in paths if root.stat(path) is not None])


def installation(root: HostRoot, entry: str, hooks: tuple[Registration, ...]) -> Installation:
    """The installation of the entry script at `entry`, ours or another's; `hooks`: all registrations."""
    script = text(root, entry)
    # The entry script is bash, and packaging/install.sh writes these two paths into it.
    interpreter = script.partition(" exec ")[2].partition(" ")[0]
    library = script.partition('sys.path.insert(0, "')[2].partition("/oci_gpu_hook/startup")[0]
    status = root.stat(entry)
    shell = script.partition("\n")[0].partition("#!")[2].partition(" ")[0]
    python = root.real(interpreter) if interpreter and root.stat(interpreter) else ""
    # The file that packaging/link.py writes for this Python; without a version in the Python's name nobody can tell.
    major, dot, minor = python.rpartition("/python")[2].partition(".")
    is_linked = not dot or f"modules.cpython-{major}{minor}" in root.names(f"{library}/{_LINKED}")
    ours = {hook.path for hook in hooks if hook.kind == OURS}
    registered = sorted(ours | {path.rpartition("/")[0] for path in ours})
    package = _below(root, library) if library else []
    run_as_root = [entry, entry.rpartition("/")[0], *registered, *package]
    # What packaging/install.sh leaves where it was interrupted before it could move the files into place.
    left = [f"{entry}.new", *[f"{library}/{name}" for name in (".new", ".old") if library]]
    return Installation(
        entry=entry,
        is_there=status is not None and bool(status.st_mode & _EXECUTABLE),
        missing_shell=shell if shell and root.stat(shell) is None else "",
        interpreter=interpreter,
        python=python,
        library=library,
        is_whole=bool(library) and root.stat(f"{library}/{_PACKAGE}") is not None,
        is_linked=is_linked,
        leftovers=tuple([path for path in left if root.stat(path) is not None]),
        open_to_others=tuple([path for path in run_as_root if (at := root.stat(path)) and is_open_to_others(at)]),
    )


def _below(root: HostRoot, path: str) -> list[str]:
    """A folder and everything in it."""
    if root.link(path) is not None:
        return []
    inside = [f"{path}/{name}" for name in root.names(path)]
    return [path, *[found for item in inside for found in _below(root, item)]]


def _registration(root: HostRoot, path: str) -> Registration:
    # An engine may be told to look in a folder of a user's.
    data = untrusted.read(root, path)
    if data is None:
        return Registration(path, fault="it cannot be read")
    try:
        return _read(path, jsontext.loads(data))
    except ValueError as err:
        return Registration(path, fault=f"it is no JSON: {err}")
    except (KeyError, TypeError, AttributeError):
        return Registration(path, fault="it is no hook's registration")


def _read(path: str, document: Any) -> Registration:
    version = document.get("version", "0.1.0")
    if version not in ("0.1.0", "1.0.0"):
        return Registration(path, fault=f"its version {version} is unknown to engines")
    hook = document["hook"]
    stages = document.get("stages", document.get("stage"))
    if stages is None:
        return Registration(path, fault="it names no stages")
    listed = (stages,) if isinstance(stages, str) else tuple([str(word) for word in stages])
    unknown = [stage for stage in listed if stage not in _STAGES]
    if unknown:
        return Registration(path, fault=f"its stage {unknown[0]} is unknown to engines")
    when = document.get("when", {})
    # In version 0.1.0 the value is the program's path.
    details = {"path": hook} if isinstance(hook, str) else hook
    program, timeout = details["path"], details.get("timeout")
    return Registration(
        path=path,
        kind=_kind(program),
        program=program,
        words=tuple([str(word) for word in details.get("args") or ()]),
        timeout=timeout if isinstance(timeout, int) else None,
        stages=listed,
        always=isinstance(when, dict) and when.get("always") is True,
    )


def _kind(program: str) -> str:
    name = program.rpartition("/")[2]
    if name.startswith(_NVIDIAS):
        return NVIDIAS
    return OURS if name.startswith(("oci-gpu-hook", "oci_gpu_hook")) else OTHER
