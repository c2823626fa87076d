# SPDX-License-Identifier: Apache-2.0
"""Where the driver's files go in a container: libraries, programs, configuration, firmware, sockets.  Pure.

A file is mounted if one of its capabilities is requested.  Libraries go to the folder that the container's own loader
searches, all other files to the path where the libraries look for them.  Must not decide about devices.
"""

from __future__ import annotations

from oci_gpu_hook.container.layout import COMPAT_FOLDER, MUSL
from oci_gpu_hook.driver.proc import LD_SO_CACHE
from oci_gpu_hook.formats.ldcache_merge import Entry
from oci_gpu_hook.operations.ldcache import LdCache
from oci_gpu_hook.operations.mount import Mount
from oci_gpu_hook.operations.service import Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.driver.inventory import DriverFile, DriverInventory, Library
    from oci_gpu_hook.request.parse import Request

READ_ONLY = ("ro", "nosuid", "nodev")
READ_ONLY_DATA = ("ro", "nosuid", "nodev", "noexec")

COMPAT32 = "compat32"

_CUDA = "libcuda.so."
_CUDA_FAMILY = ("libcuda", "libnvidia-")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_+.")


def brought_by(library: Library, request: Request) -> str:
    """The requested capability that brings `library`; "" if none does."""
    if library.bits == 32 and COMPAT32 not in request.capabilities:
        return ""
    return _first_common(library.capabilities, request.capabilities)


def brought(layout: Layout, request: Request, inventory: DriverInventory) -> list[tuple[Library, str, str]]:
    """The libraries that have a place in this container, each with its folder and the capability that brings it."""
    # A request brings some twenty of the driver's hundred libraries.  A set finds these faster than `brought_by` does.
    capabilities = set(request.capabilities)
    return [
        (library, folder, capability)
        for library in inventory.libraries
        if not capabilities.isdisjoint(library.capabilities)
        and (capability := brought_by(library, request))
        and (folder := folder_of(layout, library))
    ]


def libraries(placed: list[tuple[Library, str, str]]) -> tuple[Mount, ...]:
    """The mounts of libraries: each by its first name, which has the version, and with its further names."""
    mounts = []
    for library, folder, capability in placed:
        reason = f"library: {capability}"
        if library.bits == 32:
            reason = f"32-bit library: {COMPAT32}, {capability}"
        target = f"{folder}/{library.names[0]}"
        others = library.names[1:]
        mounts.append(Mount(library.path, target, READ_ONLY, True, reason, names=others))
    return tuple(mounts)


def files(request: Request, inventory: DriverInventory) -> tuple[Mount, ...]:
    """The mounts of programs, configuration and firmware."""
    requested = (*request.capabilities, *request.features)
    return tuple(
        [
            Mount(file.path, file.target, _options(file), False, _reason(file, word), file.folder)
            for file in (*inventory.binaries, *inventory.files, *inventory.firmware)
            if (word := _first_common(file.capabilities, requested)) or not file.capabilities
        ]
    )


def services(request: Request, inventory: DriverInventory) -> tuple[Service, ...]:
    """The sockets of NVIDIA's services, at the paths where programs look for them."""
    return tuple(
        [
            Service(
                ipc.source,
                ipc.path,
                ipc.owner,
                required=False,
                reason=f"service of the host: {ipc.capability}",
                folder=ipc.folder,
            )
            for ipc in inventory.ipc_paths
            if ipc.capability in request.capabilities and not ipc.fault
        ]
    )


def untrusted_services(request: Request, inventory: DriverInventory) -> tuple[str, ...]:
    """A sentence for each service that is left out because somebody else than root could have made its path."""
    return tuple(
        [
            f"the host's {ipc.source} is left out: {ipc.fault}"
            for ipc in inventory.ipc_paths
            if ipc.capability in request.capabilities and ipc.fault
        ]
    )


def entries(placed: list[tuple[Library, str, str]]) -> tuple[Entry, ...]:
    """The entries for ld.so.cache: each library by all its names but that of the versioned file, as in ldconfig's."""
    return tuple(
        [
            Entry(name.encode(), f"{folder}/{name}".encode(), library.flags)
            for library, folder, _ in placed
            if not library.subfolder
            for name in library.names
            if name == library.soname or name != library.file
        ]
    )


def ld_cache(layout: Layout, newer: tuple[Entry, ...], entries: tuple[Entry, ...]) -> tuple[LdCache, ...]:
    """The operation that adds entries; `newer` come first, so that the loader prefers them to ours of the same name."""
    if layout.loader == MUSL or not entries:
        return ()
    reason = "the loader and 'ldconfig -p' find the libraries"
    if newer:
        reason += f"; those of the image's {COMPAT_FOLDER} first, as they are newer"
    return (LdCache(LD_SO_CACHE, tuple(dict.fromkeys((*newer, *entries))), required=True, reason=reason),)


def forward_compatibility(layout: Layout, request: Request, inventory: DriverInventory) -> tuple[Entry, ...]:
    """The image's own newer CUDA libraries, by their names: CUDA forward compatibility.

    They are used where the image has exactly one libcuda there, and that is of a later driver branch than the host's.
    Nothing of the image is mounted or opened: the container's own loader finds them, with the container's rights.  To
    mount them led to CVE-2024-0132 and CVE-2025-23359.
    """
    versions = [
        name[len(_CUDA) :] for name in layout.compat_names if name.startswith(_CUDA) and "." in name[len(_CUDA) :]
    ]
    if "compute" not in request.capabilities or len(versions) != 1:
        return ()
    if _branch(versions[0]) <= _branch(inventory.driver_version):
        return ()
    native = [library.flags for library in inventory.libraries if library.bits == 64]
    return tuple(
        [
            Entry(name.encode(), f"{COMPAT_FOLDER}/{name}".encode(), flags)
            for flags in native[:1]
            for name in layout.compat_names
            if name.startswith(_CUDA_FAMILY) and _is_soname(name)
        ]
    )


def _is_soname(name: str) -> bool:
    """Whether a name is a SONAME of letters that are safe to show: it comes from an image, and goes to logs."""
    stem, _, number = name.partition(".so.")
    return _NAME.issuperset(stem) and number.isdecimal() and number.isascii()


def left_out(layout: Layout, request: Request) -> tuple[str, ...]:
    """A sentence for each requested thing that this container has no folder for."""
    if COMPAT32 not in request.capabilities or layout.library_folder_32:
        return ()
    return (f"{COMPAT32} brings nothing: this container's loader runs no 32-bit programs",)


def _branch(version: str) -> int:
    """The driver's branch, 580 in 580.65.06; 0 for what is no version."""
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 6 else 0


def folder_of(layout: Layout, library: Library) -> str:
    """The folder for `library`; "" if this container has none for its word size."""
    if library.folder:
        return library.folder
    folder = layout.library_folder if library.bits == 64 else layout.library_folder_32
    return f"{folder}/{library.subfolder}" if folder and library.subfolder else folder


def _options(file: DriverFile) -> tuple[str, ...]:
    return READ_ONLY if "/bin/" in file.target else READ_ONLY_DATA


def _reason(file: DriverFile, word: str) -> str:
    if not word:
        return "GPU system processor's firmware: every request"
    return f"{'program' if '/bin/' in file.target else 'configuration'}: {word}"


def _first_common(names: tuple[str, ...], others: tuple[str, ...]) -> str:
    """The first of `names` that is among `others`; "" if none is."""
    for name in names:
        if name in others:
            return name
    return ""
