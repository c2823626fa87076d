# SPDX-License-Identifier: Apache-2.0
"""The driver's files: a catalogue by capability, as data, and the search for them.

To serve another library, binary or firmware file, add a line to a table here; nothing else changes.
A library counts only in the driver's exact version: its file name ends with it.  Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import ldso
from oci_gpu_hook.host import elf
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

# name (before ".so"), capabilities that bring it
LIBRARIES = (
    ("libnvidia-ml", ("utility",)),
    ("libnvidia-cfg", ("utility",)),
    ("libnvidia-nscq", ("utility",)),
    ("libcuda", ("compute",)),
    ("libcudadebugger", ("compute",)),
    ("libnvidia-opencl", ("compute",)),
    ("libnvidia-gpucomp", ("compute",)),
    ("libnvidia-ptxjitcompiler", ("compute",)),
    ("libnvidia-fatbinaryloader", ("compute",)),
    ("libnvidia-allocator", ("compute",)),
    ("libnvidia-compiler", ("compute",)),
    ("libnvidia-pkcs11", ("compute",)),
    ("libnvidia-pkcs11-openssl3", ("compute",)),
    ("libnvidia-nvvm", ("compute",)),
    ("libnvidia-tileiras", ("compute",)),
)

# Without these the capability is void, and a driver that lacks one is half installed.
REQUIRED = (("libnvidia-ml", "utility"), ("libcuda", "compute"))

# Names beside the SONAME by which programs load a library: what the linker's -lcuda needs.
DEVELOPMENT_NAMES = {"libcuda": "libcuda.so"}

BINARIES = (
    ("nvidia-smi", "utility"),
    ("nvidia-debugdump", "utility"),
    ("nvidia-persistenced", "utility"),
    ("nv-fabricmanager", "utility"),
    ("nvidia-cuda-mps-control", "compute"),
    ("nvidia-cuda-mps-server", "compute"),
)

FIRMWARE_FOLDER = "/lib/firmware/nvidia"
LD_SO_CACHE = "/etc/ld.so.cache"

_BINARY_FOLDERS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin")


class Library(NamedTuple):
    """A driver library: host path of the versioned file, and the names it must have in a container."""

    path: str
    file: str
    soname: str
    names: tuple[str, ...]
    flags: int
    capabilities: tuple[str, ...]


class DriverFile(NamedTuple):
    """A binary or firmware file: host path, and the capability that brings it ("" is any)."""

    path: str
    capability: str


class Misfit(NamedTuple):
    """A required library that is there in another version only, or (found is "") not at all."""

    name: str
    capability: str
    found: str


def libraries(root: HostRoot, version: str) -> tuple[Library, ...]:
    """The catalogue's libraries of exactly `version`, native word size."""
    folders = _library_folders(root)
    machine = posix.uname().machine
    found = []
    for name, capabilities in LIBRARIES:
        file = f"{name}.so.{version}"
        for folder in folders:
            library = _library(root, f"{folder}/{file}", name, file, capabilities, machine)
            if library is not None:
                found.append(library)
                break
    return tuple(found)


def misfits(root: HostRoot, version: str, present: tuple[Library, ...]) -> tuple[Misfit, ...]:
    """Required libraries that `present` lacks, with the version that is there instead."""
    files = {library.file for library in present}
    found = []
    for name, capability in REQUIRED:
        if f"{name}.so.{version}" not in files:
            found.append(Misfit(name, capability, _other_version(root, name)))
    return tuple(found)


def binaries(root: HostRoot) -> tuple[DriverFile, ...]:
    """The catalogue's programs, each from the first folder that has it."""
    found = []
    for name, capability in BINARIES:
        for folder in _BINARY_FOLDERS:
            if root.stat(f"{folder}/{name}") is not None:
                found.append(DriverFile(f"{folder}/{name}", capability))
                break
    return tuple(found)


def firmware(root: HostRoot, version: str) -> tuple[DriverFile, ...]:
    """The GPU system processor's firmware, which the libraries look for at the host's path."""
    folder = f"{FIRMWARE_FOLDER}/{version}"
    names = [
        name for name in root.names(folder) if name.startswith("gsp") and name.endswith(".bin")
    ]
    return tuple([DriverFile(f"{folder}/{name}", "") for name in names])


def _library_folders(root: HostRoot) -> list[str]:
    """Where the driver's libraries may lie: where the loader's cache says, then the distributions' usual places."""
    multiarch = ldso.MULTIARCH.get(posix.uname().machine, "")
    usual = [
        f"/usr/lib/{multiarch}",
        f"/usr/lib/{multiarch}/nvidia/current",
        "/usr/lib64",
        "/usr/lib64/nvidia",
        "/usr/lib",
        "/lib64",
    ]
    return list(dict.fromkeys(_cached_folders(root) + usual))


def _cached_folders(root: HostRoot) -> list[str]:
    data = root.read(LD_SO_CACHE)
    if data is None:
        return []
    try:
        entries = ldso.parse(data).entries
    except ldso.MalformedCache:
        return []
    sonames = (b"libcuda.so.1", b"libnvidia-ml.so.1")
    paths = [
        entry.path.decode(errors="surrogateescape") for entry in entries if entry.soname in sonames
    ]
    return [_below_usr(root, path.rpartition("/")[0]) for path in paths]


def _below_usr(root: HostRoot, folder: str) -> str:
    """The folder's own name where /lib is a link to /usr/lib, as on all distributions of today: ldconfig lists both."""
    here, there = root.stat(folder), root.stat(f"/usr{folder}")
    same = here and there and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
    return f"/usr{folder}" if same else folder


def _library(
    root: HostRoot, path: str, name: str, file: str, capabilities: tuple[str, ...], machine: str
) -> Library | None:
    """The library at `path`, if it is one for this machine."""
    try:
        fd = root.open(path, posix.O_RDONLY)
    except OSError:
        return None
    try:
        identity = elf.identify(fd)
    except elf.MalformedElf:
        return None
    finally:
        posix.close(fd)
    flags = ldso.NATIVE_FLAGS.get(machine)
    if identity is None or flags is None or ldso.flags_of(identity) != flags:
        return None
    soname = identity.soname or file
    names = [file, soname]
    if name in DEVELOPMENT_NAMES:
        names.append(DEVELOPMENT_NAMES[name])
    return Library(path, file, soname, tuple(dict.fromkeys(names)), flags, capabilities)


def _other_version(root: HostRoot, name: str) -> str:
    prefix = f"{name}.so."
    for folder in _library_folders(root):
        for candidate in root.names(folder):
            version = candidate[len(prefix) :]
            if candidate.startswith(prefix) and "." in version:
                return version
    return ""
