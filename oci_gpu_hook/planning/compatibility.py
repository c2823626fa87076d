# SPDX-License-Identifier: Apache-2.0
"""CUDA forward compatibility: whether the loader finds the image's own, newer CUDA libraries before the host's.  Pure.

Nothing of the image is mounted, which led to CVE-2024-0132 and CVE-2025-23359: the container's own loader follows links
in the driver's folder.  What a library says of itself (`container.compat`) decides which drivers and GPUs it is used
with: on a brand that it does not list, cuInit fails with error 804 (https://docs.nvidia.com/deploy/cuda-compatibility).
"""

from __future__ import annotations

from oci_gpu_hook.container.compat import CUDA, Compat, version_of
from oci_gpu_hook.driver.inventory import Library
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.operations import Cover, Mount, Symlink
from oci_gpu_hook.planning.plan import Share

TOPIC = "CUDA forward compatibility"

_CUDA_FAMILY = ("libcuda", "libnvidia-")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_+.")
# Brands by NVML's numbers (nvml.h, nvmlBrandType_t), as the inventory has them and images require them: brand=vws.
BRANDS = {
    "Quadro": 1, "Tesla": 2, "NVS": 3, "GRID": 4, "GeForce": 5, "TITAN": 6, "vApps": 7, "vPC": 8, "vCS": 9, "vWS": 10,
    "CloudGaming": 11, "QuadroRTX": 12, "NvidiaRTX": 13, "Nvidia": 14, "GeForceRTX": 15, "TitanRTX": 16,
}  # fmt: skip
# Every note so far lists these and no others.
_LISTED = (1, 2, 7, 8, 9, 10, 11, 12, 13, 14)


def with_newer(
    share: Share, compat: Compat, versions: tuple[str, str], gpus: tuple[Gpu, ...], libraries: tuple[Library, ...]
) -> Share:
    """The driver's folder leads to those of the image's libraries that go first; and a sentence.  versions: of the
    host's driver and its CUDA, "" if not known; gpus: the container's; libraries: the driver's.
    """
    driver, cuda = versions
    flags = next((library.flags for library in libraries if library.bits == 64), None)
    names = _sonames(compat)
    if compat.fault:
        said = f"{compat.folder} is left out: {compat.fault}"
    elif flags is None or not share.folder or not _is_newer(compat, version_of(driver), version_of(cuda)):
        return share
    elif reason := _misfit(compat, driver, gpus):
        said = f"{compat.library} is not used: {reason}"
    elif not names:
        return share
    else:
        folder = f"{share.folder}/lib64"
        entries = [Entry(name.encode(), f"{folder}/{name}".encode(), flags) for name in names]
        # Of a Jetson's own libraries the loader would take the first of one name.
        share = share._replace(entries=tuple(dict.fromkeys([*entries, *share.entries])))
        share = _led(share, folder, {name: f"{compat.folder}/{name}" for name in names})
        said = f"{compat.library} is used, newer than the host's {f'driver {driver}' if driver else f'CUDA {cuda}'}"
    return share._replace(notes=(*share.notes, f"{TOPIC}: the image's {said}"))


def _led(share: Share, folder: str, newer: dict[str, str]) -> Share:
    """Links in `folder` to the image's `newer` files replace the host's: LD_LIBRARY_PATH has it before the cache."""
    links, left = dict(newer), [*share.operations]
    for place, it in enumerate(left):
        if isinstance(it, Mount) and it.target.startswith(f"{folder}/") and not {*it.names}.isdisjoint(newer):
            replaced = next(name for name in it.names if name in newer)
            # libcuda.so means the same file as libcuda.so.1.
            links.update({name: newer.get(name, newer[replaced]) for name in it.names})
            left[place] = it._replace(names=())
    for place, it in enumerate(left):
        if isinstance(it, Cover):
            hosts = [file for file in it.files if file.removeprefix(f"{folder}/") not in links]
            left[place] = it._replace(files=tuple(hosts))
    made = [Symlink(f"{folder}/{name}", to, True, f"{TOPIC}: newer") for name, to in links.items()]
    return share._replace(operations=(*left, *made))


def _is_newer(compat: Compat, driver: tuple[int, ...], cuda: tuple[int, ...]) -> bool:
    # Jetson's has no version of a driver in its name.
    if compat.note is not None and compat.note.drivers is None:
        return bool(cuda) and compat.note.cuda > cuda
    # Within a branch only its own word tells that it serves.
    size = 1 if compat.note is None else None
    return bool(driver) and compat.version[:size] > driver[:size]


def _misfit(compat: Compat, driver: str, gpus: tuple[Gpu, ...]) -> str:
    note = compat.note
    if note and note.drivers is not None and version_of(driver)[0] not in note.drivers:
        return f"it is not made for the host's driver {driver}"
    listed = note.brands if note else _LISTED
    for gpu in gpus:
        # A brand that NVML does not tell, or that is newer than `BRANDS`, counts as listed.
        if listed is not None and gpu.brand in BRANDS and BRANDS[gpu.brand] not in listed:
            return f"it is not made for GPUs of the brand {gpu.brand}, as GPU {gpu.nvml_index} is"
    return ""


def _sonames(compat: Compat) -> list[str]:
    """Those of CUDA's libraries, of letters that are safe to show: they come from an image, and go to logs."""
    named = [(stem, number) for stem, _, number in [name.partition(".so.") for name in compat.names]]
    safe = [it for it in named if it[0].startswith(_CUDA_FAMILY) and _NAME.issuperset(it[0])]
    numbered = {it for it in safe if it[1].isdecimal() and it[1].isascii()}
    # Of some companions (libnvidia-gpucomp) the driver's version is in the SONAME; libcuda's own is not one.
    stems, version = {*[stem for stem, _ in numbered], CUDA[:-4]}, compat.library[len(CUDA) :]
    return [".so.".join(it) for it in safe if it in numbered or (it[1] == version and it[0] not in stems)]
