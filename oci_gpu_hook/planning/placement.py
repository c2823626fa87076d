# SPDX-License-Identifier: Apache-2.0
"""Where the driver's files go in a container: libraries, programs, configuration, firmware, sockets.  Pure.

A file is mounted if one of its capabilities is requested.  Libraries go to the folder that the container's own loader
searches, all other files to the path where the libraries look for them.  Must not decide about devices.
"""

from __future__ import annotations

from oci_gpu_hook.container.layout import MUSL
from oci_gpu_hook.driver.proc import LD_SO_CACHE
from oci_gpu_hook.formats.ldcache_merge import Entry
from oci_gpu_hook.operations import LdCache, Mount, Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.driver.inventory import DriverInventory, Library
    from oci_gpu_hook.request.parse import Request

READ_ONLY = ("ro", "nosuid", "nodev")
READ_ONLY_DATA = ("ro", "nosuid", "nodev", "noexec")

COMPAT32 = "compat32"


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


def libraries(placed: list[tuple[Library, str, str]]) -> list[Mount]:
    """The mounts of libraries: each by its first name, which has the version, and with its further names."""
    mounts = []
    for library, folder, capability in placed:
        reason = f"library: {capability}"
        if library.bits == 32:
            reason = f"32-bit library: {COMPAT32}, {capability}"
        target = f"{folder}/{library.names[0]}"
        mounts.append(Mount(library.path, target, READ_ONLY, True, reason, names=library.names[1:]))
    return mounts


def files(request: Request, inventory: DriverInventory) -> list[Mount]:
    """The mounts of programs, configuration and firmware."""
    requested = (*request.capabilities, *request.features)
    mounts = []
    for file in (*inventory.binaries, *inventory.files, *inventory.firmware):
        word = _first_common(file.capabilities, requested)
        if file.capabilities and not word:
            continue
        is_program = "/bin/" in file.target
        options = READ_ONLY if is_program else READ_ONLY_DATA
        reason = f"{'program' if is_program else 'configuration'}: {word}"
        if not word:
            reason = "GPU system processor's firmware: every request"
        mounts.append(Mount(file.path, file.target, options, False, reason, file.folder))
    return mounts


def services(request: Request, inventory: DriverInventory) -> tuple[list[Service], list[str]]:
    """The sockets of NVIDIA's services, at the paths where programs look for them.

    And a sentence for each that is left out because somebody else than root could have made its path.
    """
    found, notes = [], []
    for ipc in inventory.ipc_paths:
        if ipc.capability not in request.capabilities:
            continue
        if ipc.fault:
            notes.append(f"the host's {ipc.source} is left out: {ipc.fault}")
            continue
        reason = f"service of the host: {ipc.capability}"
        found.append(Service(ipc.source, ipc.path, ipc.owner, required=False, reason=reason, folder=ipc.folder))
    return found, notes


def entries(placed: list[tuple[Library, str, str]]) -> tuple[Entry, ...]:
    """The entries for ld.so.cache: each library by all its names but that of the versioned file, as in ldconfig's."""
    found = [
        Entry(name.encode(), f"{folder}/{name}".encode(), library.flags)
        for library, folder, _ in placed
        if not library.subfolder
        for name in library.names
        if name == library.soname or name != library.file
    ]
    return tuple(found)


def ld_cache(layout: Layout, newer: tuple[Entry, ...], entries: tuple[Entry, ...]) -> tuple[LdCache, ...]:
    """The operation that adds entries; `newer` come first, so that the loader prefers them to ours of the same name."""
    if layout.loader == MUSL or not entries:
        return ()
    reason = "the loader and 'ldconfig -p' find the libraries"
    if newer:
        reason += "; the image's own CUDA libraries first, as they are newer"
    return (LdCache(LD_SO_CACHE, tuple(dict.fromkeys((*newer, *entries))), required=True, reason=reason),)


def left_out(layout: Layout, request: Request) -> list[str]:
    """A sentence for each requested thing that this container has no folder for."""
    if COMPAT32 not in request.capabilities or layout.library_folder_32:
        return []
    return [f"{COMPAT32} brings nothing: this container's loader runs no 32-bit programs"]


def folder_of(layout: Layout, library: Library) -> str:
    """The folder for `library`; "" if this container has none for its word size."""
    if library.folder:
        return library.folder
    folder = layout.library_folder if library.bits == 64 else layout.library_folder_32
    return f"{folder}/{library.subfolder}" if folder and library.subfolder else folder


def _first_common(names: tuple[str, ...], others: tuple[str, ...]) -> str:
    """The first of `names` that is among `others`; "" if none is."""
    for name in names:
        if name in others:
            return name
    return ""
