# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU node inside the virtual machine, and the labels of its host files.

The driver's files lie in the root file system already, labelled as the policy wants them; here comes what a kernel with
the driver would show: nodes in /dev, /proc/driver, lines in /proc/devices, and the sockets of its services.
Must not know of containers.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator

from tests.gpunode import catalogue, pci, procfs
from tests.gpunode.description import Description, load, render

from ..files import write
from . import policy, vendors
from .mounting import MS_BIND, label, mount, set_label

DESCRIPTION = "h100mig"
SETTINGS = "/etc/oci-gpu-hook.conf"
DROP_IN = f"{SETTINGS}.d/50-row.conf"
SIMULATED = "/proc/driver"
# As the kernel's own files there.
PROC_CONTEXT = "system_u:object_r:proc_t:s0"
# Where systemd writes what it was told of a unit that a program made.
TRANSIENT = "/run/systemd/transient"
GPU_RULE = "DeviceAllow=/dev/char/195:0 "
# Where `tree` puts the copies of the hook that lack a check.
UNCHECKED = "/usr/lib/e2e/unchecked"
WATCHED = ("/dev", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/bin", "/opt", "/run")


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
        # Render nodes are everybody's (systemd's 50-udev-default.rules).
        os.chmod(device.path, 0o666 if "/renderD" in device.path else device.mode)
        made.append(device.path)
    for path, target in pci.device_links(node).items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    files = procfs.tree(node, capabilities, os.uname().machine)
    mount("proc-driver", SIMULATED, "tmpfs", 0, f"mode=0555,context={PROC_CONTEXT}")
    files["gpunode/description"] = render(node)
    taken = set(majors.values())
    free = (major for major in procfs.free_majors(real) if major not in taken)
    others = vendors.of_node(node, "", free)
    registered = {**others.registered, **procfs.registered(node, majors)}
    files["gpunode/devices"] = procfs.devices(real, registered)
    for name, text in files.items():
        write(f"{SIMULATED}/{name}", text)
    mount(f"{SIMULATED}/gpunode/devices", "/proc/devices", "", MS_BIND)
    mount_pci(node)
    vendors.set_up(others)
    for path in catalogue.SOCKETS:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o666)
        # Closed: no service answers, and the file stays.
        listener.close()
    os.makedirs(catalogue.MPS_FOLDER, mode=0o1777, exist_ok=True)
    os.makedirs("/run/oci-gpu-hook", exist_ok=True)
    os.makedirs(policy.HERE.executor, exist_ok=True)
    # What udev and systemd do where they make such files.
    restored = [
        *made,
        "/dev/nvidia-caps",
        "/dev/dri",
        *[os.path.dirname(path) for path in catalogue.SOCKETS],
        "/run/oci-gpu-hook",
    ]
    subprocess.run(["restorecon", "-R", *restored, catalogue.MPS_FOLDER], check=True)
    set_label(policy.HERE.executor, f"system_u:object_r:{policy.HERE.executors_type}:s0")


def mount_pci(node: Description) -> None:
    """The PCI devices of the node alone, as links, which sysfs has there."""
    files = "/run/pci-devices"
    for folder in (files, pci.DEVICES):
        os.makedirs(folder, exist_ok=True)
        mount("pci-devices", folder, "tmpfs", 0, f"mode=0555,context={vendors.SYSFS_CONTEXT}")
    for name, text in pci.tree(node).items():
        write(f"{files}/{name}", text)
    for gpu in node.gpus:
        os.symlink(f"{files}/{gpu.bus_id}", f"{pci.DEVICES}/{gpu.bus_id}")


def administer(settings: str, drop_in: str) -> None:
    """The administrator's files, there or not."""
    for path, text in ((SETTINGS, settings), (DROP_IN, drop_in)):
        if os.path.exists(path):
            os.unlink(path)
        if text:
            write(path, text)
            subprocess.run(["restorecon", path], check=True)
    if not drop_in and os.path.isdir(os.path.dirname(DROP_IN)):
        os.rmdir(os.path.dirname(DROP_IN))


def scope() -> str:
    """What systemd was told of the one scope that an engine made here."""
    drop_ins = glob.glob(f"{TRANSIENT}/e2e-*.scope.d/50-DeviceAllow.conf")
    texts = []
    for path in drop_ins:
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    return "told" if any(GPU_RULE in text for text in texts) else f"untold: {drop_ins}"


def journal() -> str:
    """What the journal has of the last start; systemd starts journald when the first record comes."""
    subprocess.run(["journalctl", "--sync"], check=False, capture_output=True)
    words = ["journalctl", "--quiet", "--no-pager", "-o", "cat", "-n", "1", "-t", "oci-gpu-hook"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return (done.stdout or done.stderr).strip()


@contextlib.contextmanager
def linked_alone() -> Iterator[None]:
    """The hook's package without its sources."""
    package = "/usr/lib/oci-gpu-hook/oci_gpu_hook"
    os.rename(package, f"{package}.whole")
    # `startup` leads there.
    for part in ("__linked__", "startup"):
        shutil.copytree(f"{package}.whole/{part}", f"{package}/{part}")
    try:
        yield
    finally:
        shutil.rmtree(package)
        os.rename(f"{package}.whole", package)


@contextlib.contextmanager
def boolean(name: str, value: str = "on") -> Iterator[None]:
    """A boolean of the policy with another value than its own."""
    subprocess.run(["setsebool", name, value], check=True)
    try:
        yield
    finally:
        subprocess.run(["setsebool", name, "on" if value == "off" else "off"], check=True)


@contextlib.contextmanager
def unchecked(name: str) -> Iterator[None]:
    """The hook without one of its checks in the place of the whole one."""
    package = "/usr/lib/oci-gpu-hook/oci_gpu_hook"
    copy = f"{UNCHECKED}/{name}/oci_gpu_hook"
    os.rename(package, f"{package}.whole")
    os.rename(copy, package)
    try:
        yield
    finally:
        os.rename(package, copy)
        os.rename(f"{package}.whole", package)


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
    """A line for every file whose label is another, and for every one that came or went where engines make none."""
    lines = [
        f"{path}: {before[path]} -> {after[path]}" for path in before if path in after and before[path] != after[path]
    ]
    for path in sorted(set(before) ^ set(after)):
        if not path.startswith(("/run/", *policy.HERE.made)):
            lines.append(f"{path}: {'new' if path in after else 'gone'}")
    return lines
