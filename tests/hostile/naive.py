#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A deliberately naive injector, as hooks were written before their CVEs: what the attacks must catch.

It follows every path by name below the container's root, from the container's mount namespace, in which the host's root
is in sight: links of the image lead to the host.  It believes the state, the image's files and the maker of a folder in
/tmp.  Each step goes on where the one before failed, so that one attack does not hide another.

    naive.py STAGE [--checks]              --checks: lstat first, then use, as the fix of CVE-2024-0132 did
"""

import ctypes
import glob
import json
import os
import platform
import stat
import sys

MS_BIND, MS_REC, MS_RDONLY, MS_REMOUNT = 4096, 16384, 1, 32
CLONE_NEWNS = 0x20000
FIRMWARE = "/lib/firmware/nvidia"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
SOCKET = "/run/nvidia-persistenced/socket"
MPS = "/tmp/nvidia-mps"
LABEL = b"system_u:object_r:container_file_t:s0"
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, flags: int, kind: bytes = b"") -> None:
    if libc.mount(source.encode(), target.encode(), kind, flags, None):
        raise OSError(ctypes.get_errno(), f"mount on {target}")


def bind(source: str, target: str, *, writable: bool = False) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o755))
    mount(source, target, MS_BIND | MS_REC)
    if not writable:
        mount(source, target, MS_BIND | MS_REMOUNT | MS_RDONLY)


class Injector:
    def __init__(self, root: str, pid: int, checks: bool) -> None:
        self.root = root
        self.pid = pid
        self.checks = checks
        multiarch = f"/usr/lib/{platform.machine()}-linux-gnu"
        there = os.path.exists(f"{root}{multiarch}/libc.so.6")
        self.folder = root + (multiarch if there else "/usr/lib64")

    def cgroup(self) -> None:
        """Every device, for whichever process the state names."""
        with open(f"/proc/{self.pid}/cgroup") as listed:
            lines = listed.read().splitlines()
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers == "devices":
                with open(f"/sys/fs/cgroup/devices{path}/devices.allow", "w") as file:
                    file.write("c *:* rwm")

    def compat(self) -> None:
        """CVE-2024-0132: the image's newer libraries, mounted from the image."""
        for path in glob.glob(f"{self.root}/usr/local/cuda/compat/lib*.so.*"):
            if self.checks and not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            target = f"{self.folder}/{os.path.basename(path)}"
            real = os.path.realpath(path)  # a second walk: CVE-2025-23359
            bind(real, target)

    def staging(self) -> None:
        os.makedirs(f"{self.root}/run/nvidia-staging", exist_ok=True)
        mount("tmpfs", f"{self.root}/run/nvidia-staging", 0, b"tmpfs")

    def libraries(self) -> None:
        host = os.path.dirname(glob.glob("/usr/lib*/**/libcuda.so.1", recursive=False)[0])
        # Where a loader looks, and where CUDA's images do.
        for folder in (self.folder, f"{self.root}/usr/local/nvidia/lib64"):
            for name in LIBRARIES:
                self.step(bind, os.path.realpath(f"{host}/{name}"), f"{folder}/{name}")

    def links(self) -> None:
        """CVE-2024-0134: by path, too."""
        os.makedirs(f"{self.folder}/gbm", exist_ok=True)
        os.symlink("libcuda.so.1", f"{self.folder}/libcuda.so")
        os.symlink("../libnvidia-allocator.so.1", f"{self.folder}/gbm/nvidia-drm_gbm.so")

    def program(self) -> None:
        """CVE-2024-0135: the host's own file, and nothing keeps the container from writing to it."""
        bind("/usr/bin/nvidia-smi", f"{self.root}/usr/bin/nvidia-smi", writable=True)

    def services(self) -> None:
        self.step(bind, SOCKET, self.root + SOCKET)
        self.step(bind, FIRMWARE, self.root + FIRMWARE)
        if os.path.isdir(MPS):
            self.step(bind, MPS, self.root + MPS, writable=True)

    def nodes(self) -> None:
        """By name: made, or believed to be what was just made."""
        for name, minor in (("nvidiactl", 255), ("nvidia-uvm", 0), ("nvidia0", 0)):
            path = f"{self.root}/dev/{name}"
            if not os.path.lexists(path):
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, minor))
            os.chmod(path, 0o666)

    def labels(self) -> None:
        for path in ("/dev/shm", "/dev/mqueue"):
            self.step(os.setxattr, self.root + path, "security.selinux", LABEL)

    def ldconfig(self) -> None:
        """CVE-2024-0136 and -0137: the image's own, as root of the host and in its network namespace."""
        child = os.fork()
        if child == 0:
            os.chroot(self.root)
            os.chdir("/")
            try:
                os.execv("/sbin/ldconfig", ["ldconfig"])
            except OSError:
                os._exit(127)
        os.waitpid(child, 0)

    def cache(self) -> None:
        """CVE-2025-23267: read and written by name."""
        path = f"{self.root}/etc/ld.so.cache"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
        fd = os.open(path, flags)
        os.read(fd, 4096)
        os.close(fd)
        with open(path, "ab") as file:
            file.write(b"glibc-ld.so.cache1.1")

    def step(self, function, *words, **options) -> None:  # type: ignore[no-untyped-def]
        """One step; an error quotes what the image says, as it is."""
        try:
            function(*words, **options)
        except (OSError, LookupError) as err:
            for name in LIBRARIES:
                path = f"{self.folder}/{name}"
                if os.path.islink(path):
                    print(f"naive: {name} -> {os.readlink(path)}", file=sys.stderr)
            print(f"naive: {err}", file=sys.stderr)


def main() -> None:
    """Believe what stands on stdin."""
    state = json.load(sys.stdin)
    with open(f"{state['bundle']}/config.json") as file:
        config = json.load(file)
    root = os.path.join(state["bundle"], config["root"]["path"])
    # At createContainer the hook is in the container's namespaces already, and sees no such pid.
    if sys.argv[1] != "createContainer":
        namespace = os.open(f"/proc/{state['pid']}/ns/mnt", os.O_RDONLY)
        if libc.setns(namespace, CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "setns")
    injector = Injector(root, state["pid"], "--checks" in sys.argv)
    for step in ("cgroup", "staging", "compat", "libraries", "links", "program", "services", "nodes",
                 "labels", "cache", "ldconfig"):  # fmt: skip
        injector.step(getattr(injector, step))


if __name__ == "__main__":
    main()
