# SPDX-License-Identifier: Apache-2.0
"""The device nodes that /dev lacks after a boot, as nvidia-modprobe(1) would make them.

The kernel module makes no nodes.  It says in /proc which ones there should be, with which mode, and whether programs
may make them (its README, "DeviceFileModify").  Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.driver import nodes, proc
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.driver.survey import driver_version, list_gpus
from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_character_device

# Kernel modules with nodes of their own.  Nothing loads them before a program needs them.
MODULES = ("nvidia-uvm", "nvidia-modeset")

_PERMISSIONS = 0o777


def unloaded(host: HostRoot) -> tuple[str, ...]:
    majors = proc.character_majors(host)
    return tuple([name for name in MODULES if name not in majors])


def missing_nodes(host: HostRoot) -> tuple[DeviceNode, ...]:
    """The nodes to make; present: whether one with other numbers is there.  DriverError if no driver is loaded,
    ApplyError if another file has a node's path.
    """
    if driver_version(host) is None:
        why = "there is no node to make: NVIDIA's kernel module is not loaded"
        raise DriverError(why, "the administrator must load it: modprobe nvidia")
    found = []
    for node in [*_nodes_of_gpus(host), *_nodes_of_capabilities(host)]:
        status = host.stat(node.path)
        if status is None:
            found.append(node)
        elif not is_character_device(status):
            why = f"cannot make {node.path}: it is there and is not a character device"
            raise ApplyError(why, "the administrator must remove that file")
        elif status.st_rdev != posix.makedev(node.major, node.minor):
            # Most majors are dynamic: they can change when the driver is loaded again.
            found.append(node._replace(present=True))
    return tuple(found)


def _nodes_of_gpus(host: HostRoot) -> list[DeviceNode]:
    params = proc.information(host, proc.PARAMS)
    if params.get("ModifyDeviceFiles") == "0":
        return []
    mode = _number(params, "DeviceFileMode", 0o666) & _PERMISSIONS
    uid, gid = _number(params, "DeviceFileUID", 0), _number(params, "DeviceFileGID", 0)
    families = () if "nvidia-modeset" in unloaded(host) else ("modeset",)
    gpus = nodes.gpus_here(host, list_gpus(host))
    wanted = [*nodes.devices(host, gpus), *nodes.of_families(host, families, (), (), ())]
    return [node._replace(mode=mode, uid=uid, gid=gid, present=False) for node in wanted]


def _nodes_of_capabilities(host: HostRoot) -> list[DeviceNode]:
    """The nodes of MIG's and the fabric's capabilities.  A file below /proc has the minor and mode of each."""
    major = proc.character_majors(host).get("nvidia-caps")
    if major is None:
        return []
    found = []
    for file in _files(host, proc.CAPABILITIES):
        fields = proc.information(host, file)
        minor = _number(fields, "DeviceFileMinor", -1)
        if minor >= 0 and fields.get("DeviceFileModify") != "0":
            mode = _number(fields, "DeviceFileMode", 0o400) & _PERMISSIONS
            found.append(DeviceNode(f"{nodes.CAPS_FOLDER}/nvidia-cap{minor}", major, minor, mode, 0, 0, False))
    return found


def _files(host: HostRoot, path: str) -> list[str]:
    return [file for name in host.names(path) for file in _files(host, f"{path}/{name}")] or [path]


def _number(fields: dict[str, str], key: str, default: int) -> int:
    number = decimal(fields.get(key, ""))
    return default if number is None else number
