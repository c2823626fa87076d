# SPDX-License-Identifier: Apache-2.0
"""Run a command on a simulated GPU node: a private mount namespace with an NVIDIA driver in it.

    python3 tests/gpunode/node.py [--description NAME-or-FILE] [--cgroup v1|v2|host]
                                  [--driver-root DIR] [--layout host|multiarch|lib64|current]
                                  [--driver FOLDER|debian:NAME] [--layout lib64|run|nix] [--packages FOLDER ...]
                                  [--vendor NAME ...] [--platform tegra|wsl]
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
from collections.abc import Sequence

if not __package__:
    # Started by its path: become a member of the package (PEP 366).
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    __package__ = "gpunode"

from . import build, catalogue, cgroups, description, linux, procfs, realdriver
from .content import LAYOUTS, LIBEXEC, NOMEMLOCK, Content, library_folder
from .faults import FAULTS
from .layers import Layer, bind_entries
from .vendors import BOARDS, PLATFORMS, VENDORS, collect

# The only folder that every machine has and that this node covers anyway: no mount point is made.
SCRATCH = "/proc/driver"

# The simulation's own programs come with a driver's; without one they come with this.
ANY_DRIVER, ANY_CUDA = "580.65.06", 13000

FAILED = 125  # no node: as the engines say that it was they who failed, and not the command

# What runc, crun, podman and their containers expect of a host's /dev.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "kmsg", "fuse", "net/tun")
WRITTEN = ("/etc", "/run", "/usr")  # whose content ends with the node, as the README says
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


def write_files(content: Content, layers: dict[str, Layer], more: Sequence[str]) -> None:
    """All that lies in ordinary folders of the host, into the layers' upper parts; more: folders beside `WRITTEN`."""

    def place(path: str) -> str:
        layer, real = layer_for(path, layers)
        return layer.place(real)

    for path, source in content.files.items():
        shutil.copyfile(source, place(path))
        os.chmod(place(path), 0o755)
    for path, text in content.texts.items():
        write(place(path), text)
    for path, target in content.links.items():
        os.symlink(target, place(path))
    for path in content.sockets:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(place(path))
        listener.listen()
        listener.close()
        os.chmod(place(path), 0o666)
    # Whatever is added: here a command writes.
    for folder in (*WRITTEN, *more):
        layer_for(folder, layers)
    # A regular file of the node's own, for ldconfig to replace.
    if os.path.exists("/etc/ld.so.cache"):
        shutil.copyfile("/etc/ld.so.cache", place("/etc/ld.so.cache"))


def run_ldconfig(root: str) -> None:
    """The real one, below `root` if there is one.

    -X: it must not repair links in folders that are still the host's own.
    """
    arguments = ("-X", "-r", root) if root else ("-X",)
    caches = os.path.isdir("/var/cache")
    if caches:
        # ldconfig also writes /var/cache/ldconfig/aux-cache, which is the host's.
        linux.mount("tmpfs", "/var/cache", "tmpfs")
    status = os.spawnv(os.P_WAIT, "/sbin/ldconfig", ["ldconfig", *arguments])
    if caches:
        linux.unmount("/var/cache")
    if status:
        raise OSError(f"ldconfig failed with status {status}")


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def mount_scratch(name: str, flags: int, options: str) -> str:
    """A filesystem for what is to be mounted elsewhere; gives its path."""
    path = f"{SCRATCH}/{name}"
    os.mkdir(path)
    linux.mount("tmpfs", path, "tmpfs", flags, options)
    return path


def mount_proc(content: Content) -> None:
    """/proc/driver and /proc/devices, as the kernel shows them with the driver loaded."""
    with open("/proc/devices", encoding="ascii") as file:
        devices = procfs.devices(file.read(), content.registered)
    # A rootless engine may mount a new procfs only where a whole one is in sight.
    linux.mount("proc", f"{LIBEXEC}/proc", "proc")
    write(f"{SCRATCH}/devices", devices)
    os.chmod(f"{SCRATCH}/devices", 0o444)
    linux.mount(f"{SCRATCH}/devices", "/proc/devices", flags=linux.MS_BIND)
    tree = mount_scratch("proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, "mode=0555")
    umask = os.umask(0o222)  # procfs shows its files read-only, and so do we
    for path, text in content.proc.items():
        write(f"{tree}/{path}", text)
    os.umask(umask)
    linux.mount(tree, "/proc/driver", flags=linux.MS_MOVE)


def mount_sys(content: Content) -> None:
    """The node's devices among the machine's own; PCI's nowhere on a machine without a PCI bus."""
    added = content.sysfs
    folders = [folder for folder in added.folders() if os.path.isdir(f"/sys/{folder}")]
    if not folders:
        return
    # A rootless engine may mount a new sysfs only where a whole one is in sight.
    linux.mount("sysfs", f"{LIBEXEC}/sys", "sysfs")
    tree = mount_scratch("sys", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, "mode=0755")
    for path, text in added.files.items():
        write(f"{tree}/{path}", text)
    for path, target in added.links.items():
        os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
        os.symlink(target, f"{tree}/{path}")
    # libudev wants a device to lie on a sysfs, unless it is told that this one need not.
    os.environ["SYSTEMD_DEVICE_VERIFY_SYSFS"] = "0"
    for folder in folders:
        # Where only links are, a device of ours takes an address or a number over.
        show_entries(folder, f"{tree}/{folder}")
        linux.mount(f"{tree}/{folder}", f"/sys/{folder}", flags=linux.MS_BIND | linux.MS_REC)


def show_entries(folder: str, target: str) -> None:
    """The machine's own in a folder of sysfs beside the node's: modules are many, and links cost no mount."""
    if folder != "module":
        bind_entries(f"/sys/{folder}", target)
        return
    for name in os.listdir(f"/sys/{folder}"):
        if not os.path.lexists(f"{target}/{name}"):
            os.symlink(f"{LIBEXEC}/sys/{folder}/{name}", f"{target}/{name}")


def make_node(folder: str, name: str, mode: int, device: int) -> None:
    path = f"{folder}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mknod(path, mode, device)
    os.chmod(path, stat.S_IMODE(mode))


def mount_dev(content: Content) -> None:
    """A /dev of the node's own: the host's standard nodes, and the driver's."""
    dev = mount_scratch("dev", linux.MS_NOSUID, "mode=0755")
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


def mount_tmp(own: bool) -> None:
    """The host's /tmp, entry by entry, so that nvidia-mps can lie beside them; own: where it does."""
    temporary = mount_scratch("tmp", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    bind_entries("/tmp", temporary)
    if own:
        mps = temporary + catalogue.MPS_FOLDER[len("/tmp") :]
        if not os.path.isdir(mps):
            os.mkdir(mps)
            os.chmod(mps, 0o1777)
    linux.mount(temporary, "/tmp", flags=linux.MS_MOVE)


def set_up(content: Content, cgroup: str = "host", *, installs: bool = False) -> None:
    """Turn this process's machine into the node; everything it starts is on it too.

    installs: whether files will be installed there, wherever below /usr, /etc, /run and /var.
    """
    folder = os.getcwd()
    umask = os.umask(0o022)
    enter()
    cgroups.choose(cgroup)
    layers: dict[str, Layer] = {}
    write_files(content, layers, ("/var",) if installs else ())
    for layer in layers.values():
        layer.mount()
    run_ldconfig(content.driver_root)
    if cgroups.is_v2() and not linux.has_capability(linux.CAP_SYS_RESOURCE):
        with open("/etc/ld.so.preload", "a", encoding="ascii") as file:
            file.write(f"{NOMEMLOCK}\n")
    mount_dev(content)
    mount_tmp(bool(content.node.driver))
    mount_sys(content)
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
    vendors: Sequence[str] = (),
    version: str = "",
) -> Content:
    """The node as a value: described, built, with other vendors' drivers, and with its faults planted.

    version: the driver's, in place of the description's.
    """
    node = description.load(name_or_file)
    if version:
        node = node._replace(driver=version)
    with open("/proc/devices", encoding="ascii") as file:
        devices = file.read()
    driver, cuda = (node.driver, node.cuda_number) if node.driver else (ANY_DRIVER, ANY_CUDA)
    built = build.build(driver, cuda, cache)
    content = Content(node, built, devices, root, layout)
    if vendors:
        add_vendors(content, vendors, devices, layout, cache)
    for fault in faults:
        FAULTS[fault].plant(content)
    return content


def add_vendors(content: Content, names: Sequence[str], devices: str, layout: str, cache: str) -> None:
    """Other vendors' drivers, which lie on the host itself, wherever NVIDIA's is."""
    taken = set(procfs.choose_majors(devices).values())
    free = (major for major in procfs.free_majors(devices) if major not in taken)
    additions = collect(names, content.node, library_folder(layout), free)
    content.add_vendors(additions, build.build_vendors(additions, cache))


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
    parser.add_argument("--vendor", dest="vendors", action="append", default=[], choices=[*VENDORS, *BOARDS])
    parser.add_argument("--platform", choices=PLATFORMS, help="in place of NVIDIA's driver")
    parser.add_argument("--driver-root", default="", metavar="DIR", help="put the driver's files below DIR")
    layouts = dict.fromkeys((*LAYOUTS, *realdriver.LAYOUTS))
    parser.add_argument("--layout", default="host", choices=layouts, help="which folder has the libraries")
    parser.add_argument("--driver", default="", metavar="FOLDER", help="a real one's files, or debian:535")
    parser.add_argument("--packages", action="append", default=[], metavar="FOLDER", help="install Debian packages")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("gpunode: needs root, for the node's mounts and device nodes", file=sys.stderr)
        return FAILED
    try:
        root = options.driver_root.rstrip("/")
        faults = options.faults
        layout = options.layout
        name, vendors = options.description, options.vendors
        if options.platform:
            name, vendors = "none", [options.platform, *vendors]
        real, packages = options.driver, [os.path.realpath(folder) for folder in options.packages]
        if layout not in (realdriver.LAYOUTS if real else LAYOUTS) and layout != "host":
            raise OSError(f"--layout {layout} is {'not ' if real else ''}for a real driver")
        version = realdriver.version(real) if real else ""
        if real or packages:
            # Before its mounts lie over it.
            real = realdriver.folder_of(real) if real else ""
            faults = ["no-user-space", *faults]
        own = "host" if real else layout
        content = prepare(name, faults, build.CACHE, root, own, vendors, version)
        set_up(content, options.cgroup, installs=bool(real or packages))
        if real or packages:
            realdriver.put(real, packages, "" if layout == "host" else layout)
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
