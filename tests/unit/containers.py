# SPDX-License-Identifier: Apache-2.0
"""Containers for tests: their layouts, bundles, plans and processes, and what the host's files have of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.container.layout import GLIBC, MUSL, Layout
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.planning import plan, provision, selection
from oci_gpu_hook.planning.plan import Container
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from tests.unit import hosts

CONTAINER = Container(
    id="c1",
    bundle="/b",
    rootfs="/b/rootfs",
    device_cgroup=DeviceCgroup("v2", "/sys/fs/cgroup/c1", "/sys/fs/cgroup/c1", ""),
)
DEBIAN = Layout(
    library_folder="/usr/lib/x86_64-linux-gnu",
    library_folder_32="/usr/lib/i386-linux-gnu",
    compat=None,
    loader=GLIBC,
    user_namespace=False,
    dev_is_hosts=False,
)
ALPINE = DEBIAN._replace(library_folder="/usr/lib", library_folder_32="", loader=MUSL)
ROOTLESS = DEBIAN._replace(user_namespace=True)
HOSTS_DEV = DEBIAN._replace(dev_is_hosts=True)


def planned(
    request: Request,
    inventory: DriverInventory,
    layout: Layout = DEBIAN,
    container: Container = CONTAINER,
    settings: Settings = Settings(),  # noqa: B008  a record cannot be changed
    fallback: tuple[DeviceRule, ...] = (),
) -> plan.Plan:
    """The plan for a container with this request, on a host with this inventory."""
    share = provision.of_nvidia(layout, request, selection.select(request, inventory), inventory)
    provided = provision.join(layout, inventory.driver_version, (share,))
    opened = plan.open_cgroup(container, settings.device_cgroup, provided.devices, fallback)
    return plan.make(container, layout, request, provided, plan.Labels(), opened)


DEV = {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}


def write_bundle(folder: Path, *env: str, **more: object) -> Path:
    """A bundle with an empty root, a /dev, and these variables; `more` goes into its config.json."""
    path = folder / "bundle"
    (path / "rootfs").mkdir(parents=True, exist_ok=True)
    config = {"root": {"path": "rootfs"}, "process": {"env": env}, "mounts": [DEV], **more}
    (path / "config.json").write_text(json.dumps(config))
    return path


_MOUNT = 'mkdir -p "$1/dev"; mount --bind "$1" "$1"; mount -t tmpfs none "$1/dev"; echo; exec cat'


@contextmanager
def contained(rootfs: Path) -> Iterator[int]:
    """The pid of a process as a runtime leaves it for its hooks: in a mount namespace of its own, its root mounted.

    The user namespace lets anyone mount.
    """
    line = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", _MOUNT, "sh", str(rootfs)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.stdin.close()


def at_stage(command: list[str], bundle: Path, **how: Any) -> tuple[int, str, str]:
    """How a command ends that a runtime starts as a hook of this bundle's container, and what it says."""
    with contained(bundle / "rootfs") as pid:
        state = json.dumps({"id": "c", "pid": pid, "bundle": str(bundle)})
        ran = subprocess.run(command, input=state, capture_output=True, text=True, env={}, **how)
    return ran.returncode, ran.stdout, ran.stderr


# A user whose files a test can make: this one, or as root any other.
USER = os.getuid() or 1000


def owned(tree: Path, *folders: str) -> None:
    """Give these folders and what is in them to USER."""
    for folder in folders:
        top = tree / folder.lstrip("/")
        for path in (top, *top.rglob("*")):
            os.lchown(path, USER, -1)


def plant_cgroup(tree: Path, pid: int, path: str) -> None:
    """The cgroups of a process: root's folders, as those of the tree are."""
    hosts.plant(tree, "sys/fs/cgroup/devices/devices.list", "")
    (tree / f"sys/fs/cgroup/devices{path}").mkdir(parents=True, exist_ok=True)
    hosts.plant(tree, f"proc/{pid}/cgroup", f"5:devices:{path}\n0::/x\n")


def stat(pid: int, *, start: int = 77, state: str = "S", parent: int = 1, threads: int = 1) -> str:
    """/proc/PID/stat of a process with a misleading name."""
    fields = [state, str(parent), *["0"] * 15, str(threads), "0", str(start), "0"]
    return f"{pid} (x) R 1) {' '.join(fields)}\n"
