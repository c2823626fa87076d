# SPDX-License-Identifier: Apache-2.0
"""Run a command on a simulated GPU node: a private mount namespace with an NVIDIA driver in it.

    python3 tests/gpunode/node.py [--description NAME-or-FILE] [--cgroup v1|v2|host]
                                  [--driver-root DIR] [--layout host|multiarch|lib64|current]
                                  [--break FAULT ...] -- COMMAND [ARG...]

The command takes this process's place, so its exit status and signals are its own.
Must not: leave anything outside the namespace, or start a process that stays.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys

if not __package__:
    # Started by its path: become a member of the package (PEP 366).
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    __package__ = "gpunode"

from . import build, catalogue, cgroups, description, linux, pci, procfs
from .content import LAYOUTS, LIBEXEC, NOMEMLOCK, Content
from .faults import FAULTS
from .layers import Layer, bind_entries

# The only folder that every machine has and that this node covers anyway: no mount point is made.
SCRATCH = "/proc/driver"

FAILED = 125  # no node: as the engines say that it was they who failed, and not the command

# What runc, crun, podman and their containers expect of a host's /dev.
DEVICES = (
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "tty",
    "console",
    "ptmx",
    "kmsg",
    "fuse",
    "net/tun",
)
DEVICE_LINKS = ("fd", "stdin", "stdout", "stderr", "ptmx")
DEVICE_MOUNTS = ("pts", "shm", "mqueue", "hugepages")


def enter() -> None:
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", SCRATCH, "tmpfs", options="mode=0755")


def layer_for(path: str, layers: dict[str, Layer]) -> tuple[Layer, str]:
    """The layer that holds `path`, and the path without the host's links (/lib, /var/run)."""
    head, tail = path, ""
    while not os.path.isdir(head):
        head, name = os.path.split(head)
        tail = f"/{name}{tail}"
    real = os.path.realpath(head) + tail
    root = "/" + real.split("/")[1]
    if root not in layers:
        layers[root] = Layer(root, SCRATCH)
    return layers[root], real


def write_files(content: Content, layers: dict[str, Layer]) -> None:
    """All that lies in ordinary folders of the host, into the layers' upper parts."""

    def place(path: str) -> str:
        layer, real = layer_for(path, layers)
        return layer.place(real)

    for path, source in content.files.items():
        shutil.copyfile(source, place(path))
        os.chmod(place(path), 0o755)
    for path, text in content.texts.items():
        with open(place(path), "w", encoding="utf-8") as file:
            file.write(text)
    for path, target in content.links.items():
        os.symlink(target, place(path))
    for path in content.sockets:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(place(path))
        listener.listen()
        listener.close()
        os.chmod(place(path), 0o666)
    # A regular file of the node's own, for ldconfig to replace.
    if os.path.exists("/etc/ld.so.cache"):
        shutil.copyfile("/etc/ld.so.cache", place("/etc/ld.so.cache"))


def run_ldconfig(root: str) -> None:
    """The real one, below `root` where there is one.

    -X: it must not repair links in folders that are still the host's own.
    """
    arguments = ("-X", "-r", root) if root else ("-X",)
    caches = os.path.isdir("/var/cache")
    if caches:
        # ldconfig also writes /var/cache/ldconfig/aux-cache, which is the host's.
        linux.mount("tmpfs", "/var/cache", "tmpfs")
    child = os.fork()
    if child == 0:
        for program in ("/usr/sbin/ldconfig", "/sbin/ldconfig"):
            if os.path.exists(program):
                os.execl(program, program, *arguments)
        os._exit(127)
    _, status = os.waitpid(child, 0)
    if caches:
        linux.unmount("/var/cache")
    if status:
        raise OSError(f"ldconfig failed with status {status}")


def mount_proc(content: Content) -> None:
    """/proc/driver and /proc/devices, as the kernel shows them with the driver loaded."""
    with open("/proc/devices", encoding="ascii") as file:
        devices = procfs.devices(file.read(), content.registered)
    # A rootless engine may mount a new procfs only where a whole one is in sight.
    linux.mount("proc", f"{LIBEXEC}/proc", "proc")
    with open(f"{SCRATCH}/devices", "w", encoding="ascii") as file:
        file.write(devices)
    os.chmod(f"{SCRATCH}/devices", 0o444)
    linux.mount(f"{SCRATCH}/devices", "/proc/devices", flags=linux.MS_BIND)
    tree = f"{SCRATCH}/proc"
    os.mkdir(tree)
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("tmpfs", tree, "tmpfs", flags, "mode=0555")
    umask = os.umask(0o222)  # procfs shows its files read-only, and so do we
    for path, text in content.proc.items():
        os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
        with open(f"{tree}/{path}", "w", encoding="ascii") as file:
            file.write(text)
    os.umask(umask)
    linux.mount(tree, "/proc/driver", flags=linux.MS_MOVE)


def mount_pci(content: Content) -> None:
    """The GPUs among the host's PCI devices; nowhere on a machine without a PCI bus."""
    if not os.path.isdir(pci.DEVICES):
        return
    # A rootless engine may mount a new sysfs only where a whole one is in sight.
    linux.mount("sysfs", f"{LIBEXEC}/sys", "sysfs")
    tree = f"{SCRATCH}/pci"
    os.mkdir(tree)
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("tmpfs", tree, "tmpfs", flags, "mode=0755")
    for path, text in content.pci.items():
        os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
        with open(f"{tree}/{path}", "w", encoding="ascii") as file:
            file.write(text)
    for path, target in content.pci_links.items():
        os.symlink(target, f"{tree}/{path}")
    # libudev wants a device to lie on a sysfs, unless it is told that this one need not.
    os.environ["SYSTEMD_DEVICE_VERIFY_SYSFS"] = "0"
    bind_entries(pci.DEVICES, tree)  # links, all of them; a GPU of ours takes an address over
    linux.mount(tree, pci.DEVICES, flags=linux.MS_MOVE)


def make_node(folder: str, name: str, mode: int, device: int) -> None:
    path = f"{folder}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mknod(path, mode, device)
    os.chmod(path, stat.S_IMODE(mode))


def mount_dev(content: Content) -> None:
    """A /dev of the node's own: the host's standard nodes, and the driver's."""
    dev = f"{SCRATCH}/dev"
    os.mkdir(dev)
    linux.mount("tmpfs", dev, "tmpfs", linux.MS_NOSUID, "mode=0755")
    for name in DEVICES:
        if os.path.exists(f"/dev/{name}") and not os.path.islink(f"/dev/{name}"):
            status = os.stat(f"/dev/{name}")
            make_node(dev, name, status.st_mode, status.st_rdev)
    for name in DEVICE_LINKS:
        if os.path.islink(f"/dev/{name}"):
            os.symlink(os.readlink(f"/dev/{name}"), f"{dev}/{name}")
    for name in DEVICE_MOUNTS:
        if os.path.isdir(f"/dev/{name}"):
            os.mkdir(f"{dev}/{name}")
            linux.mount(f"/dev/{name}", f"{dev}/{name}", flags=linux.MS_BIND | linux.MS_REC)
        elif name == "mqueue":
            os.mkdir(f"{dev}/{name}")
            linux.mount("mqueue", f"{dev}/{name}", "mqueue")
    for node in content.nodes:
        name = node.path[len("/dev/") :]
        make_node(dev, name, stat.S_IFCHR | node.mode, os.makedev(node.major, node.minor))
    for path, target in content.device_links.items():
        os.makedirs(os.path.dirname(dev + path[len("/dev") :]), exist_ok=True)
        os.symlink(target, dev + path[len("/dev") :])
    linux.mount(dev, "/dev", flags=linux.MS_MOVE)


def mount_tmp() -> None:
    """The host's /tmp, entry by entry, so that nvidia-mps can lie beside them."""
    temporary = f"{SCRATCH}/tmp"
    os.mkdir(temporary)
    linux.mount("tmpfs", temporary, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    bind_entries("/tmp", temporary)
    mps = temporary + catalogue.MPS_FOLDER[len("/tmp") :]
    if not os.path.isdir(mps):
        os.mkdir(mps)
        os.chmod(mps, 0o1777)
    linux.mount(temporary, "/tmp", flags=linux.MS_MOVE)


def set_up(content: Content, cgroup: str = "host", overlay: bool = True) -> None:
    """Turn this process's machine into the node; everything it starts is on it too."""
    folder = os.getcwd()
    umask = os.umask(0o022)
    enter()
    cgroups.choose(cgroup)
    layers: dict[str, Layer] = {}
    write_files(content, layers)
    for layer in layers.values():
        layer.mount(overlay)
    if content.cached:
        run_ldconfig(content.driver_root)
    if cgroups.is_v2() and not linux.has_capability(linux.CAP_SYS_RESOURCE):
        with open("/etc/ld.so.preload", "a", encoding="ascii") as file:
            file.write(f"{NOMEMLOCK}\n")
    mount_dev(content)
    mount_tmp()
    mount_pci(content)
    mount_proc(content)
    # As systemd leaves it on a real host; the peers are this namespace's own.
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_SHARED)
    os.umask(umask)
    os.chdir(folder)  # by name again: the old one may be under a mount now


def prepare(
    name_or_file: str,
    faults: list[str],
    cache: str = build.CACHE,
    root: str = "",
    layout: str = "host",
) -> Content:
    """The node as a value: described, built, and with its faults planted."""
    node = description.load(name_or_file)
    with open("/proc/devices", encoding="ascii") as file:
        built = build.build(node.driver, node.cuda_number, cache)
        content = Content(node, built, file.read(), root, layout)
    for fault in faults:
        FAULTS[fault].plant(content)
    return content


def main() -> int:
    import argparse

    listing = "\n".join(f"  {name:17} {fault.sentence}" for name, fault in FAULTS.items())
    parser = argparse.ArgumentParser(
        description="Run a command on a simulated GPU node.",
        epilog=f"faults:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--description", default="v100", metavar="NAME-or-FILE")
    parser.add_argument("--cgroup", default="host", choices=("v1", "v2", "host"))
    parser.add_argument("--break", dest="faults", action="append", default=[], choices=FAULTS)
    parser.add_argument("--cache", default=build.CACHE, help="where the driver is built")
    parser.add_argument("--no-overlay", action="store_true", help="as if overlays were refused")
    parser.add_argument(
        "--driver-root", default="", metavar="DIR", help="put the driver's files below DIR"
    )
    parser.add_argument(
        "--layout", default="host", choices=LAYOUTS, help="which folder has the libraries"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("gpunode: needs root, for the node's mounts and device nodes", file=sys.stderr)
        return FAILED
    try:
        root = options.driver_root.rstrip("/")
        faults = options.faults
        content = prepare(options.description, faults, options.cache, root, options.layout)
        set_up(content, options.cgroup, not options.no_overlay)
    except OSError as error:
        print(f"gpunode: {error}", file=sys.stderr)
        return FAILED
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        print(f"gpunode: {options.command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
