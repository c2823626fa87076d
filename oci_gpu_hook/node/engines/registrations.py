# SPDX-License-Identifier: Apache-2.0
"""The hooks that are registered with engines (oci-hooks(5)).  Reads only, runs nothing."""

from __future__ import annotations

from typing import Any

from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.installed import ADMINISTRATORS_FOLDER, VENDORS_FOLDER, Engine
from oci_gpu_hook.node.machine import foreignfile
from oci_gpu_hook.record import NamedTuple

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
    return tuple([item for folder in sorted(folders) for item in of_folder(host, folder)])


def of_folder(host: HostRoot, folder: str) -> tuple[Registration, ...]:
    """The registrations in a folder, in the order of their names."""
    paths = [f"{folder}/{name}" for name in host.names(folder) if name.endswith(".json")]
    # Engines pass over a link that leads nowhere.
    return tuple([_registration(host, path) for path in paths if host.stat(path) is not None])


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
