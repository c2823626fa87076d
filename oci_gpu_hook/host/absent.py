# SPDX-License-Identifier: Apache-2.0
"""The device nodes that a fresh boot lacks, as nvidia-modprobe(1) would make them.

The kernel module makes none: it says in /proc which there are to be, of which mode, and whether anybody may make them
(its README, "DeviceFileModify").  Reads only; never on the hook's path, which makes its nodes in containers.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.host import nodes, proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

# Their nodes need a module of their own, which nothing loads before the first program that asks for it.
MODULES = ("nvidia-uvm", "nvidia-modeset")

_FILE_TYPE = 0o170000
_CHARACTER_DEVICE = 0o020000
_FOLDER = 0o040000
_PERMISSIONS = 0o777
_DEFAULT_MODE = 0o666


class Node(NamedTuple):
    """A node to be made.

    capability: the file below /proc that tells of it, "" for none; stale: whether a node of other numbers has its name.
    """

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int
    capability: str = ""
    stale: bool = False


def unloaded(root: HostRoot) -> tuple[str, ...]:
    """Those of `MODULES` that the kernel has not."""
    majors = proc.character_majors(root)
    return tuple([name for name in MODULES if name not in majors])


def absent(root: HostRoot) -> tuple[Node, ...]:
    """What is to be made; DriverError where no driver is, ApplyError where something else lies in a node's place."""
    if proc.driver_version(root) is None:
        raise DriverError(
            "there is no node to make: NVIDIA's kernel module is not loaded",
            "whoever installs the driver must load it: modprobe nvidia",
        )
    found = []
    for node in [*_of_params(root), *_of_capabilities(root)]:
        status = root.stat(node.path)
        if status is None:
            found.append(node)
        elif status.st_mode & _FILE_TYPE != _CHARACTER_DEVICE:
            raise ApplyError(
                f"cannot make {node.path}: what is there is no character device",
                "whoever put it there must take it away",
            )
        elif status.st_rdev != posix.makedev(node.major, node.minor):
            # The kernel chooses most majors anew when the driver is loaded again.
            found.append(node._replace(stale=True))
    return tuple(found)


def _of_params(root: HostRoot) -> list[Node]:
    """The GPUs' nodes and those beside them, as the module's parameters have them."""
    params = proc.information(root.read(proc.PARAMS) or b"")
    if params.get("ModifyDeviceFiles") == "0":
        return []
    mode = _number(params, "DeviceFileMode", _DEFAULT_MODE) & _PERMISSIONS
    uid, gid = _number(params, "DeviceFileUID", 0), _number(params, "DeviceFileGID", 0)
    wanted = [(node.path, node.major, node.minor) for node in nodes.devices(root, proc.gpus(root))]
    if "nvidia-modeset" in proc.character_majors(root):
        wanted.append((nodes.MODESET, nodes.GPU_MAJOR, nodes.MODESET_MINOR))
    return [Node(path, major, minor, mode, uid, gid) for path, major, minor in wanted]


def _of_capabilities(root: HostRoot) -> list[Node]:
    """The nodes of MIG's and the fabric's capabilities: each has a file below /proc that tells its number and mode."""
    major = proc.character_majors(root).get("nvidia-caps")
    if major is None:
        return []
    found = []
    for file in _files(root, proc.CAPABILITIES):
        told = proc.information(root.read(file) or b"")
        minor = _number(told, "DeviceFileMinor", -1)
        if minor >= 0 and told.get("DeviceFileModify") != "0":
            mode = _number(told, "DeviceFileMode", 0o400) & _PERMISSIONS
            path = f"{nodes.CAPS_FOLDER}/nvidia-cap{minor}"
            found.append(Node(path, major, minor, mode, 0, 0, file))
    return found


def _files(root: HostRoot, folder: str) -> list[str]:
    found = []
    for name in root.names(folder):
        path = f"{folder}/{name}"
        status = root.stat(path)
        if status is not None and status.st_mode & _FILE_TYPE == _FOLDER:
            found += _files(root, path)
        else:
            found.append(path)
    return found


def _number(fields: dict[str, str], key: str, default: int) -> int:
    text = fields.get(key, "")
    return int(text) if text.isdecimal() else default
