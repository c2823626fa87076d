# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of the driver: /proc/driver/nvidia and /proc/devices.

Text files of NVIDIA's kernel module (its README, "Driver Proc Files") and of proc(5).  Reading them opens no GPU.
Reads only; an absent file is an absent value, and `inventory` decides what that means.
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

_UNKNOWN = "?"


class Gpu(NamedTuple):
    """One GPU as the kernel module knows it.

    nvml_index: position in NVML's order, which is the order of PCI addresses; bus_id: NVML's form with the eight-digit
    domain; proc: the name of its folder; uuid: ``GPU-<uuid>``, or None while the GPU has not been initialised;
    compute_capability (``9.0``) and brand: from NVML, "" while it has not been asked.
    """

    nvml_index: int
    uuid: str | None
    model: str
    bus_id: str
    minor: int
    proc: str
    compute_capability: str = ""
    brand: str = ""


def driver_version(root: HostRoot) -> str | None:
    """The kernel module's version, such as ``580.65.06``; None where no module is loaded.

    The first dotted number in the NVRM line: its words before that differ between the two flavours of the module.
    """
    text = (root.read(VERSION) or b"").decode("ascii", "replace")
    for word in text.partition("\n")[0].split():
        if "." in word and all([part.isdigit() for part in word.split(".")]):
            return word
    return None


def gpus(root: HostRoot) -> tuple[Gpu, ...]:
    """The GPUs that NVML would list, in its order."""
    found: list[Gpu] = []
    for name in sorted(root.names(GPUS), key=_pci_address):
        fields = information(root.read(f"{GPUS}/{name}/information") or b"")
        # "GPU Excluded: Yes" is the administrator's own module parameter: NVML does not count such a GPU.
        minor = fields.get("Device Minor", "")
        if fields.get("GPU Excluded") == "Yes" or not minor.isdigit():
            continue
        found.append(
            Gpu(
                nvml_index=len(found),
                uuid=_uuid(fields),
                model=fields.get("Model", "unknown"),
                bus_id=_nvml_bus_id(name),
                minor=int(minor),
                proc=name,
            )
        )
    return tuple(found)


def uuid_of(root: HostRoot, gpu: str) -> str | None:
    """The UUID of one GPU, by the name of its folder; None while the GPU has not been initialised."""
    return _uuid(information(root.read(f"{GPUS}/{gpu}/information") or b""))


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


def capability_minor(root: HostRoot, path: str) -> int | None:
    """The minor of the device for a capability, `path` below the capabilities' folder; None where there is none."""
    text = information(root.read(f"{CAPABILITIES}/{path}") or b"").get("DeviceFileMinor", "")
    return int(text) if text.isdecimal() else None


def information(data: bytes) -> dict[str, str]:
    """The ``key: value`` lines of a GPU's ``information`` file."""
    lines = data.decode("utf-8", "replace").splitlines()
    pairs = [line.partition(":") for line in lines]
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def character_majors(root: HostRoot) -> dict[str, int]:
    """Names and major numbers of character devices, from /proc/devices (proc(5))."""
    text = (root.read(DEVICES) or b"").decode("ascii", "replace")
    pairs = [line.split(None, 1) for line in text.partition("Block devices:")[0].splitlines()]
    # Of two with one name the first is meant.
    return {
        pair[1]: int(pair[0]) for pair in reversed(pairs) if len(pair) == 2 and pair[0].isdigit()
    }


def _uuid(fields: dict[str, str]) -> str | None:
    uuid = fields.get("GPU UUID", _UNKNOWN)
    return None if _UNKNOWN in uuid else "GPU-" + uuid[4:].lower()


def _pci_address(name: str) -> tuple[int, ...]:
    """``0000:07:00.0`` as numbers, for sorting; a name of another shape sorts last."""
    try:
        return tuple([int(part, 16) for part in name.replace(".", ":").split(":")])
    except ValueError:
        return (1 << 32,)


def _nvml_bus_id(name: str) -> str:
    domain, _, rest = name.lower().partition(":")
    return f"{domain.zfill(8)}:{rest}"
