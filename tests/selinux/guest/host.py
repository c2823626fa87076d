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
from pathlib import Path

from tests.gpunode import catalogue, pci, procfs
from tests.gpunode.description import Description, load, render
from tests.gpunode.vendors import collect

from ..files import write
from . import policy, vendors
from .mounting import MS_BIND, below, label, mount, set_label

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
    real, capabilities = Path("/proc/devices").read_text(), Path(mig_minors).read_text()
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
    others = collect(vendors.NAMES, node, "", free)
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
    restored = [*made, "/dev/nvidia-caps", "/dev/dri", "/run/oci-gpu-hook", catalogue.MPS_FOLDER]
    restored += [os.path.dirname(path) for path in catalogue.SOCKETS]
    subprocess.run(["restorecon", "-R", *restored], check=True)
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
    return "told" if any(GPU_RULE in Path(path).read_text() for path in drop_ins) else f"untold: {drop_ins}"


def journal() -> str:
    """What the journal has of the last start; systemd starts journald when the first record comes."""
    subprocess.run(["journalctl", "--sync"], check=False, capture_output=True)
    # By a copy: the domain that Debian 13's policy has for the program may not read the files.
    program = shutil.copy("/usr/bin/journalctl", "/run/journalctl")
    words = [program, "--quiet", "--no-pager", "-o", "cat", "-n", "1", "-t", "oci-gpu-hook"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return (done.stdout or done.stderr).strip()


@contextlib.contextmanager
def boolean(name: str) -> Iterator[None]:
    """A boolean of the policy that is off."""
    subprocess.run(["setsebool", name, "on"], check=True)
    try:
        yield
    finally:
        subprocess.run(["setsebool", name, "off"], check=True)


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
    paths = [path for top in WATCHED for path in below(top)]
    return {path: label(path) for path in paths if not path.startswith("/dev/pts/")}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """A line for every file whose label is another, and for every one that came or went where engines make none."""
    made = ("/run/", *policy.HERE.made)
    return [
        f"{path}: {before.get(path, 'nothing')} -> {after.get(path, 'nothing')}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path) and (path in before.keys() & after.keys() or not path.startswith(made))
    ]
