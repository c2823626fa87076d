# SPDX-License-Identifier: Apache-2.0
"""The search for the driver's files below its root, by the tables of `catalogue`.

A library counts only in the driver's exact version and for this machine: what its ELF header says decides, not the
folder it lies in.  64-bit and 32-bit libraries are looked for apart.  Reads only, off the fast path.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import ldso
from oci_gpu_hook.host import catalogue, elf, stamp
from oci_gpu_hook.host.inventory import DriverFile, Library, Misfit
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_FLAGS_32 = ldso.FLAGS[3, 32]
_KNOWN = frozenset(
    [name for name, _ in (*catalogue.LIBRARIES, *catalogue.OWN_VERSION)]
    + [*catalogue.SUBFOLDERS.values()]
)
_FILE_TYPE = 0o170000
_FOLDER = 0o040000


class Driver(NamedTuple):
    """Where a driver's files lie: its root, that root's path on the host ("" is the host's own), its version.

    cached: the folders of the root in which its loader's cache has the driver's libraries.
    """

    root: HostRoot
    prefix: str
    version: str
    cached: tuple[str, ...] = ()

    def source(self, path: str) -> str:
        """The host's path of a file in the root: a link in it leads within it, not within the host."""
        return self.prefix + self.root.real(path) if self.prefix else path


def driver(root: HostRoot, prefix: str, version: str) -> Driver:
    """The driver of this version in `root`."""
    return Driver(root, prefix, version, tuple(_cached_folders(root)))


def libraries(driver: Driver) -> dict[Library, str]:
    """The catalogue's libraries for this machine, then their 32-bit twins, each with its path in the driver's root."""
    flags = ldso.NATIVE_FLAGS.get(posix.uname().machine)
    found = {} if flags is None else _of_word_size(driver, 64, flags)
    if flags == ldso.NATIVE_FLAGS["x86_64"]:
        found.update(_of_word_size(driver, 32, _FLAGS_32))
    return found


def library_folder(present: dict[Library, str]) -> str:
    """The folder of the driver's root that most of its native libraries lie in; "" where there are none."""
    folders = [
        path.rpartition("/")[0]
        for library, path in present.items()
        if library.bits == 64 and not library.subfolder
    ]
    return max(sorted(set(folders)), key=folders.count, default="")


def misfits(driver: Driver, present: Iterable[Library]) -> tuple[Misfit, ...]:
    """Required libraries that `present` lacks, with the version that is there instead."""
    files = {library.file for library in present if library.bits == 64}
    return tuple(
        [
            Misfit(name, capability, _other_version(driver, name))
            for name, capability in catalogue.REQUIRED
            if f"{name}.so.{driver.version}" not in files
        ]
    )


def binaries(driver: Driver) -> tuple[DriverFile, ...]:
    """The catalogue's programs, each from the first folder that has it."""
    return tuple(
        [
            DriverFile(driver.source(path), f"{catalogue.BINARY_TARGET}/{name}", capabilities)
            for name, capabilities in catalogue.BINARIES
            for path in _first(driver.root, [f"{at}/{name}" for at in catalogue.BINARY_FOLDERS])
        ]
    )


def configuration(driver: Driver, host: HostRoot) -> tuple[DriverFile, ...]:
    """ICD, EGL, Vulkan, OpenCL and X files, the X server's modules, and what of the host's own goes with them."""
    machine = posix.uname().machine
    found = []
    for names, target in (
        (catalogue.SHARED_CONFIGURATION, catalogue.SHARED_TARGET),
        (catalogue.ETC_CONFIGURATION, catalogue.ETC_TARGET),
    ):
        for pattern, capabilities in names:
            name = pattern.replace("{machine}", machine)
            places = [f"{at}/{name}" for at in catalogue.CONFIGURATION_FOLDERS]
            found += [
                DriverFile(driver.source(path), f"{target}/{name}", capabilities)
                for path in _first(driver.root, places)
            ]
    return (*found, *_as_they_are(driver, host), *_xorg_modules(driver))


def _as_they_are(driver: Driver, host: HostRoot) -> list[DriverFile]:
    """The host's own first: udev is the host's, whatever is at its path in a driver container."""
    found = []
    for path, brought in catalogue.AS_THEY_ARE:
        source, status = path, host.stat(path)
        if status is None:
            source, status = driver.source(path), driver.root.stat(path)
        if status is not None:
            is_folder = status.st_mode & _FILE_TYPE == _FOLDER
            found.append(DriverFile(source, path, brought, is_folder))
    return found


def firmware(driver: Driver, host: HostRoot) -> tuple[DriverFile, ...]:
    """The GPU system processor's firmware, which the libraries look for at the host's path."""
    release = posix.uname().release
    places = [(Driver(host, "", driver.version), f"{at}/nvidia") for at in _firmware_class(host)]
    places += [
        (driver, pattern.replace("{release}", release)) for pattern in catalogue.FIRMWARE_FOLDERS
    ]
    found: dict[str, DriverFile] = {}
    for where, top in places:
        folder = f"{top}/{driver.version}"
        for name in where.root.names(folder):
            target = f"{catalogue.FIRMWARE_TARGET}/{driver.version}/{name}"
            if name.startswith("gsp") and name.endswith(".bin"):
                found.setdefault(name, DriverFile(where.source(f"{folder}/{name}"), target, ()))
    return tuple(found.values())


def _firmware_class(host: HostRoot) -> list[str]:
    """The folder of the host that the administrator has told the kernel to look into first, if any."""
    path = (host.read(catalogue.FIRMWARE_CLASS) or b"").decode(errors="surrogateescape").strip()
    return [path.rstrip("/")] if path.startswith("/") and path.isprintable() else []


def _of_word_size(driver: Driver, bits: int, flags: int) -> dict[Library, str]:
    folders = _library_folders(driver, bits)
    listed = [(folder, _known_names(driver.root, folder)) for folder in folders]
    found = {}
    for name, capabilities in catalogue.LIBRARIES:
        file = f"{name}.so.{driver.version}"
        found.update(_one(driver, listed, name, file, capabilities, flags))
    for name, capabilities in catalogue.OWN_VERSION:
        found.update(_highest(driver, listed, name, capabilities, flags))
    return found


def _known_names(root: HostRoot, folder: str) -> frozenset[str]:
    """The names in a folder that the catalogue's libraries and their folders may have: a hundred where there are
    thousands."""
    return frozenset([name for name in root.names(folder) if name.partition(".so.")[0] in _KNOWN])


def _highest(
    driver: Driver,
    listed: list[tuple[str, frozenset[str]]],
    name: str,
    capabilities: tuple[str, ...],
    flags: int,
) -> dict[Library, str]:
    """The highest version of a library that counts its own, for the word size of `flags`: the other's may be higher."""
    files = {
        own: item
        for _, names in listed
        for item in names
        for own in [_own_version(item, name)]
        if own
    }
    for own in sorted(files, reverse=True):
        found = _one(driver, listed, name, files[own], capabilities, flags)
        if found:
            return found
    return {}


def _one(
    driver: Driver,
    listed: list[tuple[str, frozenset[str]]],
    name: str,
    file: str,
    capabilities: tuple[str, ...],
    flags: int,
) -> dict[Library, str]:
    """The library from the first folder that has it for the word size of `flags`; none where no folder does."""
    subfolder = catalogue.SUBFOLDERS.get(name, "")
    for folder, names in listed:
        places = [(f"{folder}/{file}", "")] if file in names else []
        if subfolder in names:
            places.append((f"{folder}/{subfolder}/{file}", subfolder))
        for path, below in places:
            library = _library(driver, path, name, file, capabilities, flags)
            if library is not None:
                library = library._replace(subfolder=below)
                return dict.fromkeys([library, *_elsewhere(library, name)], path)
    return {}


def _elsewhere(library: Library, name: str) -> list[Library]:
    return [
        library._replace(names=(other,), subfolder=folder, capabilities=capabilities)
        for known, folder, other, capabilities in catalogue.ELSEWHERE
        if known == name
    ]


def _library(
    driver: Driver, path: str, name: str, file: str, capabilities: tuple[str, ...], flags: int
) -> Library | None:
    """The library at `path`, if it is one for the machine and word size of `flags`."""
    try:
        fd = driver.root.open(path, posix.O_RDONLY | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        identity = elf.identify(fd)
    except (elf.MalformedElf, OSError):
        return None
    finally:
        posix.close(fd)
    if identity is None or ldso.flags_of(identity) != flags:
        return None
    soname = identity.soname or file
    names = (file, soname, *catalogue.OTHER_NAMES.get(name, ()))
    return Library(
        path=driver.source(path),
        file=file,
        soname=soname,
        names=tuple(dict.fromkeys(names)),
        flags=flags,
        bits=32 if flags == _FLAGS_32 else 64,
        subfolder="",
        capabilities=capabilities,
    )


def _own_version(file: str, name: str) -> tuple[int, ...]:
    """The numbers of ``NAME.so.X.Y.Z``; none for anything else."""
    parts = file[len(name) + 4 :].split(".") if file.startswith(f"{name}.so.") else []
    if len(parts) != 3 or not all([part.isdecimal() and len(part) < 9 for part in parts]):
        return ()
    return tuple([int(part) for part in parts])


def _library_folders(driver: Driver, bits: int) -> list[str]:
    """Where the driver's libraries may lie: where the loader's cache says, then the distributions' usual places."""
    if bits == 32:
        multiarch = ldso.MULTIARCH_32
        usual = ["/usr/lib32", "/usr/lib32/nvidia/current", "/usr/lib"]
    else:
        multiarch = ldso.MULTIARCH.get(posix.uname().machine, "")
        usual = ["/usr/lib64", "/usr/lib64/nvidia", "/usr/lib", "/lib64"]
    debian = f"/usr/lib/{multiarch}"
    folders = [*driver.cached, debian, f"{debian}/nvidia/current", *usual]
    return list(dict.fromkeys(folders))


def _cached_folders(root: HostRoot) -> list[str]:
    """In the cache's order, which has libraries of the machine's own word size first."""
    try:
        data = root.read(stamp.LD_SO_CACHE) or b""
        paths = ldso.paths_of(data, (b"libcuda.so.1", b"libnvidia-ml.so.1"))
    except ldso.MalformedCache:
        return []
    folders = [path.rpartition(b"/")[0].decode(errors="surrogateescape") for path in paths]
    return [_below_usr(root, folder) for folder in dict.fromkeys(folders)]


def _below_usr(root: HostRoot, folder: str) -> str:
    """The folder's own name where /lib is a link to /usr/lib, as on all distributions of today: ldconfig lists both."""
    here, there = root.stat(folder), root.stat(f"/usr{folder}")
    same = here and there and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
    return f"/usr{folder}" if same else folder


def _xorg_modules(driver: Driver) -> list[DriverFile]:
    """At the host's own path: the X server looks for its modules in one folder, which its build knows."""
    found = []
    for name, places in catalogue.XORG_MODULES:
        for folder in _library_folders(driver, 64):
            versioned = [f"{name}.{driver.version}", name]
            paths = _first(
                driver.root, [f"{folder}/{at}/{file}" for at in places for file in versioned]
            )
            for path in paths:
                names = dict.fromkeys([path.rpartition("/")[2], name])
                found += [
                    DriverFile(
                        driver.source(path),
                        f"{path.rpartition('/')[0]}/{file}",
                        catalogue.XORG_CAPABILITIES,
                    )
                    for file in names
                ]
            if paths:
                break
    return found


def _first(root: HostRoot, paths: list[str]) -> list[str]:
    """The first of `paths` that exists; none where none does."""
    for path in paths:
        if root.stat(path) is not None:
            return [path]
    return []


def _other_version(driver: Driver, name: str) -> str:
    prefix = f"{name}.so."
    for folder in _library_folders(driver, 64):
        for candidate in driver.root.names(folder):
            version = candidate[len(prefix) :]
            if candidate.startswith(prefix) and "." in version:
                return version
    return ""
