# SPDX-License-Identifier: Apache-2.0
"""Other vendors' hardware on the simulated node: what a kernel with their drivers would show of it.

Their files lie in the root file system already, as the driver's do.  Must not know of containers.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Iterable

from tests.gpunode import sysfs
from tests.gpunode.vendors.additions import Additions

from ..files import write
from .mounting import MS_BIND, MS_PRIVATE, mount

# One file that says all that a file can say, so that the hook looks wherever it may have to.
FILE = "/etc/oci-gpu-hook/vendors/everything.json"
SOCKET = "/run/everything/socket"
EVERYTHING = {
    "activation_flag": "OCI_EVERYTHING",
    "version": {"module": "onload"},
    "requires": {"kernel": "5.14", "modules": ["onload", "amdgpu"]},
    "inventory": {
        "all": {
            "devices": [
                {"major": "sfc_char"},
                {"path": "/dev/onload*", "udev": {"SUBSYSTEM": "onload"}},
                {"path": "/dev/infiniband/rdma_cm"},
                {"path": "/dev/infiniband/uverbs*", "pci": "15b3", "each": True, "name": "ibdev"},
            ],
            "libraries": [{"path": "/opt/rocm*/lib/lib*.so.*", "target": "/opt/libraries"}],
            "directories": ["/usr/libexec/onload", {"path": "/opt/rocm/bin", "target": "/opt/rocm"}],
            "miscellaneous": [
                {"path": "/etc/OpenCL/vendors/*.icd", "required": True},
                {"path": "/usr/share/libdrm/amdgpu.ids", "target": "/etc/libdrm"},
                "/usr/lib64/libonload-{version}*",
            ],
            "binaries": ["/usr/sbin/onload_tool", "/usr/bin/ibv_*"],
            "sockets": [SOCKET],
        }
    },
}
NAMES = ("amd", "intel", "rdma", "onload")
SYSFS_CONTEXT = "system_u:object_r:sysfs_t:s0"
# What is simulated of sysfs, and the real one of this machine.
_SIMULATED, _REAL = "/run/simulated-sysfs", "/run/real-sysfs"


def set_up(additions: Additions) -> None:
    """Their nodes, and sysfs; `host` has mounted what stands for the folder of PCI devices."""
    for node in additions.nodes:
        os.makedirs(os.path.dirname(node.path), exist_ok=True)
        os.mknod(node.path, stat.S_IFCHR | node.mode, os.makedev(node.major, node.minor))
        # Render nodes are everybody's (systemd's 50-udev-default.rules), and these are for a user of a container.
        os.chmod(node.path, 0o666)
    for path, text in additions.texts.items():
        if path.startswith("/run/"):
            write(path, text + "E:SUBSYSTEM=onload\n")
    os.makedirs(os.path.dirname(SOCKET))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(SOCKET)
    folders = {os.path.dirname(node.path) for node in additions.nodes} - {"/dev"}
    paths = [node.path for node in additions.nodes]
    subprocess.run(["restorecon", *folders, *paths], check=True)
    subprocess.run(["restorecon", "-R", "/run/udev", os.path.dirname(SOCKET)], check=True)
    _mount_sysfs(additions.sysfs)


def _mount_sysfs(found: sysfs.Sysfs) -> None:
    for folder in (_SIMULATED, _REAL):
        os.makedirs(folder)
    mount("/sys", _REAL, "", MS_BIND)
    # systemd shares the host's mounts: what covers a part of one would cover it in the other.
    mount("", _REAL, "", MS_PRIVATE)
    _tmpfs(_SIMULATED)
    for name, text in found.files.items():
        write(f"{_SIMULATED}/{name}", text)
    for folder in (sysfs.CHARACTER, "module"):
        _tmpfs(f"/sys/{folder}")
        _link(f"{_REAL}/{folder}", f"/sys/{folder}", os.listdir(f"{_REAL}/{folder}"))
    _link(f"{_SIMULATED}/module", "/sys/module", os.listdir(f"{_SIMULATED}/module"))
    for name, to in found.links.items():
        if name.startswith((f"{sysfs.CHARACTER}/", f"{sysfs.PCI_DEVICES}/")):
            # Beside the machine's own devices no folder can be made: the way there is another, and has the same end.
            path = f"/sys/{name}"
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(f"{_SIMULATED}/devices/{to.partition('devices/')[2]}", path)


def _tmpfs(folder: str) -> None:
    mount("sysfs", folder, "tmpfs", 0, f"mode=0755,context={SYSFS_CONTEXT}")


def _link(source: str, target: str, names: Iterable[str]) -> None:
    for name in names:
        path = f"{target}/{name}"
        if not os.path.lexists(path):
            os.symlink(f"{source}/{name}", path)
