# SPDX-License-Identifier: Apache-2.0
"""The text files of NVIDIA's kernel module in /proc/driver/nvidia (its README, "Driver Proc Files"), and /proc/devices.

Reading them opens no GPU.  An absent file is an absent value.  Reads only.
"""

from __future__ import annotations

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

DRIVER = "/proc/driver/nvidia"
GPUS = f"{DRIVER}/gpus"
VERSION = f"{DRIVER}/version"
PARAMS = f"{DRIVER}/params"
CAPABILITIES = f"{DRIVER}/capabilities"
DEVICES = "/proc/devices"

_MOST_DIGITS = 10


class Gpu(NamedTuple):
    """One GPU as the kernel module knows it.

    nvml_index: position in NVML's order, which is the order of PCI addresses; bus_id: the PCI address with an
    eight-digit domain, as NVML writes it; proc: the name of its folder below /proc/driver/nvidia/gpus; uuid:
    ``GPU-<uuid>``, None until the GPU is first initialised; compute_capability (``9.0``) and brand: from NVML, "" if
    NVML was not asked.
    """

    nvml_index: int
    uuid: str | None
    model: str
    bus_id: str
    minor: int
    proc: str
    compute_capability: str = ""
    brand: str = ""


def mig_instances(root: HostRoot) -> tuple[str, ...]:
    """The compute instances that exist now, ``gpu0/gi1/ci0``: GPU by its minor, GPU instance, compute instance."""
    found = []
    for gpu in root.names(CAPABILITIES):
        if not gpu.startswith("gpu"):
            continue
        for instance in root.names(f"{CAPABILITIES}/{gpu}/mig"):
            if instance.startswith("gi"):
                found += [
                    f"{gpu}/{instance}/{name}"
                    for name in root.names(f"{CAPABILITIES}/{gpu}/mig/{instance}")
                    if name.startswith("ci")
                ]
    return tuple(found)


def mig_folder(instance: str) -> str:
    """The folder that the kernel shows for a compute instance, named as by `mig_instances`."""
    gpu, _, rest = instance.partition("/")
    return f"{CAPABILITIES}/{gpu}/mig/{rest}"


def capability_minor(root: HostRoot, path: str) -> int | None:
    """The minor of the device for a capability, `path` below the capabilities' folder; None if there is none."""
    text = information(root, f"{CAPABILITIES}/{path}").get("DeviceFileMinor", "")
    return int(text) if is_number(text) else None


def is_number(text: str) -> bool:
    """Whether it is a number as the module writes one: of a longer one Python makes none."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def information(root: HostRoot, path: str) -> dict[str, str]:
    """The ``key: value`` lines of one of the module's files, such as a GPU's ``information``."""
    lines = (root.read(path) or b"").decode("utf-8", "replace").splitlines()
    pairs = [line.partition(":") for line in lines]
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def uuid_in(information: dict[str, str]) -> str | None:
    """The UUID of a GPU; None until it is first initialised, for which the module writes question marks."""
    uuid = information.get("GPU UUID", "?")
    return None if "?" in uuid else "GPU-" + uuid[4:].lower()


def character_majors(root: HostRoot) -> dict[str, int]:
    """Names and major numbers of character devices, from /proc/devices (proc(5))."""
    text = (root.read(DEVICES) or b"").decode("ascii", "replace")
    pairs = [line.split(None, 1) for line in text.partition("Block devices:")[0].splitlines()]
    # Where two have one name, the first counts.
    return {pair[1]: int(pair[0]) for pair in reversed(pairs) if len(pair) == 2 and is_number(pair[0])}
