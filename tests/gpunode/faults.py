# SPDX-License-Identifier: Apache-2.0
"""The faults that `--break` plants, in one table: name, sentence, change to the node's content.

Must not: touch the machine; a fault changes the value, before anything is mounted.
"""

from __future__ import annotations

import re
from typing import Callable, NamedTuple

from . import procfs
from .content import Content

Plant = Callable[[Content], object]


class Fault(NamedTuple):
    sentence: str
    plant: Plant


def _newer(driver: str) -> str:
    """The next release of the same branch."""
    parts = driver.split(".")
    return ".".join([*parts[:-1], f"{int(parts[-1]) + 1:02d}"])


def _library_version(content: Content) -> None:
    driver = content.node.driver
    old = content.library(f"libcuda.so.{driver}")
    content.files[content.library(f"libcuda.so.{_newer(driver)}")] = content.files.pop(old)
    content.links[content.library("libcuda.so.1")] = f"libcuda.so.{_newer(driver)}"


def _driver_version(content: Content) -> None:
    node = content.node
    content.proc.update(
        (path, text.replace(node.driver, _newer(node.driver)))
        for path, text in list(content.proc.items())
        if path.startswith("nvidia/")
    )


def _all(*plants: Plant) -> Plant:
    return lambda content: [plant(content) for plant in plants]


def _without(tables: str, pattern: str) -> Plant:
    """Without the paths and names in these tables of the content in which the pattern is found."""

    def plant(content: Content) -> None:
        for table in [getattr(content, name) for name in tables.split()]:
            for path in [path for path in table if re.search(pattern, path)]:
                del table[path]

    return plant


def _no_library(start: str) -> Plant:
    """Without what lies in a library folder, i386 too, and has a name that starts so."""

    def plant(content: Content) -> None:
        for path in content.libraries(start):
            content.files.pop(path, None)
            content.links.pop(path, None)

    return plant


def _no_nodes(pattern: str) -> Plant:
    def plant(content: Content) -> None:
        content.nodes = [node for node in content.nodes if not re.match(pattern, node.path)]

    return plant


def _wrong_node(content: Content) -> None:
    path = f"/dev/nvidia{content.node.gpus[0].minor}"
    _no_nodes(f"{path}$")(content)
    content.nodes.append(procfs.DeviceNode(path, 1, 7))  # the kernel's /dev/full


def _says(line: str) -> Plant:
    """A line for the node's description, as src/description.h reads it."""

    def plant(content: Content) -> None:
        content.proc["gpunode/description"] += f"{line}\n"

    return plant


def _says_another_uuid(content: Content) -> None:
    uuid = content.node.gpus[0].uuid
    _says(f"fault 0 claims {uuid[:4]}{'1' if uuid[4] == '0' else '0'}{uuid[5:]}")(content)


def _cuda(line: str) -> Plant:
    """A fault of libcuda on the first GPU: the call, and what it does."""
    return _says(f"fault 0 cuda {line}")


_UVM_NODES = _no_nodes("/dev/nvidia-uvm")
_UVM = _all(_without("registered", "nvidia-uvm"), _UVM_NODES)
_GPUS = _all(_without("proc", "^nvidia/gpus/"), _no_nodes("/dev/nvidia[0-9]"))
# What the driver's packages bring, for real ones in its place; what makes the node one stays.
_USER_SPACE = _without("files links texts", "^/(usr|etc|lib|opt)(?!.*/gpunode/)")

FAULTS = {
    "library-version": Fault("libcuda is of the next release", _library_version),
    "driver-version": Fault("the kernel driver is of the next release", _driver_version),
    "no-libcuda": Fault("no libcuda", _no_library("libcuda.so")),
    "no-libraries": Fault("kernel driver only: no library", _no_library("")),
    "no-user-space": Fault("kernel driver only: no file of the driver's packages", _USER_SPACE),
    "no-proc-driver": Fault("nodes, but no /proc/driver/nvidia*", _without("proc", "^nvidia")),
    "no-gpus": Fault("a driver without any GPU", _GPUS),
    "no-uvm": Fault("nvidia-uvm is not loaded: no major, no nodes", _UVM),
    "no-uvm-nodes": Fault("nvidia-uvm is loaded, its nodes are not made", _UVM_NODES),
    "no-nodes": Fault("no /dev/nvidia* at all", _no_nodes("")),
    "wrong-node": Fault("the first GPU's node is another device (1:7)", _wrong_node),
    "no-nvml": Fault("no libnvidia-ml", _no_library("libnvidia-ml.so")),
    "nvml-hangs": Fault("nvmlInit never returns", _says("nvml hangs")),
    "nvml-errors": Fault("nvmlInit fails with an unknown error", _says("nvml errors")),
    "nvml-goes": Fault("NVML fails once it is asked for the GPUs", _says("nvml goes")),
    "nvml-leaves": Fault("NVML goes away after two questions", _says("leaves 2")),
    "gpu-lost": Fault("NVML says that its first GPU is lost", _says("fault 0 lost")),
    "gpu-unlisted": Fault("NVML could not start its second GPU, and does not list it", _says("fault 1 unlisted")),
    "gpu-falls": Fault("the first GPU is lost after two questions", _says("fault 0 falls 2")),
    "gpu-hangs": Fault("a question to the first GPU never returns", _says("fault 0 hangs")),
    "gpu-lies": Fault("the first GPU has an impossible count", _says("fault 0 ecc_uncorrected 18000000000000000")),
    "nvml-lies": Fault("NVML gives the first GPU another UUID than the kernel", _says_another_uuid),
    "cuda-hangs": Fault("cuInit never returns for the first GPU", _cuda("cuInit hang")),
    "cuda-crashes": Fault("cuInit crashes for the first GPU", _cuda("cuInit crash")),
    "cuda-not-ready": Fault("cuInit fails for the first GPU, as without the fabric manager", _cuda("cuInit 802")),
    "cuda-busy": Fault("the first GPU is another process's alone", _cuda("cuDevicePrimaryCtxRetain 46")),
    "cuda-other": Fault("another GPU answers in the first one's place", _cuda("cuDeviceGetUuid wrong")),
    "cuda-no-memory": Fault("the first GPU has no memory left", _cuda("cuMemAlloc 2")),
    "cuda-no-jit": Fault("there is no compiler of PTX", _cuda("cuModuleLoadData 221")),
    "cuda-no-launch": Fault("a kernel is launched and fails", _cuda("cuLaunchKernel 719")),
    "cuda-wrong": Fault("the first GPU computes wrong sums", _cuda("cuLaunchKernel wrong")),
    "cuda-lost": Fault("the first GPU falls off the bus", _cuda("cuCtxSynchronize 999")),
    "cuda-stuck": Fault("a kernel on the first GPU never ends", _cuda("cuCtxSynchronize hang")),
}
