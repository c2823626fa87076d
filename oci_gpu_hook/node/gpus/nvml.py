# SPDX-License-Identifier: Apache-2.0
"""Ask NVML, by pynvml (nvidia-ml-py) in a process of its own: `facts` are for the saved inventory, `readings` are what
GPUs say of their health now.

One thread asks each GPU: one that hangs, or is lost while it is asked, takes no other's answer with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from oci_gpu_hook.driver import survey
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import childprocess
from oci_gpu_hook.planning.compatibility import BRANDS

_MAX_MIG_DEVICES = 64
_OURS = b"nvml: "  # what each line of `answer` begins with
# The values of `Readings`, each with the most that a GPU can have: beyond it a driver or a failing board is mistaken.
_MAX = {
    "ecc_uncorrected": 1 << 53,
    # nvmlDeviceGpuRecoveryAction_t: 0 for none, else a reset or a reboot.
    "recovery_action": 100,
    # In MiB: of no process.
    "memory_of_none": 1 << 32,
}
# Of each GPU that has answered in time, by its bus_id, those that it supports and that can be true.
Readings = dict[str, dict[str, int]]
_CHILD = "from oci_gpu_hook.node.gpus import nvml; nvml.answer(nvml.{})"
# After these nothing more is asked of a GPU: it has fallen off the bus, or NVML has gone away.
_GONE = ("GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED", "DRIVER_NOT_LOADED")


class GpuFacts(NamedTuple):
    """One GPU, see `proc.Gpu`; mig: of each MIG device GPU instance, compute instance and what else is known."""

    uuid: str
    bus_id: str
    compute_capability: str
    brand: str
    mig: Sequence[tuple[int, int, dict[str, Any]]]
    in_mig_mode: bool = False
    peers: tuple[str, ...] = ()
    number: int = -1


class Facts(NamedTuple):
    """NVML's whole answer; versions are written as ``12.4``; numbered: how many GPUs it lists, answered or not."""

    driver_version: str
    cuda_version: str
    gpus: tuple[GpuFacts, ...]
    numbered: int = 0


class NvmlUnavailable(Exception):
    """NVML has not answered; the sentence says why."""


def files(host: HostRoot, found: DriverInventory, *names: str) -> str:
    wanted = [item for item in found.libraries if item.bits == 64 and item.file.partition(".so")[0] in names]
    return ":".join([f"{host.path.rstrip('/')}{item.path}" for item in wanted])


def ask_nvml(
    program: str, host: HostRoot, found: DriverInventory, seconds: float, *, whole: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What NVML says of itself, and what those GPUs say that have answered, by their numbers, see `answer`.  program:
    Python source; whole: whether NVML must come to an end.  NvmlUnavailable if it does not, or has not answered.
    """
    # Without a file of the driver's it is the loader's.
    library = files(host, found, "libnvidia-ml")
    try:
        (said,) = childprocess.python(program, seconds, library)
    except OSError as err:
        raise NvmlUnavailable(f"NVML cannot be asked: {err.strerror}") from err
    documents: list[dict[str, Any]] = []
    # A library may write lines of its own, and the last one may be cut.
    for line in [line for line in said.output.split(b"\n") if line.startswith(_OURS)]:
        with suppress(ValueError):
            documents.append(json.loads(line[len(_OURS) :]))
    first, *gpus = documents or [{}]
    if "error" in first:
        raise NvmlUnavailable(f"NVML cannot be asked: {first['error']}")
    if not first or (whole and said.status != 0):
        if said.status is None:
            raise NvmlUnavailable(f"NVML did not answer within {seconds:g} seconds")
        raise NvmlUnavailable("NVML ended without an answer: libnvidia-ml crashed")
    gpus.sort(key=lambda gpu: int(gpu["index"]))
    return first, gpus


def answer(ask_gpu: Callable[[Any, Any], dict[str, Any]]) -> None:
    """In the child: print one JSON object of NVML, and one of each GPU as soon as it has answered to the end.  Of NVML:
    driver_version, cuda (12040 for 12.4), and count, how many GPUs it numbers.
    """
    import threading

    try:
        import pynvml
    except ImportError:
        _say({"error": "this Python has no pynvml, which is in nvidia-ml-py"})
        return

    def tell(index: int) -> None:
        # Nothing of a GPU that is lost meanwhile.
        with suppress(pynvml.NVMLError):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            found = ask_gpu(pynvml, gpu)
            _say({"index": index, "uuid": _uuid(pynvml, gpu), "bus_id": _bus_id(pynvml, gpu), **found})

    try:
        pynvml.nvmlInit()
        listed = pynvml.nvmlDeviceGetCount()
        version, cuda = _decoded(pynvml.nvmlSystemGetDriverVersion()), pynvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError as err:
        _say({"error": f"{type(err).__name__}: {err}"})
        return
    _say({"driver_version": version, "cuda": cuda, "count": listed})
    # The interpreter ends with the last of them.
    for index in range(listed):
        threading.Thread(target=tell, args=(index,)).start()


def _say(document: dict[str, Any]) -> None:
    """One line, written at once: threads do not wait for one another."""
    os.write(1, _OURS + json.dumps(document).encode() + b"\n")


def _decoded(value: bytes | str) -> str:
    """Older versions of pynvml give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _bus_id(pynvml: Any, gpu: Any) -> str:
    return _decoded(pynvml.nvmlDeviceGetPciInfo(gpu).busId).lower()


def _uuid(pynvml: Any, device: Any) -> str:
    found = _decoded(pynvml.nvmlDeviceGetUUID(device))
    return found[:4] + found[4:].lower()


def facts(host: HostRoot, found: DriverInventory, seconds: float) -> Facts:
    """What NVML knows of all GPUs but those that it has lost; NvmlUnavailable if one of them hangs."""
    nvml, rows = ask_nvml(_CHILD.format("facts_of"), host, found, seconds, whole=True)
    answered = {row["bus_id"] for row in rows}
    gpus = []
    for row in rows:
        row["peers"] = tuple([peer for peer in row["peers"] if peer in answered and peer != row["bus_id"]])
        gpus.append(GpuFacts(number=row.pop("index"), **row))
    cuda = f"{nvml['cuda'] // 1000}.{nvml['cuda'] % 1000 // 10}"
    return Facts(nvml["driver_version"], cuda, tuple(gpus), nvml["count"])


def with_facts(found: DriverInventory, facts: Facts) -> DriverInventory:
    """As it is if NVML is of another version, and knows nothing of this module.  GPUs have the numbers that NVML gives
    them: one without, which it could not start, is none that a container can use, and has no index.
    """
    if facts.driver_version != found.driver_version:
        return found
    before = (survey.FROM_BRANCH, *survey.missing(found.gpus, found.mig_devices))
    listed = {gpu.bus_id: gpu for gpu in facts.gpus}
    named = {(gpu.bus_id, gi, ci): mig for gpu in facts.gpus for gi, ci, mig in gpu.mig}
    # Else one was lost while it was asked, and which number it has is not known.
    is_numbered = 0 < facts.numbered == len(listed)
    gpus: dict[int, Gpu] = {}
    for gpu in found.gpus:
        index, said = gpu.nvml_index, listed.get(gpu.bus_id)
        if said:
            gpu = gpu._replace(uuid=gpu.uuid or said.uuid, compute_capability=said.compute_capability)
            gpu = gpu._replace(brand=said.brand, peers=said.peers, in_mig_mode=said.in_mig_mode)
            gpu = gpu._replace(nvml_index=said.number if is_numbered else index)
        if said or not is_numbered:
            gpus[index] = gpu
    parents = [(it, gpus[it.gpu]) for it in found.mig_devices if it.gpu in gpus]
    devices = [it._replace(gpu=gpu.nvml_index, **named.get((gpu.bus_id, it.gi, it.ci), {})) for it, gpu in parents]
    made = found._replace(
        cuda_version=facts.cuda_version,
        gpus=tuple(sorted(gpus.values(), key=lambda gpu: gpu.nvml_index)),
        mig_devices=tuple(devices),
        unlisted=tuple([gpu.bus_id for gpu in found.gpus if gpu.nvml_index not in gpus]),
    )
    others = [sentence for sentence in found.unknown if sentence not in before]
    return made._replace(unknown=(*others, *survey.missing(made.gpus, made.mig_devices)))


def facts_of(pynvml: Any, gpu: Any) -> dict[str, Any]:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(gpu)
    brand, in_mig_mode, mig, peers = "", False, list[Any](), list[str]()
    with suppress(pynvml.NVMLError):
        number = pynvml.nvmlDeviceGetBrand(gpu)
        brand = next((name for name, its in BRANDS.items() if its == number), "Unknown")
    with suppress(pynvml.NVMLError):
        in_mig_mode = pynvml.nvmlDeviceGetMigMode(gpu)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        mig = _mig_facts(pynvml, gpu) if in_mig_mode else []
    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError, AttributeError):
            other = pynvml.nvmlDeviceGetHandleByIndex(index)
            # Through switches or not.
            link = pynvml.nvmlDeviceGetP2PStatus(gpu, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if link == pynvml.NVML_P2P_STATUS_OK:
                peers.append(_bus_id(pynvml, other))
    found = {"compute_capability": f"{major}.{minor}", "brand": brand, "in_mig_mode": in_mig_mode}
    return {**found, "mig": mig, "peers": peers}


def _mig_facts(pynvml: Any, gpu: Any) -> list[Any]:
    """As in `GpuFacts`, of a GPU in MIG mode; numbers may have gaps."""
    found = []
    for number in range(min(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu), _MAX_MIG_DEVICES)):
        with suppress(pynvml.NVMLError):
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
            gi, ci = pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device)
            profile = _decoded(pynvml.nvmlDeviceGetName(device)).rpartition("MIG ")[2]
            found.append((gi, ci, {"number": number, "uuid": _uuid(pynvml, device), "profile": profile}))
    return found


def readings(host: HostRoot, found: DriverInventory, seconds: float) -> Readings:
    """As `ask_nvml`; NvmlUnavailable too if the library is of another version, and so knows nothing of this module."""
    nvml, rows = ask_nvml(_CHILD.format("reading_of"), host, found, seconds, whole=False)
    if nvml["driver_version"] != found.driver_version:
        raise NvmlUnavailable(f"libnvidia-ml is of {nvml['driver_version']}, and the driver of {found.driver_version}")
    return {row["bus_id"]: {name: it for name, it in row["values"].items() if 0 <= it <= _MAX[name]} for row in rows}


def reading_of(pynvml: Any, gpu: Any) -> dict[str, Any]:
    """In the child: what `readings` wants to know of one GPU; NVMLError if it is lost meanwhile."""
    gone = [getattr(pynvml, f"NVML_ERROR_{name}", None) for name in _GONE]
    values = {}
    for name, question in zip(_MAX, (_ecc_uncorrected, _recovery_action, _memory_of_none)):
        try:
            values[name] = int(question(pynvml, gpu))
        except AttributeError:
            pass  # this pynvml is older than the question
        except pynvml.NVMLError as err:
            if err.value in gone:
                raise
    return {"values": values}


def _ecc_uncorrected(pynvml: Any, gpu: Any) -> Any:
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return pynvml.nvmlDeviceGetTotalEccErrors(gpu, kind, since)


def _memory_of_none(pynvml: Any, gpu: Any) -> int:
    """What is in use without a process, in MiB; 0 for a divided GPU; NVMLError if what the driver has is not apart."""
    with suppress(pynvml.NVMLError):
        # Its processes are its MIG devices'.
        if pynvml.nvmlDeviceGetMigMode(gpu)[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
            return 0
    used = pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used
    # Between two looks at it: neither one that begins meanwhile nor one that ends counts as none.
    if pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) or pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu):
        return 0
    return int(min(used, pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used)) >> 20


def _recovery_action(pynvml: Any, gpu: Any) -> int:
    """NVMLError if the driver does not say it: the field came with driver 560."""
    (field,) = pynvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if field.nvmlReturn:
        raise pynvml.NVMLError(field.nvmlReturn)
    return int(field.value.uiVal)
