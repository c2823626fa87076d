# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver 396.26 as RHEL 7's packages had it, which is what oci-decorator's oci-nvidia.json describes.

Nodes, libraries and programs, and nothing below /proc/driver/nvidia: the node's own driver is whatever its description
says.  That file names three programs wrongly; here they have their right names.
"""

from __future__ import annotations

from ..procfs import MAJOR, DeviceNode
from .additions import Additions

DRIVER = "396.26"
FOLDER = "/usr/lib64/nvidia"


def nvidia_decorator(node: Additions) -> None:
    """One GPU."""
    node.major("nvidia-frontend", MAJOR)
    uvm = node.major("nvidia-uvm")
    # NVIDIA's own modules tell sysfs of no node.
    node.nodes += [
        DeviceNode("/dev/nvidia0", MAJOR, 0),
        DeviceNode("/dev/nvidiactl", MAJOR, 255),
        DeviceNode("/dev/nvidia-uvm", uvm, 0),
        DeviceNode("/dev/nvidia-uvm-tools", uvm, 1),
    ]
    for name in ("cuda", "nvidia-ml", "nvidia-cfg", "nvidia-opencl", "nvidia-ptxjitcompiler"):
        path = f"{FOLDER}/lib{name}.so.{DRIVER}"
        node.library(path, f"lib{name}.so.1", development=name != "nvidia-opencl")
    for name in ("nvidia-fatbinaryloader", "nvidia-compiler"):
        node.library(f"{FOLDER}/lib{name}.so.{DRIVER}")
    node.texts["/etc/ld.so.conf.d/nvidia-lib64.conf"] = f"{FOLDER}\n"
    tools = ("smi", "debugdump", "persistenced", "cuda-mps-control", "cuda-mps-server")
    nodes = "/dev/nvidiactl /dev/nvidia0 /dev/nvidia-uvm /dev/nvidia-uvm-tools"
    node.program(nodes, *(f"/usr/bin/nvidia-{name}" for name in tools))
