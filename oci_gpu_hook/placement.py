# SPDX-License-Identifier: Apache-2.0
"""Where the driver's files go in a container: libraries, programs, configuration, firmware, sockets.  Pure.

A file is taken where its capability was asked for and left where not.  Libraries go to the folder that the container's
own loader searches, everything else to the path that the libraries look for.  Must not decide about devices.
"""

from __future__ import annotations

from oci_gpu_hook.ldmerge import prepare
from oci_gpu_hook.ldso import Entry
from oci_gpu_hook.operations import LdCache, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.host.inventory import DriverFile, DriverInventory, Library
    from oci_gpu_hook.request import Request
    from oci_gpu_hook.rootfs import Container

READ_ONLY = ("ro", "nosuid", "nodev")
READ_ONLY_DATA = ("ro", "nosuid", "nodev", "noexec")
_SOCKET = ("nosuid", "nodev", "noexec")

COMPAT32 = "compat32"
FORWARD_COMPATIBILITY = "/usr/local/cuda/compat"
LD_SO_CACHE = "/etc/ld.so.cache"

_CUDA = "libcuda.so."
_CUDA_FAMILY = ("libcuda", "libnvidia-")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_+.")


def brought_by(library: Library, request: Request) -> str:
    """The requested capability that brings `library`; "" where none does."""
    if library.bits == 32 and COMPAT32 not in request.capabilities:
        return ""
    return _first_common(library.capabilities, request.capabilities)


def given(
    container: Container, request: Request, inventory: DriverInventory
) -> list[tuple[Library, str, str]]:
    """The libraries that have a place in this container, each with its folder and the capability that brings it."""
    # Of a driver's hundred libraries a request mostly brings twenty, and a set looks faster than we do.
    asked = set(request.capabilities)
    return [
        (library, folder, capability)
        for library in inventory.libraries
        if not asked.isdisjoint(library.capabilities)
        and (capability := brought_by(library, request))
        and (folder := _folder(container, library))
    ]


def libraries(given: list[tuple[Library, str, str]]) -> tuple[Mount, ...]:
    """Each library under its first name, mostly the versioned one, with all else that programs load it by beside it."""
    mounts = []
    for library, folder, capability in given:
        reason = f"library: {capability}"
        if library.bits == 32:
            reason = f"32-bit library: {COMPAT32}, {capability}"
        target = f"{folder}/{library.names[0]}"
        others = library.names[1:]
        mounts.append(Mount(library.path, target, READ_ONLY, True, reason, names=others))
    return tuple(mounts)


def files(request: Request, inventory: DriverInventory) -> tuple[Mount, ...]:
    """Programs, configuration and firmware."""
    asked = (*request.capabilities, *request.features)
    return tuple(
        [
            Mount(file.path, file.target, _options(file), False, _reason(file, word), file.folder)
            for file in (*inventory.binaries, *inventory.files, *inventory.firmware)
            if (word := _first_common(file.capabilities, asked)) or not file.capabilities
        ]
    )


def sockets(request: Request, inventory: DriverInventory) -> tuple[Mount, ...]:
    """Sockets of NVIDIA's services, at the path where programs look for them."""
    return tuple(
        [
            Mount(
                ipc.source,
                ipc.path,
                _SOCKET,
                False,
                f"service of the host: {ipc.capability}",
                ipc.folder,
            )
            for ipc in inventory.ipc_paths
            if ipc.capability in request.capabilities
        ]
    )


def ld_cache(
    container: Container,
    request: Request,
    inventory: DriverInventory,
    given: list[tuple[Library, str, str]],
) -> tuple[LdCache, ...]:
    """Every name of every library but the versioned file's own, as ldconfig would list them."""
    entries = [
        Entry(name.encode(), f"{folder}/{name}".encode(), library.flags)
        for library, folder, _ in given
        if not library.subfolder
        for name in library.names
        if name == library.soname or name != library.file
    ]
    if container.loader == "musl" or not entries:
        return ()
    # First, so that the loader takes them before ours of the same name.
    newer = forward_compatibility(container, request, inventory)
    reason = "the loader and 'ldconfig -p' find the libraries"
    if newer:
        reason += f"; those of the image's {FORWARD_COMPATIBILITY} first, as they are newer"
    return (LdCache(LD_SO_CACHE, prepare((*newer, *entries)), required=True, reason=reason),)


def forward_compatibility(
    container: Container, request: Request, inventory: DriverInventory
) -> tuple[Entry, ...]:
    """The image's own newer CUDA libraries, by name only: CUDA forward compatibility.

    They are used where the image brings exactly one libcuda there, of a later driver branch than the host's.  Nothing
    of the image is mounted or opened: the container's own loader finds them, with the container's rights
    (CVE-2024-0132 and CVE-2025-23359 came of mounting them).
    """
    versions = [
        name[len(_CUDA) :]
        for name in container.compat_names
        if name.startswith(_CUDA) and "." in name[len(_CUDA) :]
    ]
    if "compute" not in request.capabilities or len(versions) != 1:
        return ()
    if _branch(versions[0]) <= _branch(inventory.driver_version):
        return ()
    native = [library.flags for library in inventory.libraries if library.bits == 64]
    return tuple(
        [
            Entry(name.encode(), f"{FORWARD_COMPATIBILITY}/{name}".encode(), flags)
            for flags in native[:1]
            for name in container.compat_names
            if name.startswith(_CUDA_FAMILY) and _is_soname(name)
        ]
    )


def _is_soname(name: str) -> bool:
    """Whether an image's file is called like a library: a name with anything else in it ends in logs and terminals."""
    stem, _, number = name.partition(".so.")
    return _NAME.issuperset(stem) and number.isdecimal() and number.isascii()


def left_out(container: Container, request: Request) -> tuple[str, ...]:
    """What was asked for and has no place in this container, a sentence each."""
    if COMPAT32 not in request.capabilities or container.library_folder_32:
        return ()
    return (f"{COMPAT32} brings nothing: this container's loader runs no 32-bit programs",)


def _branch(version: str) -> int:
    """The driver's branch, 580 in 580.65.06; 0 for what is no version."""
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 6 else 0


def _folder(container: Container, library: Library) -> str:
    """The folder that `library` goes to; "" where this container has none for its word size."""
    folder = container.library_folder if library.bits == 64 else container.library_folder_32
    return f"{folder}/{library.subfolder}" if folder and library.subfolder else folder


def _options(file: DriverFile) -> tuple[str, ...]:
    return READ_ONLY if "/bin/" in file.target else READ_ONLY_DATA


def _reason(file: DriverFile, word: str) -> str:
    if not word:
        return "GPU system processor's firmware: every request"
    return f"{'program' if '/bin/' in file.target else 'configuration'}: {word}"


def _first_common(offered: tuple[str, ...], asked: tuple[str, ...]) -> str:
    for name in offered:
        if name in asked:
            return name
    return ""
