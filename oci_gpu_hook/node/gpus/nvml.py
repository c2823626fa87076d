# SPDX-License-Identifier: Apache-2.0
"""What only NVML knows: CUDA version, compute capability, brand, and the names of MIG devices.

pynvml (nvidia-ml-py) is called in a process of its own.  For ``inventory refresh`` and ``inventory watch``.  Must not
be used by the hook.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oci_gpu_hook.driver.facts import Facts, GpuFacts, MigFacts
from oci_gpu_hook.node.gpus import child

if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot

# NVML's enumeration nvmlBrandType_t, by the names of its constants.
_BRANDS = {
    "UNKNOWN": "Unknown",
    "QUADRO": "Quadro",
    "TESLA": "Tesla",
    "NVS": "NVS",
    "GRID": "GRID",
    "GEFORCE": "GeForce",
    "TITAN": "TITAN",
    "NVIDIA_VAPPS": "NvidiaVApps",
    "NVIDIA_VPC": "NvidiaVPC",
    "NVIDIA_VCS": "NvidiaVCS",
    "NVIDIA_VWS": "NvidiaVWS",
    "NVIDIA_CLOUD_GAMING": "NvidiaCloudGaming",
    "QUADRO_RTX": "QuadroRTX",
    "NVIDIA_RTX": "NvidiaRTX",
    "NVIDIA": "Nvidia",
    "GEFORCE_RTX": "GeForceRTX",
    "TITAN_RTX": "TitanRTX",
}


class NvmlUnavailable(Exception):
    """NVML has not answered; the sentence says why."""


def library(root: HostRoot, found: DriverInventory) -> str:
    """The file of libnvidia-ml; "" if there is none."""
    for item in found.libraries:
        if item.bits == 64 and item.file.startswith("libnvidia-ml.so."):
            return root.path.rstrip("/") + item.path
    return ""


def ask(library: str, seconds: float) -> Facts:
    """NVML's answer, NvmlUnavailable if there is none.  `library`: the host's libnvidia-ml, "" for the loader's."""
    try:
        said = child.ask("from oci_gpu_hook.node.gpus import nvml; nvml.answer()", seconds, library)
    except OSError as err:
        raise NvmlUnavailable(f"NVML cannot be asked: {err.strerror}") from err
    if said.status is None:
        raise NvmlUnavailable(f"NVML did not answer within {seconds:g} seconds")
    return _facts(said.output)


def _facts(data: bytes) -> Facts:
    try:
        document = json.loads(data)
    except ValueError:
        raise NvmlUnavailable("NVML ended without an answer: libnvidia-ml crashed") from None
    if "error" in document:
        raise NvmlUnavailable(f"NVML cannot be asked: {document['error']}")
    return Facts(
        document["driver_version"], document["cuda_version"], tuple(_gpu_facts(*row) for row in document["gpus"])
    )


def _gpu_facts(
    uuid: str, bus_id: str, compute_capability: str, brand: str, mig: list[Any], in_mig_mode: bool, peers: list[str]
) -> GpuFacts:
    devices = tuple(MigFacts(*row) for row in mig)
    return GpuFacts(uuid, bus_id, compute_capability, brand, devices, in_mig_mode, tuple(peers))


def answer() -> None:
    """In the child: print NVML's answer, or why there is none, as one JSON object."""
    try:
        import pynvml
    except ImportError:
        print(json.dumps({"error": "this Python has no pynvml, which is in nvidia-ml-py"}))
        return
    try:
        pynvml.nvmlInit()
        document = {
            "driver_version": _text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda_version": _cuda_version(pynvml.nvmlSystemGetCudaDriverVersion()),
            "gpus": _gpus(pynvml),
        }
    except pynvml.NVMLError as err:
        document = {"error": f"{type(err).__name__}: {err}"}
    print(json.dumps(document))


def _gpus(pynvml: Any) -> list[GpuFacts]:
    """The GPUs that answer; a GPU that NVML has lost is left out."""
    found, handles = [], []
    for number in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            found.append(_gpu(pynvml, handle))
            handles.append(handle)
        except pynvml.NVMLError:
            continue
    return [
        gpu._replace(peers=tuple([it.bus_id for it, to in zip(found, handles) if _has_nvlink(pynvml, handle, to)]))
        for gpu, handle in zip(found, handles)
    ]


def _has_nvlink(pynvml: Any, one: Any, other: Any) -> bool:
    """Whether two GPUs reach each other by NVLink, through switches or not; no GPU reaches itself."""
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except (pynvml.NVMLError, AttributeError):
        return False
    return one is not other and bool(status == pynvml.NVML_P2P_STATUS_OK)


def _gpu(pynvml: Any, handle: Any) -> GpuFacts:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuFacts(
        uuid="GPU-" + _text(pynvml.nvmlDeviceGetUUID(handle))[4:].lower(),
        bus_id=_text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower(),
        compute_capability=f"{major}.{minor}",
        brand=_brand(pynvml, handle),
        mig=tuple(_mig(pynvml, handle)),
        in_mig_mode=_is_in_mig_mode(pynvml, handle),
    )


def _brand(pynvml: Any, handle: Any) -> str:
    names = {getattr(pynvml, f"NVML_BRAND_{key}", None): name for key, name in _BRANDS.items()}
    try:
        return names.get(pynvml.nvmlDeviceGetBrand(handle), "Unknown")
    except pynvml.NVMLError:
        return ""


def _is_in_mig_mode(pynvml: Any, handle: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _mig(pynvml: Any, handle: Any) -> list[MigFacts]:
    """The MIG devices of a GPU in MIG mode; numbers may have gaps."""
    if not _is_in_mig_mode(pynvml, handle):
        return []
    try:
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:
        return []
    found = []
    for number in range(most):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            found.append(
                MigFacts(
                    number=number,
                    uuid="MIG-" + _text(pynvml.nvmlDeviceGetUUID(device))[4:].lower(),
                    gi=pynvml.nvmlDeviceGetGpuInstanceId(device),
                    ci=pynvml.nvmlDeviceGetComputeInstanceId(device),
                    profile=_text(pynvml.nvmlDeviceGetName(device)).rpartition("MIG ")[2],
                )
            )
        except pynvml.NVMLError:
            continue
    return found


def _cuda_version(number: int) -> str:
    """12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
