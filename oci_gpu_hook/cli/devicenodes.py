# SPDX-License-Identifier: Apache-2.0
"""``inventory refresh --nodes``: the device nodes that /dev lacks after a boot, made as nvidia-modprobe makes them.

Must not change a node that has the right numbers: its mode is the administrator's choice.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

import click

from oci_gpu_hook.cli import limit
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.gpus import missingnodes
from oci_gpu_hook.node.machine import childprocess, libselinux

_SECONDS = 60


def make(host: HostRoot) -> tuple[dict[str, object], list[str]]:
    missing = missingnodes.missing_nodes(host)
    if host.path == "/":
        for name in missingnodes.unloaded(host):
            _start("modprobe", "-q", name)
        missing = missingnodes.missing_nodes(host)
    for node in missing:
        _make(host, node)
    made = [node.path for node in missing]
    if made and host.path == "/" and libselinux.is_there(host):
        # A node that a program makes gets the label device_t: udev labels only those that the kernel makes.
        _start("restorecon", *made)
    lines = [f"made {', '.join(made)}" if made else "no node is lacking"]
    unloaded = missingnodes.unloaded(host)
    lines += [f"not loaded: {', '.join(unloaded)}"] if unloaded else []
    return {"made": made, "unloaded": unloaded}, lines


def _start(*words: str) -> None:
    """Run a command.  A failure is only reported: what it was to make is looked for in any case."""
    limit.allow(_SECONDS)
    try:
        done = childprocess.program([*words], _SECONDS)
    except FileNotFoundError:
        return
    except OSError as err:
        click.echo(f"{words[0]} failed: {err}", err=True)
        return
    output = (done.stderr or done.stdout).strip().splitlines()
    if done.returncode and output:
        click.echo(f"{words[0]} failed: {output[-1]}", err=True)


def _make(host: HostRoot, node: DeviceNode) -> None:
    """Its mode is that of `node` whatever the umask.  If another program makes it first, that node stays."""
    folder, _, name = node.path.rpartition("/")
    try:
        with suppress(FileExistsError), closing(_folder(host, folder)) as fd:
            if node.present:
                os.unlink(name, dir_fd=fd)
            # It has no permissions until it has its owner, so no user opens it before.
            os.mknod(name, stat.S_IFCHR, os.makedev(node.major, node.minor), dir_fd=fd)
            os.chown(name, node.uid, node.gid, dir_fd=fd, follow_symlinks=False)
            os.chmod(name, node.mode, dir_fd=fd)
    except OSError as err:
        raise ApplyError(f"cannot make {node.path}: {err.strerror}", "run it as root") from err


def _folder(host: HostRoot, path: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY
    parent, _, name = path.rpartition("/")
    if parent and host.stat(path) is None:
        with suppress(FileExistsError), closing(host.open(parent, flags)) as fd:
            os.mkdir(name, 0o755, dir_fd=fd)
            os.chmod(name, 0o755, dir_fd=fd)
    return host.open(path, flags)
