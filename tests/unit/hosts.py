# SPDX-License-Identifier: Apache-2.0
"""Trees that stand in for ``/`` by way of HostRoot, with a driver's files, and no node, which only root can make."""

from __future__ import annotations

import os
import platform
import struct
from pathlib import Path

from oci_gpu_hook.driver import inventory, nodes, proc, survey
from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.formats.ldcache import MULTIARCH, Entry
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import foreignfile

VERSION = "580.65.06"
LIBRARY_FOLDER = f"usr/lib/{MULTIARCH[platform.machine()]}"
MACHINES = {"x86_64": 62, "aarch64": 183, "i386": 3}

SONAMES = {
    "libnvidia-ml": "libnvidia-ml.so.1",
    "libnvidia-cfg": "libnvidia-cfg.so.1",
    "libcuda": "libcuda.so.1",
    "libcudadebugger": "libcudadebugger.so.1",
    "libnvidia-gpucomp": f"libnvidia-gpucomp.so.{VERSION}",
    "libnvidia-nvvm": "libnvidia-nvvm.so.4",
    "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
}

NVRM = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build  (b)\nGCC version:  x\n"
PARAMS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n505 nvidia-uvm\n\nBlock devices:\n254 virtblk\n"
# The UUID of a GPU that was never used.
NO_UUID = "GPU-????????-????-????-????-????????????"


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


# A SONAME one byte behind the beginning of the strings, and where those lie in memory.
ELF_TAGS = ((14, 1), (5, 0x11000))


def elf_file(
    strings: bytes,
    machine: int = 62,
    *,
    bits: int = 64,
    order: str = "<",
    tags: tuple[tuple[int, int], ...] = ELF_TAGS,
    offset: int = 0x200,
) -> bytes:
    """An ELF file of two segments: the dynamic one, and one of the strings, at `offset` and in memory at 0x11000."""
    word, header_size, segment_size = ("Q", 64, 56) if bits == 64 else ("I", 52, 32)
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]).ljust(12, b"\0")
    dynamic = b"".join(struct.pack(f"{order}2{word}", *tag) for tag in (*tags, (0, 0)))
    fields = (3, machine, 1, 0, header_size, 0, 0, header_size, segment_size, 2, 0, 0, 0)
    header = ident + struct.pack(f"{order}HHI3{word}I6H", *fields)

    def segment(kind: int, offset: int, address: int, size: int) -> bytes:
        places = (offset, address, address, size, size)
        if bits == 64:
            return struct.pack(f"{order}II6Q", kind, 4, *places, 0x1000)
        return struct.pack(f"{order}8I", kind, *places, 4, 0x1000)

    place = header_size + 2 * segment_size
    head = header + segment(2, place, 0, len(dynamic)) + segment(1, offset, 0x11000, len(strings)) + dynamic
    return head.ljust(offset, b"\0") + strings


def elf(soname: str, machine: int | None = None) -> bytes:
    """A shared object that says its SONAME; of 64 bits, but for i386."""
    machine = machine or MACHINES[platform.machine()]
    bits = 32 if machine == MACHINES["i386"] else 64
    return elf_file(b"\0" + soname.encode() + b"\0", machine, bits=bits)


def plant(tree: Path, path: str, content: str | bytes) -> None:
    file = tree / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    if file.parent.name in ("bin", "sbin"):
        file.chmod(0o755)


def link(tree: Path, path: str, to: str) -> None:
    place = tree / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(to)


def plant_library(tree: Path, path: str, soname: str = "", machine: str = "") -> None:
    """A library whose SONAME is its file's name if no other is given."""
    number = MACHINES[machine or platform.machine()]
    plant(tree, path, elf(soname or path.rpartition("/")[2], number))


def plant_cache(tree: Path, *paths: str) -> None:
    """An ld.so.cache that lists these libraries alone."""
    flags = ldcache.NATIVE_FLAGS[os.uname().machine]
    rows = [Entry(path.rpartition("/")[2].encode(), path.encode(), flags) for path in paths]
    plant(tree, "etc/ld.so.cache", ldcache.merge(None, rows))


def plant_program(tree: Path, pid: int, program: str, users: int = 0, namespace: str = "hosts") -> None:
    """A process that runs a program, as all four of these users; namespace: in which it is, the host's for `hosts`."""
    plant(tree, "ns/hosts", "")
    plant(tree, f"ns/{namespace}", "")
    for number, place in (("self", "hosts"), (str(pid), namespace)):
        link = tree / f"proc/{number}/ns/user"
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            os.link(tree / f"ns/{place}", link)
    device, place = foreignfile.our_mounts().shown(str(tree)) or ("", "")
    own = f"9 1 {device} {place} / rw - ext4 x rw\n" if namespace == "hosts" else "9 1 0:9 / / rw - tmpfs x rw\n"
    plant(tree, f"proc/{pid}/mountinfo", own)
    plant(tree, f"proc/{pid}/status", f"Name:\tx\nUid:\t{users}\t{users}\t{users}\t{users}\n")
    plant(tree, program.partition(" (")[0], "")
    (tree / f"proc/{pid}/exe").symlink_to(program)


def plant_gpu(tree: Path, bus: int, minor: int, *, extra: str = "") -> None:
    """One GPU's folder, as the kernel module shows it."""
    name = f"0000:{bus:02x}:00.0"
    text = (
        f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t {minor}\nGPU UUID: \t {uuid(minor)}\n"
        f"Bus Location: \t {name}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n{extra}"
    )
    plant(tree, f"proc/driver/nvidia/gpus/{name}/information", text)


def saved(root: HostRoot) -> str:
    """Save the inventory of a host, as for its hooks; gives the file's path."""
    os.makedirs(f"{root.path}/run", exist_ok=True)
    return survey.save(root, proc.stamp(root, "/"), survey.survey(root))


def surveyed(root: HostRoot) -> inventory.DriverInventory:
    """All that a host has, as the command line shows it."""
    return inventory.with_nodes(root, survey.survey(root), nodes.FAMILIES)


def host(tree: Path, *, gpus: int = 2) -> HostRoot:
    """A whole driver below `tree`; GPU n has minor gpus-1-n, so that minors are not NVML's indices."""
    (tree / "run").mkdir(parents=True, exist_ok=True)
    plant(tree, "proc/driver/nvidia/version", NVRM)
    plant(tree, "proc/driver/nvidia/params", PARAMS)
    plant(tree, "proc/driver/nvidia/registry", 'Binary: ""\n')
    plant(tree, "proc/devices", DEVICES)
    plant(tree, "proc/sys/kernel/random/boot_id", "0c1d2e3f-0000-4000-8000-000000000000\n")
    for number in range(gpus):
        plant_gpu(tree, 7 + number, gpus - 1 - number)
    for name, soname in SONAMES.items():
        plant(tree, f"{LIBRARY_FOLDER}/{name}.so.{VERSION}", elf(soname))
    for name in ("nvidia-smi", "nvidia-persistenced", "nvidia-cuda-mps-control"):
        plant(tree, f"usr/bin/{name}", elf(""))
    plant(tree, f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "firmware")
    plant(tree, f"lib/firmware/nvidia/{VERSION}/notes.txt", "no firmware")
    plant(tree, "var/run/nvidia-persistenced/socket", "")
    return HostRoot(str(tree))
