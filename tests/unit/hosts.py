# SPDX-License-Identifier: Apache-2.0
"""Host trees for unit tests: the files of a driver below a folder, no kernel and no compiler needed.

A tree stands in for ``/`` by way of HostRoot.  Device nodes cannot be made without root, so a tree has none; the real
thing is simulated in tests/gpunode.
"""

from __future__ import annotations

import platform
import struct
from pathlib import Path

from oci_gpu_hook.host import inventory, nodes, survey
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.ldso import MULTIARCH

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

NVRM = (
    f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build  (builder)\n"
    "GCC version:  x\n"
)
PARAMS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n505 nvidia-uvm\n\nBlock devices:\n254 virtblk\n"


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def elf(soname: str, machine: int | None = None) -> bytes:
    """The smallest shared object that says its SONAME: headers, a dynamic section, a string table.

    Of 64 bits, but for i386.
    """
    machine = machine or MACHINES[platform.machine()]
    small = machine == MACHINES["i386"]
    word, header_size, segment_size = (4, 52, 32) if small else (8, 64, 56)
    strings = b"\0" + soname.encode() + b"\0"
    start = header_size + 2 * segment_size
    pairs = (5, start + 8 * word, 10, len(strings), 14, 1, 0, 0)
    dynamic = struct.pack("<8I" if small else "<8Q", *pairs)
    size = start + len(dynamic) + len(strings)
    header = struct.pack(
        "<16sHHIIIIIHHHHHH" if small else "<16sHHIQQQIHHHHHH",
        b"\x7fELF" + bytes([1 if small else 2, 1, 1]),
        *(3, machine, 1, 0, header_size, 0, 0, header_size, segment_size, 2, 0, 0, 0),
    )
    load, section = (1, 0, size), (2, start, len(dynamic))
    segments = [
        struct.pack("<8I", kind, at, at, at, length, length, 4, 4)
        if small
        else struct.pack("<IIQQQQQQ", kind, 4, at, at, at, length, length, 8)
        for kind, at, length in (load, section)
    ]
    return header + b"".join(segments) + dynamic + strings


def plant(tree: Path, path: str, content: str | bytes) -> None:
    file = tree / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def plant_gpu(tree: Path, bus: int, minor: int, *, extra: str = "") -> None:
    """One GPU's folder, as the kernel module shows it."""
    name = f"0000:{bus:02x}:00.0"
    text = (
        f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t {minor}\nGPU UUID: \t {uuid(minor)}\n"
        f"Bus Location: \t {name}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n{extra}"
    )
    plant(tree, f"proc/driver/nvidia/gpus/{name}/information", text)


def surveyed(root: HostRoot) -> inventory.DriverInventory:
    """All that a host has, as the command line shows it."""
    return inventory.with_nodes(root, survey.survey(root), nodes.FAMILIES)


def host(tree: Path, *, gpus: int = 2, version: str = VERSION) -> HostRoot:
    """A whole driver below `tree`; GPU n has minor gpus-1-n, so that minors are not NVML's indices."""
    plant(tree, "proc/driver/nvidia/version", NVRM.replace(VERSION, version))
    plant(tree, "proc/driver/nvidia/params", PARAMS)
    plant(tree, "proc/driver/nvidia/registry", 'Binary: ""\n')
    plant(tree, "proc/devices", DEVICES)
    plant(tree, "proc/sys/kernel/random/boot_id", "0c1d2e3f-0000-4000-8000-000000000000\n")
    for number in range(gpus):
        plant_gpu(tree, 7 + number, gpus - 1 - number)
    for name, soname in SONAMES.items():
        plant(tree, f"{LIBRARY_FOLDER}/{name}.so.{VERSION}", elf(soname))
    for name in ("nvidia-smi", "nvidia-persistenced", "nvidia-cuda-mps-control"):
        plant(tree, f"usr/bin/{name}", "")
    plant(tree, f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "firmware")
    plant(tree, f"lib/firmware/nvidia/{VERSION}/notes.txt", "no firmware")
    plant(tree, "var/run/nvidia-persistenced/socket", "")
    return HostRoot(str(tree))
