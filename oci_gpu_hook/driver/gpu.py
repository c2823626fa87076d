# SPDX-License-Identifier: Apache-2.0
"""The GPUs of NVIDIA's kernel module, and the module's version.  Reads only, and opens no GPU."""

from __future__ import annotations

from oci_gpu_hook.driver import proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

_UNKNOWN = "?"


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


def driver_version(root: HostRoot) -> str | None:
    """The kernel module's version, such as ``580.65.06``; None if no module is loaded.

    It is the first dotted number in the NVRM line.  The words before it differ between the two flavours of the module.
    """
    text = (root.read(proc.VERSION) or b"").decode("ascii", "replace")
    for word in text.partition("\n")[0].split():
        if "." in word and all([proc.is_number(part) for part in word.split(".")]):
            return word
    return None


def list_gpus(root: HostRoot) -> tuple[Gpu, ...]:
    """The GPUs that NVML would list, in its order."""
    found: list[Gpu] = []
    for name in sorted(root.names(proc.GPUS), key=_pci_address):
        fields = proc.information(root.read(f"{proc.GPUS}/{name}/information") or b"")
        # "GPU Excluded: Yes" comes from a module parameter that the administrator sets.  NVML skips such a GPU.
        minor = fields.get("Device Minor", "")
        if fields.get("GPU Excluded") == "Yes" or not proc.is_number(minor):
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
    """The UUID of one GPU, by the name of its folder; None until the GPU is first initialised."""
    return _uuid(proc.information(root.read(f"{proc.GPUS}/{gpu}/information") or b""))


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
