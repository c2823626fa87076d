# SPDX-License-Identifier: Apache-2.0
"""The host's engines that read CDI specs, and the folders in which each looks for them.

containers.conf(5), crio.conf(5), containerd's config.toml (cdi_spec_dirs), Docker's daemon.json (cdi-spec-dirs).  Reads
only.
"""

from __future__ import annotations

from typing import Any

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.engines.enginekinds import DOCKER, ENGINES, EngineKind
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.words import CDI_FOLDERS

_LONGEST_PATH = 4096  # PATH_MAX
_FOLDERS, _IS_ON = "cdi_spec_dirs", "enable_cdi"


class Reader(NamedTuple):
    """An engine that gives devices by CDI.

    folders: where it looks for specs, links resolved, () for nowhere; file: that says so, "" for the engine's default.
    """

    engine: str
    folders: tuple[str, ...]
    file: str = ""


def find_readers(root: HostRoot, docker: dict[str, Any] | None, docker_file: str) -> tuple[Reader, ...]:
    """Every installed engine; docker: dockerd's settings, None if there is no dockerd, or they cannot be read."""
    found = [_by_toml(root, kind) for kind in ENGINES if kind.files and installed.is_there(root, kind)]
    if docker is not None:
        features, named = docker.get("features"), docker.get("cdi-spec-dirs")
        values: list[tuple[str, dict[str, Any]]] = []
        if isinstance(features, dict) and features.get("cdi") is False:
            values = [(docker_file, {_FOLDERS: []})]
        elif named:
            # For dockerd an empty list is its default, and an empty name no folder.
            values = [(docker_file, {_FOLDERS: named})]
        found.append(_reader(root, DOCKER.name, values))
    return tuple(found)


def _by_toml(root: HostRoot, kind: EngineKind) -> Reader:
    name, files = kind.name, installed.values_of(root, kind)
    # Of a key that several files have the last one counts.
    said = [(file, it) for file, values in files for key, it in values.items() if key.endswith(_IS_ON)]
    return Reader(name, (), said[-1][0]) if said and said[-1][1] is False else _reader(root, name, files)


def _reader(root: HostRoot, name: str, files: list[tuple[str, dict[str, Any]]]) -> Reader:
    folders, file = installed.named_folders(files, _FOLDERS, CDI_FOLDERS)
    paths = [_resolved(root, it) for it in folders if it[:1] == "/" and len(it) < _LONGEST_PATH]
    return Reader(name, tuple(dict.fromkeys(paths)), file)


def _resolved(root: HostRoot, folder: str) -> str:
    """A folder's path without links, as far as it is there: /var/run is a link to /run."""
    above, names = folder.rstrip("/"), ""
    while above and root.stat(above) is None:
        above, _, name = above.rpartition("/")
        names = f"/{name}{names}"
    return f"{root.real(above or '/').rstrip('/')}{names}"
