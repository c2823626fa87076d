# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU node inside the virtual machine, and the labels of its host files.

The driver's files lie in the root file system already, labelled as the policy wants them; here comes what a kernel with
the driver would show: nodes in /dev, /proc/driver, lines in /proc/devices, and the sockets of its services.
Must not know of containers.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess

from tests.gpunode import catalogue, procfs
from tests.gpunode.description import load

from .mounting import MS_BIND, label, mount

DESCRIPTION = "h100x8"
SETTINGS = "/etc/oci-gpu-hook.conf"
SIMULATED = "/proc/driver"
# As the kernel's own files there.
PROC_CONTEXT = "system_u:object_r:proc_t:s0"
WATCHED = ("/dev", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/bin", "/run")


def set_up(mig_minors: str) -> None:
    """Make the machine a GPU node."""
    node = load(DESCRIPTION)
    with open("/proc/devices", encoding="ascii") as file:
        real = file.read()
    with open(mig_minors, encoding="ascii") as file:
        capabilities = file.read()
    majors = procfs.choose_majors(real)
    made = []
    for device in procfs.nodes(node, majors, capabilities):
        os.makedirs(os.path.dirname(device.path), exist_ok=True)
        os.mknod(device.path, stat.S_IFCHR | device.mode, os.makedev(device.major, device.minor))
        os.chmod(device.path, device.mode)
        made.append(device.path)
    files = procfs.tree(node, capabilities, os.uname().machine)
    mount("proc-driver", SIMULATED, "tmpfs", 0, f"mode=0555,context={PROC_CONTEXT}")
    files["gpunode/devices"] = procfs.devices(real, procfs.registered(node, majors))
    for name, text in files.items():
        os.makedirs(os.path.dirname(f"{SIMULATED}/{name}"), exist_ok=True)
        with open(f"{SIMULATED}/{name}", "w", encoding="ascii") as file:
            file.write(text)
    mount(f"{SIMULATED}/gpunode/devices", "/proc/devices", "", MS_BIND)
    for path in catalogue.SOCKETS:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o666)
        # Closed: nobody answers, and the file stays.
        listener.close()
    os.makedirs(catalogue.MPS_FOLDER, mode=0o1777, exist_ok=True)
    os.makedirs("/run/oci-gpu-hook", exist_ok=True)
    # What udev and systemd do where they make such files.
    restored = [
        *made,
        "/dev/nvidia-caps",
        *[os.path.dirname(path) for path in catalogue.SOCKETS],
        "/run/oci-gpu-hook",
    ]
    subprocess.run(["restorecon", "-R", *restored, catalogue.MPS_FOLDER], check=True)


def administer(settings: str) -> None:
    """The administrator's file, there or not."""
    if os.path.exists(SETTINGS):
        os.unlink(SETTINGS)
    if settings:
        with open(SETTINGS, "w", encoding="ascii") as file:
            file.write(settings)
        subprocess.run(["restorecon", SETTINGS], check=True)


def labels() -> dict[str, str]:
    """The label of every file that must keep it."""
    found = {}
    for top in WATCHED:
        found[top] = label(top)
        for folder, folders, names in os.walk(top):
            if folder.startswith("/dev/pts"):
                continue
            for name in [*folders, *names]:
                path = os.path.join(folder, name)
                found[path] = label(path)
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """A line for every file whose label is another, and for every one that came or went outside /run."""
    lines = [
        f"{path}: {before[path]} -> {after[path]}"
        for path in before
        if path in after and before[path] != after[path]
    ]
    for path in sorted(set(before) ^ set(after)):
        if not path.startswith("/run/"):
            lines.append(f"{path}: {'new' if path in after else 'gone'}")
    return lines
