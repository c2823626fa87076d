# SPDX-License-Identifier: Apache-2.0
"""``prepare``: the device nodes that a fresh boot lacks, made as nvidia-modprobe makes them.

NVIDIA's own program does it where the host has it; what is still lacking then is made here.  Must not change a node
that is there and right: its mode is the administrator's.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess

import click

from oci_gpu_hook.cli.options import host_root, output_format, show
from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.host import absent, nodes
from oci_gpu_hook.host.absent import Node
from oci_gpu_hook.host.root import HostRoot

_SECONDS = 60
_SELINUX = "/sys/fs/selinux/enforce"


@click.command()
@output_format
@host_root
def prepare(form: str, host_root: str) -> None:
    """Make the device nodes that a fresh boot lacks: unified memory, mode setting, MIG capabilities.

    By nvidia-modprobe where this host has it; what it leaves is made from what the driver says in /proc.  Nodes that
    are there stay as they are; those of a driver that was loaded anew with other numbers are replaced.  Below a
    --host-root no program is started and no module is loaded.
    """
    root = HostRoot(host_root)
    lacking = absent.absent(root)
    if root.path == "/":
        _start(programs(root, lacking))
        lacking = absent.absent(root)
    for node in lacking:
        _make(root, node)
    if lacking and root.path == "/" and root.stat(_SELINUX) is not None:
        # A node that a program makes is device_t; only what the kernel makes is labelled by udev.
        _start([["restorecon", *[node.path for node in lacking]]])
    made = [node.path for node in lacking]
    text = f"made {', '.join(made)}" if made else "no node is lacking"
    missing = absent.unloaded(root)
    if missing:
        text += f"\nnot loaded: {', '.join(missing)}"
    show(form, {"made": made, "unloaded": list(missing)}, text)


def programs(root: HostRoot, lacking: tuple[Node, ...]) -> list[list[str]]:
    """What loads the modules and makes the nodes that are lacking."""
    unloaded = absent.unloaded(root)
    if shutil.which("nvidia-modprobe") is None:
        return [["modprobe", "-q", name] for name in unloaded]
    words = []
    paths = {node.path for node in lacking}
    if "nvidia-uvm" in unloaded or paths & {nodes.UVM, nodes.UVM_TOOLS}:
        # -c is the first of its two minors.
        words.append(["nvidia-modprobe", "-u", "-c", "0"])
    if "nvidia-modeset" in unloaded or nodes.MODESET in paths:
        words.append(["nvidia-modprobe", "-m"])
    minors = [
        str(node.minor)
        for node in lacking
        if node.major == nodes.GPU_MAJOR and node.path != nodes.MODESET
    ]
    if minors:
        words.append(["nvidia-modprobe", *[word for minor in minors for word in ("-c", minor)]])
    capabilities = [node.capability for node in lacking if node.capability]
    if capabilities:
        words.append(["nvidia-modprobe", *[word for file in capabilities for word in ("-f", file)]])
    return words


def _start(commands: list[list[str]]) -> None:
    """Each in turn; what one does not do shows in what is still lacking afterwards."""
    for words in commands:
        try:
            done = subprocess.run(
                words,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
            )
        except FileNotFoundError:
            continue
        except (OSError, subprocess.TimeoutExpired) as err:
            click.echo(f"{words[0]} was of no use: {err}", err=True)
            continue
        said = (done.stderr or done.stdout).strip().splitlines()
        if done.returncode and said:
            click.echo(f"{words[0]} was of no use: {said[-1]}", err=True)


def _make(root: HostRoot, node: Node) -> None:
    """One node, of its mode whatever our umask; another that makes it meanwhile makes the same."""
    folder, _, name = node.path.rpartition("/")
    try:
        fd = _folder(root, folder)
        try:
            if node.stale:
                os.unlink(name, dir_fd=fd)
            # Made with no permission and opened up last: nobody opens it before it has its owner.
            os.mknod(name, stat.S_IFCHR, os.makedev(node.major, node.minor), dir_fd=fd)
            os.chown(name, node.uid, node.gid, dir_fd=fd, follow_symlinks=False)
            os.chmod(name, node.mode, dir_fd=fd)
        finally:
            os.close(fd)
    except FileExistsError:
        return
    except OSError as err:
        raise ApplyError(f"cannot make {node.path}: {err.strerror}", "run it as root") from err


def _folder(root: HostRoot, path: str) -> int:
    """A descriptor of /dev, or of a folder in it, which is made where it is not there."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    parent, _, name = path.rpartition("/")
    if parent and root.stat(path) is None:
        fd = root.open(parent, flags)
        try:
            os.mkdir(name, 0o755, dir_fd=fd)
            os.chmod(name, 0o755, dir_fd=fd)
        except FileExistsError:
            pass
        finally:
            os.close(fd)
    return root.open(path, flags)
