#!/usr/bin/python3 -IS
# SPDX-License-Identifier: Apache-2.0
"""An OCI hook (prestart or createRuntime) for containers on a simulated node.

The kernel of a real node shows /proc/driver/nvidia in every procfs; the simulation is a mount, which a container's new
procfs lacks.  This puts a read-only copy of the node's /proc/driver on the container's, and so must run before the hook
under test.
Must not: touch anything but ROOTFS/proc/driver, or fail a container that has no /proc.
"""

import ctypes
import json
import os
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
NOSUID_NODEV_NOEXEC = 2 | 4 | 8
PROC_SUPER_MAGIC = 0x9FA0
SOURCE = "/proc/driver"

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *words: object) -> None:
    if getattr(libc, name)(*words) < 0:
        sys.exit(f"gpunode procdriver: {name}: {os.strerror(ctypes.get_errno())}")


def is_proc(path: str) -> bool:
    answer = (ctypes.c_long * 32)()
    return libc.statfs(os.fsencode(path), answer) == 0 and answer[0] == PROC_SUPER_MAGIC


def enter_mounts(pid: int) -> None:
    """Under a rootless engine the mount namespace may belong to a user namespace of the container's."""
    mounts, users = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("mnt", "user")]
    if libc.setns(mounts, CLONE_NEWNS) < 0:
        call("setns", users, CLONE_NEWUSER)
        call("setns", mounts, CLONE_NEWNS)


def main() -> None:
    state = json.load(sys.stdin)
    with open(f"{state['bundle']}/config.json", encoding="utf-8") as file:
        rootfs = os.path.join(state["bundle"], json.load(file)["root"]["path"])
    if not os.path.exists(f"{SOURCE}/gpunode"):
        sys.exit("gpunode procdriver: not inside a simulated node")
    files = {}
    for folder, _, names in os.walk(SOURCE):
        for path in [f"{folder}/{name}" for name in names]:
            with open(path, "rb") as file:
                files[path[len(SOURCE) :]] = file.read()
    enter_mounts(state["pid"])
    target = f"{rootfs}/proc/driver"
    # Anything else there: an earlier hook, or a container that shares the node's /proc.
    if not is_proc(f"{rootfs}/proc") or not is_proc(target):
        return
    os.umask(0)
    place = os.fsencode(target)
    call("mount", b"tmpfs", place, b"tmpfs", NOSUID_NODEV_NOEXEC, b"mode=0555")
    for path, content in files.items():
        os.makedirs(os.path.dirname(target + path), 0o555, exist_ok=True)
        with open(os.open(target + path, os.O_WRONLY | os.O_CREAT, 0o444), "wb") as file:
            file.write(content)
    call("mount", None, place, None, NOSUID_NODEV_NOEXEC | MS_REMOUNT | MS_BIND | MS_RDONLY, None)


if __name__ == "__main__":
    main()
