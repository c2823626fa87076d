# SPDX-License-Identifier: Apache-2.0
"""This node's features for Node Feature Discovery: labels from values.  Pure.

Names and values below nvidia.com are those of gpu-feature-discovery, which the pods of a cluster go by; ours lie in the
namespace that every NFD accepts.  Other vendors' devices are below the vendor's domain, by names that begin with ours:
the vendors' own labellers, such as AMD's, keep theirs there.  Every name and value is one that Kubernetes takes.  Must
not look at anything.
"""

from __future__ import annotations

import re

from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.node.gpus.readings import GpuReading
from oci_gpu_hook.node.machine.validated import FAILED, PASSED, STEPS, Validation
from oci_gpu_hook.record import NamedTuple

NVIDIA = "nvidia.com/"
OURS = "feature.node.kubernetes.io/oci-gpu-hook."
SINGLE, MIXED = "single", "mixed"

_LONGEST = 63
_NOT_ALLOWED = re.compile(r"[^\sA-Za-z0-9_.-]")
_LONGEST_CLASS = 32
# Kubernetes: what stands before the slash.  A domain, and no name of a single word.
_DOMAIN = re.compile(r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_GPU = "gpu"
# By the major number of the compute capability; within 7 and 8 another family begins with a minor number.
_FAMILIES = {
    **{1: "tesla", 2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 7: "volta", 8: "ampere", 9: "hopper"},
    **dict.fromkeys((10, 11, 12), "blackwell"),
}
_SECOND_FAMILIES = {7: (5, "turing"), 8: (9, "ada-lovelace")}
# PCI's classes of display controllers, as sysfs writes them.
_MODES = {"0x030000": "graphics", "0x030200": "compute"}


class OtherVendor(NamedTuple):
    """Another vendor's devices.

    kind: of the vendor's file, ``amd.com/gpu``; number: how many a request can name; version: the driver's, or "".
    """

    kind: str
    number: int
    version: str


class Host(NamedTuple):
    """What is told of a host.

    inventory: without a version if NVIDIA's driver is not loaded; readings: what NVML reads, () if it was not asked;
    classes: the PCI classes of the GPUs; machine: its maker's name for it; strategy: the setting mig-strategy; selinux:
    the mode of oci_gpu_hook_selinux(8) that it serves, or ``disabled``, "" if that is not known; version: ours;
    unhealthy: how many GPUs are not healthy.
    """

    inventory: DriverInventory
    readings: tuple[GpuReading, ...]
    classes: tuple[str, ...]
    machine: str
    strategy: str
    selinux: str
    version: str
    validation: Validation | None
    unhealthy: int = 0
    others: tuple[OtherVendor, ...] = ()


def labels(host: Host) -> dict[str, str]:
    """All labels of a host, by their whole names."""
    found = _versions(host.inventory) if host.inventory.driver_version else {}
    if host.inventory.gpus:
        found.update(_machine(host))
        found.update(_gpus(host))
        if host.strategy in (SINGLE, MIXED):
            found["mig.strategy"] = host.strategy
            found.update(_single(host) if host.strategy == SINGLE else _mixed(host))
    spaces = ((NVIDIA, found), (OURS, _ours(host)))
    named = {
        space + (label_value(name) or "unknown"): value for space, values in spaces for name, value in values.items()
    }
    for other in host.others:
        named.update(_other(other))
    return {name: label_value(value) for name, value in named.items()}


def label_value(words: str) -> str:
    """What Kubernetes takes as a label's value: letters, digits, ``-_.``, 63 at most, a letter or digit at both ends.

    As gpu-feature-discovery does it: blanks become hyphens, and what else is not allowed is left out.
    """
    kept = _NOT_ALLOWED.sub("", words)
    return "-".join(kept.split())[:_LONGEST].strip("-_.")


def _versions(inventory: DriverInventory) -> dict[str, str]:
    """Of driver and CUDA, by the names of today and those of before."""
    major, minor, revision = (*inventory.driver_version.split("."), "", "")[:3]
    cuda_major, _, cuda_minor = inventory.cuda_version.partition(".")
    found = {"cuda.driver-version.full": inventory.driver_version}
    for name, last in (("cuda.driver-version", "revision"), ("cuda.driver", "rev")):
        found.update({f"{name}.major": major, f"{name}.minor": minor, f"{name}.{last}": revision})
    if cuda_major:
        found["cuda.runtime-version.full"] = inventory.cuda_version
        for name in ("cuda.runtime-version", "cuda.runtime"):
            found.update({f"{name}.major": cuda_major, f"{name}.minor": cuda_minor})
    return found


def _machine(host: Host) -> dict[str, str]:
    classes = set(host.classes)
    divided = any(["mig_enabled" in item.values for item in host.readings])
    return {
        "gpu.machine": host.machine or "unknown",
        "gpu.mode": _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown",
        "mig.capable": str(divided or bool(host.inventory.mig_devices)).lower(),
    }


def _gpus(host: Host) -> dict[str, str]:
    """Of the GPUs of one model: that of the first whole GPU, or of the first one where all are in MIG mode."""
    whole = [gpu for gpu in host.inventory.gpus if not _is_divided(host, gpu)]
    gpu = (whole or host.inventory.gpus)[0]
    count = len([item for item in host.inventory.gpus if item.model == gpu.model])
    found = {**_base(_GPU, count, gpu.model, 1 if whole else 0), **_architecture(gpu.compute_capability)}
    memory = (_reading(host, gpu) or {}).get("memory_total", 0) >> 20
    return {**found, "gpu.memory": str(memory)} if memory else found


def _base(name: str, count: int, product: str, replicas: int = 1) -> dict[str, str]:
    return {
        f"{name}.product": product,
        f"{name}.count": str(count),
        f"{name}.replicas": str(replicas),
        f"{name}.sharing-strategy": "none",
    }


def _architecture(capability: str) -> dict[str, str]:
    """Family and compute capability; nothing if NVML has not said it."""
    major, _, minor = capability.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        return {}
    first, second = _SECOND_FAMILIES.get(int(major), (0, ""))
    family = second if second and int(minor) >= first else _FAMILIES.get(int(major), "undefined")
    return {"gpu.family": family, "gpu.compute.major": major, "gpu.compute.minor": minor}


def _single(host: Host) -> dict[str, str]:
    """All MIG devices as GPUs: only where every GPU is divided, and all into the same profile."""
    gpus, devices = host.inventory.gpus, host.inventory.mig_devices
    divided = [gpu for gpu in gpus if _is_divided(host, gpu)]
    if not divided:
        return {}
    profiles = {device.profile for device in devices}
    holders = {device.gpu for device in devices}
    is_empty = any([gpu.nvml_index not in holders for gpu in divided])
    if is_empty or len(divided) != len(gpus) or len(profiles) != 1:
        zeros = dict.fromkeys([f"{_GPU}.{name}" for name in ("count", "replicas", "memory")], "0")
        return {f"{_GPU}.product": f"{label_value(divided[0].model)}-MIG-INVALID", **zeros}
    return _mig(host, _GPU, devices)


def _mixed(host: Host) -> dict[str, str]:
    """A resource for each profile."""
    found: dict[str, str] = {}
    for profile in dict.fromkeys([device.profile for device in host.inventory.mig_devices]):
        if profile:
            alike = [it for it in host.inventory.mig_devices if it.profile == profile]
            # As the device plugin names the resource: a profile such as 1g.10gb+me has a sign that no name may have.
            found.update(_mig(host, f"mig-{profile.replace('+', '.')}", tuple(alike)))
    return found


def _mig(host: Host, name: str, devices: tuple[MigDevice, ...]) -> dict[str, str]:
    """Of MIG devices of one profile."""
    first = devices[0]
    model = next(gpu.model for gpu in host.inventory.gpus if gpu.nvml_index == first.gpu)
    product = f"{label_value(model)}-MIG-{label_value(first.profile)}"
    attributes = {item.uuid: item.attributes for reading in host.readings for item in reading.mig}.get(
        first.uuid or "", {}
    )
    return {**_base(name, len(devices), product), **{f"{name}.{key}": str(value) for key, value in attributes.items()}}


def _other(other: OtherVendor) -> dict[str, str]:
    """By whole names: that devices are here, how many if a request can tell them apart, and the driver's version."""
    domain, _, name = other.kind.partition("/")
    name = label_value(name)[:_LONGEST_CLASS].strip("-_.")
    if not name or not _DOMAIN.fullmatch(domain):
        return {}
    values = {"present": "true", "count": str(other.number or ""), "driver-version": other.version}
    return {f"{domain}/oci-gpu-hook.{name}.{key}": value for key, value in values.items() if value}


def _ours(host: Host) -> dict[str, str]:
    """The hook's version, SELinux, and the last validation, if it was of this driver."""
    values = {"version": host.version, "unhealthy-gpus": str(host.unhealthy or ""), "selinux-mode": host.selinux}
    found = {name: value for name, value in values.items() if value}
    last = host.validation
    if not host.inventory.driver_version:
        # It is NVIDIA's driver that is validated.
        return found
    if last is None or last.driver_version != host.inventory.driver_version:
        return {**found, "validation": "none"}
    outcomes = {step.name: step.outcome for step in last.steps}
    whole = PASSED if all([outcomes.get(name) == PASSED for name in STEPS]) else "incomplete"
    return {
        **found,
        "validation": FAILED if FAILED in outcomes.values() else whole,
        **{f"validation.{name}": outcome for name, outcome in outcomes.items()},
        "validation.timestamp": str(last.time),
    }


def _reading(host: Host, gpu: Gpu) -> dict[str, int] | None:
    """What NVML reads of a GPU; None if it was not asked, or did not answer."""
    return next((item.values for item in host.readings if item.bus_id == gpu.bus_id), None)


def _is_divided(host: Host, gpu: Gpu) -> bool:
    """Whether a GPU is in MIG mode; without NVML's answer, whether it has MIG devices."""
    values = _reading(host, gpu)
    if values is not None:
        return bool(values.get("mig_enabled"))
    return any([device.gpu == gpu.nvml_index for device in host.inventory.mig_devices])
