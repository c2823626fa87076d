# SPDX-License-Identifier: Apache-2.0
"""One simulated node as values: reads a description file, renders it for the C sources."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "descriptions")

# NVML's numbers (nvmlBrandType_t).
BRANDS = {"quadro": 1, "tesla": 2, "nvs": 3, "grid": 4, "geforce": 5, "titan": 6, "nvidia": 14}


# How each GPU is and what is done with it, in NVML's units.
READINGS = {"memory_used": 1_234_567_168, "ecc_uncorrected": 0, "recovery_action": 0, "processes": 1}


class MigDevice(NamedTuple):
    """One compute instance, with the memory of its GPU instance; NVML counts them in this order."""

    gi: int
    ci: int
    uuid: str
    profile: str
    memory_mib: int


class Gpu(NamedTuple):
    nvml_index: int
    model: str
    uuid: str
    bus_id: str
    minor: int
    brand: str
    compute_capability: str
    memory_mib: int
    pci_id: str
    subsystem_id: str
    vbios: str
    irq: int
    gsp_firmware: bool
    mig_capable: bool
    max_mig: int
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()
    dri: tuple[int, ...] = ()  # N of /dev/dri/cardN and of renderDN; empty without nvidia-drm


class Description(NamedTuple):
    name: str
    driver: str  # empty: a node without NVIDIA's driver
    cuda: str
    kernel_module: str  # "proprietary" or "open": they word /proc/driver/nvidia/version differently
    gpus: tuple[Gpu, ...]  # in the order of PCI addresses, which is NVML's
    capability_minors: tuple[int, ...]
    nvswitches: int
    imex_channels: int = 0
    nvidia_fs: int = 0  # how many /dev/nvidia-fsN, of GPUDirect Storage
    gdrcopy: bool = False
    uverbs: int = 0  # how many /dev/infiniband/uverbsN

    @property
    def cuda_number(self) -> int:
        """The CUDA version as the driver API gives it: 12.2 is 12020."""
        major, minor = self.cuda.split(".")
        return int(major) * 1000 + int(minor) * 10


def names() -> list[str]:
    return sorted(name[:-5] for name in os.listdir(FOLDER) if name.endswith(".json"))


# What a description need not say: a node has none of it.
OPTIONAL = ("imex_channels", "nvidia_fs", "gdrcopy", "uverbs")


def _gpu(index: int, values: dict[str, Any]) -> Gpu:
    given = dict(values, dri=tuple(values.get("dri", ())))
    given["mig"] = tuple(MigDevice(**device) for device in values.get("mig", ()))
    return Gpu(nvml_index=index, **given)


def load(name_or_file: str) -> Description:
    """A description by its name (`v100`), or by the path of a file."""
    path = os.path.join(FOLDER, f"{name_or_file}.json")
    if not os.path.exists(path):
        path = name_or_file
    with open(path, encoding="utf-8") as file:
        values: dict[str, Any] = json.load(file)
    gpus = sorted(values["gpus"], key=lambda gpu: str(gpu["bus_id"]))
    return Description(
        name=os.path.splitext(os.path.basename(path))[0],
        driver=values["driver"],
        cuda=values["cuda"],
        kernel_module=values["kernel_module"],
        gpus=tuple(_gpu(index, gpu) for index, gpu in enumerate(gpus)),
        capability_minors=tuple(values["capability_minors"]),
        nvswitches=values["nvswitches"],
        **{name: values[name] for name in OPTIONAL if name in values},
    )


def _gpu_lines(gpu: Gpu) -> list[str]:
    major, minor = gpu.compute_capability.split(".")
    as_they_are = ("uuid", "model", "bus_id", "minor", "max_mig")
    return [
        f"gpu {gpu.nvml_index}",
        *[f"{name} {getattr(gpu, name)}" for name in as_they_are],
        f"brand {BRANDS[gpu.brand]}",
        f"memory {gpu.memory_mib << 20}",
        *[f"{name} {getattr(gpu, name)[2:]}" for name in ("pci_id", "subsystem_id")],
        *(f"capability_major {major}", f"capability_minor {minor}"),
        *[f"{name} {int(getattr(gpu, name))}" for name in ("mig_capable", "mig_enabled")],
        *[f"reading {name} {value}" for name, value in READINGS.items()],
    ]


def _mig_lines(gpu: Gpu, device: MigDevice) -> list[str]:
    return [
        f"mig {device.gi} {device.ci}",
        f"uuid {device.uuid}",
        f"model {gpu.model} MIG {device.profile}",
        f"memory {device.memory_mib << 20}",
    ]


def render(node: Description) -> str:
    """The plain text that src/description.h reads."""
    lines = [f"driver {node.driver}", f"cuda {node.cuda_number}", f"nvswitches {node.nvswitches}"]
    for gpu in node.gpus:
        lines += _gpu_lines(gpu)
        for device in gpu.mig:
            lines += _mig_lines(gpu, device)
    return "\n".join(lines) + "\n"
