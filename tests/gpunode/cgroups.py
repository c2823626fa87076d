# SPDX-License-Identifier: Apache-2.0
"""Gives the mount namespace a pure cgroup v1 or v2 host, whatever the machine's own is.

Must not: create, move or change a cgroup; only mounts of this namespace change.
"""

from __future__ import annotations

import os

from . import linux

ROOT = "/sys/fs/cgroup"
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")


def _kind_of_root() -> str:
    """The type of the topmost mount there, which is the runtimes' own rule."""
    kind = ""
    for point, found in linux.mounts():
        if point == ROOT:
            kind = found
    return kind


def is_v2() -> bool:
    return _kind_of_root() == "cgroup2"


def choose(version: str) -> None:
    if version == "v2" and not is_v2():
        _clear()
        linux.mount("none", ROOT, "cgroup2")
    elif version == "v1":
        if is_v2() or not _kind_of_root():
            _mount_v1()
        for point in [point for point, kind in linux.mounts() if kind == "cgroup2"]:
            # Without this, crun takes a hybrid host for something it does not support.
            linux.unmount(point)


def _clear() -> None:
    while _kind_of_root():
        linux.unmount(ROOT)


def _mount_v1() -> None:
    """On a v2 machine: the hierarchies that the kernel still gives to v1."""
    _clear()
    linux.mount("tmpfs", ROOT, "tmpfs", options="mode=0755")
    refused = []
    for name in V1_CONTROLLERS:
        os.mkdir(f"{ROOT}/{name}")
        try:
            linux.mount("cgroup", f"{ROOT}/{name}", "cgroup", options=name)
        except OSError:
            os.rmdir(f"{ROOT}/{name}")
            refused.append(name)
    if "devices" in refused:
        raise OSError("this kernel gives no v1 devices hierarchy: use --cgroup v2")
    os.mkdir(f"{ROOT}/systemd")
    linux.mount("cgroup", f"{ROOT}/systemd", "cgroup", options="none,name=systemd")
