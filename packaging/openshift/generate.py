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
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1]
# The version of Ignition in OpenShift 4.7; OpenShift's machine-config-daemon unpacks gzip from 4.10 on.
IGNITION = "3.2.0"
PREFIX = "/usr/local"  # a link to /var/usrlocal: the one place for programs where /usr is read-only
NODE_PYTHON = "/usr/bin/python3"
DELIVERED = f"{PREFIX}/libexec/oci-gpu-hook"
REGISTRATION = f"{PREFIX}/share/containers/oci/hooks.d/oci-gpu-hook.json"
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


def installed(destination: Path) -> list[File]:
    """The files that `make install` makes, without those that are for people or depend on this machine."""
    subprocess.run(
        (SOURCES / "packaging/install.sh", "install", destination, PREFIX, sys.executable),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found = []
    for path in sorted(destination.rglob("*")):
        name = f"/{path.relative_to(destination)}"
        if not path.is_file() or not _is_wanted(name):
            continue
        content = path.read_bytes().replace(f"{sys.executable} -".encode(), f"{NODE_PYTHON} -".encode())
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        found.append(File(name, content, mode))
    return found


def _is_wanted(name: str) -> bool:
    library = f"{PREFIX}/lib/oci-gpu-hook"
    if name.startswith(f"{library}/oci_gpu_hook/"):
        # The node's own Python compiles and links them.
        return name.endswith(".py")
    whole = (f"{PREFIX}/bin/", f"{PREFIX}/libexec/", f"{PREFIX}/share/oci-gpu-hook/vendors/")
    return name == f"{library}/link.py" or name.startswith(whole)


def hook_files(settings: bytes | None) -> list[File]:
    """All files that a node needs to start the hook."""
    with tempfile.TemporaryDirectory() as folder:
        files = installed(Path(folder))
        registration = Path(folder, REGISTRATION.lstrip("/")).read_bytes()
    files += [
        File(f"{DELIVERED}/install-node.sh", (HERE / "install-node.sh").read_bytes(), 0o755),
        File(f"{DELIVERED}/oci-gpu-hook.json", registration),
        File(DROP_IN, HOOKS_DIRS.encode()),
    ]
    if settings is not None:
        files.append(File("/etc/oci-gpu-hook.conf", settings))
    return sorted(files)


def policy_files() -> list[File]:
    """The policy module for containers.  The hook's own module is left out: its labels are for a package below /usr."""
    module = SOURCES / "policy/nvidia_container.cil"
    return [
        File(f"{PREFIX}/lib/oci-gpu-hook/policy/{module.name}", module.read_bytes()),
        File(f"{DELIVERED}/load-policy.sh", (HERE / "load-policy.sh").read_bytes(), 0o755),
    ]


def machine_config(name: str, role: str, files: list[File], unit: str) -> dict[str, Any]:
    """A MachineConfig with these files and this unit, which is enabled."""
    return {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": f"99-{role}-{name}", "labels": {"machineconfiguration.openshift.io/role": role}},
        "spec": {
            "config": {
                "ignition": {"version": IGNITION},
                "storage": {"files": [_ignition_file(file) for file in files]},
                "systemd": {"units": [{"name": unit, "enabled": True, "contents": (HERE / unit).read_text()}]},
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
    hook = machine_config("oci-gpu-hook", role, hook_files(settings), "oci-gpu-hook-ready.service")
    policy = machine_config("oci-gpu-hook-selinux", role, policy_files(), "oci-gpu-hook-policy.service")
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
