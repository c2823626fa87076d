#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the MachineConfigs that put the hook on OpenShift's nodes, from this tree: the same bytes for the same tree.

    generate.py FOLDER [--role gpu] [--settings FILE]    writes machineconfig.yaml and machineconfig-selinux.yaml there
    generate.py FOLDER --check ...                       compares those in FOLDER with this tree; exit 1 if they differ

They are not in git: each holds the whole program, and would be out of date after every change of it.
Must not need anything but Python, and must not decide where the hook's files go: packaging/install.sh does.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import importlib.util
import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1]
# The version of Ignition in OpenShift 4.7; OpenShift's machine-config-daemon unpacks gzip from 4.10 on.
IGNITION = "3.2.0"
PREFIX = "/usr/local"  # a link to /var/usrlocal: the one place for programs where /usr is read-only
LIBRARY = f"{PREFIX}/lib/oci-gpu-hook"
NODE_PYTHON = "/usr/bin/python3"
DELIVERED = f"{PREFIX}/libexec/oci-gpu-hook"
# What the commands import beside Python's own, and RHEL CoreOS has not: the command line, and NVML.
VENDOR = ("click", "pynvml")
READY = "oci-gpu-hook-ready.service"
# CRI-O reads drop-ins in the order of their names: ours comes after the operator's own 00-default.
DROP_IN = "/etc/crio/crio.conf.d/90-oci-gpu-hook.conf"
HOOKS_DIRS = """\
# oci-gpu-hook: the last folder is where oci-gpu-hook-ready.service registers it; the others are as they were.
[crio.runtime]
hooks_dir = [
    "/usr/share/containers/oci/hooks.d",
    "/etc/containers/oci/hooks.d",
    "/run/containers/oci/hooks.d",
]
"""


class File(NamedTuple):
    """One file of the node."""

    path: str
    content: bytes
    mode: int = 0o644


class Unit(NamedTuple):
    """One unit of the node's systemd."""

    name: str
    contents: str
    enabled: bool = True


def installed(destination: Path) -> list[File]:
    """The files that `make install` makes."""
    subprocess.run(
        (SOURCES / "packaging/install.sh", "install", destination, PREFIX, sys.executable),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found = []
    for path in sorted(destination.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes().replace(f"{sys.executable} -".encode(), f"{NODE_PYTHON} -".encode())
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        found.append(File(f"/{path.relative_to(destination)}", content, mode))
    return found


def payload(files: list[File]) -> bytes:
    """One archive of what install-node.sh installs: as separate files it would take half as much again."""
    wanted = [file for file in files if _is_wanted(file.path)]
    for name in VENDOR:
        wanted += _module(name)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for file in wanted:
            entry = tarfile.TarInfo(file.path.lstrip("/"))
            entry.size, entry.mode = len(file.content), file.mode
            tar.addfile(entry, io.BytesIO(file.content))
    return lzma.compress(archive.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def _is_wanted(name: str) -> bool:
    """Whether install-node.sh installs it; the node's own Python compiles and links the package."""
    if name.startswith(f"{LIBRARY}/oci_gpu_hook/"):
        return name.endswith(".py")
    whole = (f"{PREFIX}/bin/oci-gpu-hook", f"{PREFIX}/libexec/", f"{PREFIX}/share/oci-gpu-hook/vendors/")
    shared = (f"{PREFIX}/share/selinux/", f"{PREFIX}/share/containers/")
    return name == f"{LIBRARY}/link.py" or name.startswith((*whole, *shared))


def _module(name: str) -> list[File]:
    """The sources of a module or package that this Python has."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise OSError(f"{sys.executable} has no {name}: install click and nvidia-ml-py for it")
    top = Path(found.origin).parent
    paths = sorted(top.glob("*.py")) if found.submodule_search_locations else [Path(found.origin)]
    below = f"{LIBRARY}/vendor/{name}/" if found.submodule_search_locations else f"{LIBRARY}/vendor/"
    return [File(f"{below}{path.name}", path.read_bytes()) for path in paths]


def hook_files(made: list[File], settings: bytes | None) -> list[File]:
    """All files that a node needs to start the hook; made: what `make install` makes."""
    files = [
        File(f"{DELIVERED}/payload.tar.xz", payload(made)),
        File(f"{DELIVERED}/install-node.sh", (HERE / "install-node.sh").read_bytes(), 0o755),
        File(DROP_IN, HOOKS_DIRS.encode()),
    ]
    # Where the operator takes them away again; of a node's units it knows its own.
    for folder in ("udev/rules.d", "tmpfiles.d"):
        named = [file for file in made if file.path.startswith(f"{PREFIX}/lib/{folder}/")]
        files += [file._replace(path=f"/etc/{file.path[len(f'{PREFIX}/lib/') :]}") for file in named]
    if settings is not None:
        files.append(File("/etc/oci-gpu-hook.conf", settings))
    return sorted(files)


def hook_units(made: list[File]) -> list[Unit]:
    """What makes the hook ready, and those that keep nodes and inventory, enabled as a package's are."""
    folder = f"{PREFIX}/lib/systemd/"
    (preset,) = [file for file in made if file.path.startswith(f"{folder}system-preset/")]
    enabled = [line.partition(" ")[2] for line in preset.content.decode().splitlines() if line.startswith("enable ")]
    units = [file for file in made if file.path.startswith(f"{folder}system/")]
    found = [(file.path.rpartition("/")[2], file.content.decode()) for file in units]
    return [_unit(READY), *[Unit(name, text, name in enabled) for name, text in found]]


def _unit(name: str) -> Unit:
    return Unit(name, (HERE / name).read_text())


def policy_files() -> list[File]:
    """The policy module for containers.  The hook's own module is left out: its labels are for a package below /usr."""
    module = SOURCES / "policy/nvidia_container.cil"
    return [
        File(f"{DELIVERED}/{module.name}", module.read_bytes()),
        File(f"{DELIVERED}/load-policy.sh", (HERE / "load-policy.sh").read_bytes(), 0o755),
    ]


def machine_config(name: str, role: str, files: list[File], units: list[Unit]) -> dict[str, Any]:
    """A MachineConfig with these files and units."""
    return {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": f"99-{role}-{name}", "labels": {"machineconfiguration.openshift.io/role": role}},
        "spec": {
            "config": {
                "ignition": {"version": IGNITION},
                "storage": {"files": [_ignition_file(file) for file in files]},
                "systemd": {"units": [unit._asdict() for unit in units]},
            }
        },
    }


def _ignition_file(file: File) -> dict[str, Any]:
    # No time in the gzip header: the same bytes at every run.
    packed = base64.b64encode(gzip.compress(file.content, 9, mtime=0)).decode()
    return {
        "path": file.path,
        "mode": file.mode,
        "overwrite": True,
        "contents": {"compression": "gzip", "source": f"data:;base64,{packed}"},
    }


def as_yaml(value: Any, depth: int = 0) -> str:
    """Maps and lists as YAML's blocks, everything else as JSON, which YAML contains."""
    indent = "  " * depth
    if isinstance(value, dict):
        return "".join([f"{indent}{key}:{_after(item, depth)}" for key, item in value.items()])
    return "".join([f"{indent}- {as_yaml(item, depth + 1)[len(indent) + 2 :]}" for item in value])


def _after(item: Any, depth: int) -> str:
    if isinstance(item, (dict, list)):
        return f"\n{as_yaml(item, depth + 1)}"
    return f" {json.dumps(item)}\n"


def generated(role: str, settings: bytes | None) -> dict[str, str]:
    """The files to write, by name."""
    head = "# SPDX-License-Identifier: Apache-2.0\n# Made by packaging/openshift/generate.py.\n"
    with tempfile.TemporaryDirectory() as folder:
        made = installed(Path(folder))
    hook = machine_config("oci-gpu-hook", role, hook_files(made, settings), hook_units(made))
    policy = machine_config("oci-gpu-hook-selinux", role, policy_files(), [_unit("oci-gpu-hook-policy.service")])
    return {"machineconfig.yaml": head + as_yaml(hook), "machineconfig-selinux.yaml": head + as_yaml(policy)}


def main(arguments: list[str]) -> int:
    """Write or check; gives the exit code."""
    parser = argparse.ArgumentParser(description="MachineConfigs for oci-gpu-hook, from this tree")
    parser.add_argument("folder", type=Path, help="where they are written")
    parser.add_argument("--role", default="gpu", help="the MachineConfigPool's role (default: gpu)")
    parser.add_argument("--settings", type=Path, help="the file for /etc/oci-gpu-hook.conf")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args(arguments)
    try:
        made = generated(options.role, options.settings.read_bytes() if options.settings else None)
        if options.check:
            return _check(options.folder, made)
        options.folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (options.folder / name).write_text(text)
            print(f"wrote {options.folder / name}")
    except (OSError, subprocess.CalledProcessError) as err:
        print(f"generate.py: {err}", file=sys.stderr)
        return 1
    return 0


def _check(folder: Path, made: dict[str, str]) -> int:
    stale = [name for name, text in made.items() if (folder / name).read_text() != text]
    for name in stale:
        print(f"generate.py: {folder / name} is not this tree's: make it again", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
