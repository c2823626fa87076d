# SPDX-License-Identifier: Apache-2.0
"""MIG devices: the instances that the kernel shows, with the names that only NVML knows.

/proc shows the GPU and compute instances, and the device that opens each (NVIDIA's MIG user guide, "Device Nodes and
Capabilities").  Their UUIDs, and their numbers in names such as ``0:1``, come from NVML.  Reads only.
"""

from __future__ import annotations

from oci_gpu_hook.driver import proc
from oci_gpu_hook.driver.gpu import Gpu
from oci_gpu_hook.driver.inventory import MigDevice
from oci_gpu_hook.host.root import HostRoot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.driver.facts import Facts, MigFacts


def devices(root: HostRoot, gpus: tuple[Gpu, ...], facts: Facts | None) -> tuple[MigDevice, ...]:
    """Every compute instance of `gpus`, in NVML's order of GPUs and the kernel's of instances."""
    parents = {f"gpu{gpu.minor}": gpu for gpu in gpus}
    named = _facts_by_instance(facts)
    found = []
    for name in proc.mig_instances(root):
        minor_name, instance, compute = name.split("/")
        gi_minor = proc.capability_minor(root, f"{minor_name}/mig/{instance}/access")
        ci_minor = proc.capability_minor(root, f"{minor_name}/mig/{instance}/{compute}/access")
        numbers = instance[2:], compute[2:]
        gpu = parents.get(minor_name)
        if gpu is None or gi_minor is None or ci_minor is None:
            continue
        if not all([text.isdecimal() for text in numbers]):
            continue
        gi, ci = int(numbers[0]), int(numbers[1])
        names = named.get((gpu.bus_id, gi, ci))
        found.append(
            MigDevice(
                gpu=gpu.nvml_index,
                number=names.number if names else None,
                uuid=names.uuid if names else None,
                profile=names.profile if names else "",
                gi=gi,
                ci=ci,
                gi_minor=gi_minor,
                ci_minor=ci_minor,
            )
        )
    return tuple(sorted(found, key=lambda device: (device.gpu, device.gi, device.ci)))


def _facts_by_instance(facts: Facts | None) -> dict[tuple[str, int, int], MigFacts]:
    """What NVML says of each MIG device, by PCI address, GPU instance and compute instance."""
    if facts is None:
        return {}
    return {(gpu.bus_id, mig.gi, mig.ci): mig for gpu in facts.gpus for mig in gpu.mig}
