# SPDX-License-Identifier: Apache-2.0
"""The search for the driver's files below its root, by the tables of `catalogue`.

A library counts only if it has the driver's exact version and is for this machine, by its ELF header and not by the
folder that it lies in.  Reads only.  Never used by a start that has a saved inventory.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.driver import catalogue, elf, inventory, proc
from oci_gpu_hook.driver.inventory import DriverFile, Library, Misfit
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.formats.decimal import decimals
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_folder, is_open_to_others, is_regular, is_same
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    Found = TypeVar("Found", Library, DriverFile)

# A driver has some forty libraries, of which a newer one's few are not known; of one there are a few versions.
_MAX_UNKNOWN, _MAX_OF_ONE = 256, 16

_CATALOGUED = frozenset(
    [name for name, _ in (*catalogue.LIBRARIES, *catalogue.OWN_VERSION)] + [*catalogue.SUBFOLDERS.values()]
)


class Driver(NamedTuple):
    """prefix: the root's path on the host, "" for the host's own; cached: the folders of its libraries by the root's
    ld.so.cache; untrusted: a sentence for each that is left out.
    """

    root: HostRoot
    prefix: str
    version: str
    cached: tuple[str, ...] = ()
    untrusted: tuple[str, ...] = ()

    def source(self, path: str) -> str:
        """The host's path of a file in the root, without links: no user can lead it elsewhere later."""
        return self.prefix + self.root.real(path)


def find_driver(host: HostRoot, driver_root: str, version: str) -> Driver:
    """DriverError if this version is not there."""
    prefix = driver_root.rstrip("/")
    why, at = (host.openness(prefix), host.stat(prefix)) if prefix else ("", None)
    if prefix and (why or at is None or not is_folder(at)):
        why = f"is not used: {why}" if why else "is not a folder" if at else "is not there"
        raise DriverError(f"the driver root {prefix} {why}", "the administrator sets driver-root")
    root = HostRoot(host.path.rstrip("/") + host.real(prefix)) if prefix else host
    cached = {folder: root.openness(folder) for folder in _cached_folders(root)}
    trusted = [folder for folder, why in cached.items() if not why]
    faults = [f"{folder} is left out: {why}" for folder, why in cached.items() if why]
    return Driver(root, prefix, version, tuple(trusted), tuple(faults))


def of_root(host: HostRoot, found: Iterable[Found]) -> tuple[tuple[Found, ...], dict[str, str]]:
    """Those of the driver's files that root alone could have made and can write to; and of each other path why not."""
    folders: dict[str, str] = {}
    kept, faults = [], {}
    for it in found:
        folder = it.path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = host.openness(folder)
        status = host.stat(it.path)
        is_open = status is not None and is_open_to_others(status, host.roots[1])
        why = folders[folder] or (host.openness(it.path) if is_open else "")
        if why:
            faults[it.path] = why
        else:
            kept.append(it)
    return tuple(kept), faults


def libraries(driver: Driver) -> dict[Library, str]:
    """For this machine first, then the 32-bit ones, each with its path in the driver's root."""
    flags = ldcache.NATIVE_FLAGS.get(posix.uname().machine)
    found = {} if flags is None else _of_word_size(driver, 64, flags)
    if flags == ldcache.NATIVE_FLAGS["x86_64"]:
        found.update(_of_word_size(driver, 32, ldcache.FLAGS[3, 32]))
    return found


def misfits(driver: Driver, present: tuple[Library, ...], faults: dict[str, str]) -> tuple[Misfit, ...]:
    """The required libraries that `present` lacks, with the version there is instead; faults: see `of_root`."""
    files = {library.file for library in present if library.bits == 64}
    whys = {path.rpartition("/")[2]: f"{path} is left out: {why}" for path, why in faults.items()}
    wanted = [(*it, f"{it[0]}.so.{driver.version}") for it in catalogue.REQUIRED]
    missing = [it for it in wanted if it[2] not in files]
    return tuple([Misfit(name, word, _other_version(driver, name), whys.get(file, "")) for name, word, file in missing])


def binaries(driver: Driver) -> tuple[DriverFile, ...]:
    """Also those in a bin beside a folder that ld.so.cache names."""
    folders = [*catalogue.BINARY_FOLDERS, *[f"{folder.rpartition('/')[0]}/bin" for folder in driver.cached]]
    return tuple(_placed(driver, catalogue.BINARIES, folders, catalogue.BINARY_TARGET, _is_program))


def _is_program(host: HostRoot, path: str) -> bool:
    """No script, which would start one by a path of the host's.  Others' are not opened: `of_root` leaves them out."""
    status = host.stat(path)
    is_file = status is not None and is_regular(status)
    return is_file and (bool(host.openness(path)) or elf.identity_of(host, path) is not None)


def configuration(driver: Driver, host: HostRoot) -> tuple[DriverFile, ...]:
    return (
        *_placed(driver, catalogue.SHARED_CONFIGURATION, catalogue.CONFIGURATION_FOLDERS, catalogue.SHARED_TARGET),
        *_placed(driver, catalogue.ETC_CONFIGURATION, catalogue.CONFIGURATION_FOLDERS, catalogue.ETC_TARGET),
        *_as_they_are(driver, host),
        *_xorg_modules(driver),
    )


def _placed(
    driver: Driver,
    patterns: tuple[tuple[str, tuple[str, ...]], ...],
    folders: Iterable[str],
    target: str,
    fits: Callable[[HostRoot, str], object] = HostRoot.stat,
) -> list[DriverFile]:
    found = []
    for pattern, capabilities in patterns:
        name = pattern.replace("{machine}", posix.uname().machine)
        paths = [f"{folder}/{name}" for folder in folders]
        for path in _first(driver.root, [it for it in paths if fits(driver.root, it)]):
            text = inventory.without_folders(driver.root, path) if path.endswith(catalogue.NAMES_LIBRARIES) else ""
            found.append(DriverFile(driver.source(path), f"{target}/{name}", capabilities, text=text))
    return found


def _as_they_are(driver: Driver, host: HostRoot) -> list[DriverFile]:
    """The files of `AS_THEY_ARE`, the host's own first: /run/udev in a driver container is not the host's."""
    found = []
    for path, capabilities in catalogue.AS_THEY_ARE:
        places = [(it.source(path), status) for it in (Driver(host, "", ""), driver) if (status := it.root.stat(path))]
        found += [DriverFile(source, path, capabilities, is_folder(status)) for source, status in places[:1]]
    return found


def firmware(driver: Driver, host: HostRoot) -> tuple[DriverFile, ...]:
    """The GPU system processor's, which the libraries look for at the host's path."""
    release = posix.uname().release
    places = [(driver, pattern.replace("{release}", release)) for pattern in catalogue.FIRMWARE_FOLDERS]
    # The folder that the kernel's parameter names, if the administrator has set it: the kernel looks there first.
    path = (host.read(catalogue.FIRMWARE_CLASS) or b"").decode(errors="surrogateescape").strip()
    if path.startswith("/") and path.isprintable():
        places.insert(0, (Driver(host, "", driver.version), f"{path.rstrip('/')}/nvidia"))
    found: dict[str, DriverFile] = {}
    for where, top in places:
        folder = f"{top}/{driver.version}"
        for name in [it for it in where.root.names(folder) if it.startswith("gsp") and it.endswith(".bin")]:
            target = f"{catalogue.FIRMWARE_TARGET}/{driver.version}/{name}"
            found.setdefault(name, DriverFile(where.source(f"{folder}/{name}"), target, ()))
    return tuple(found.values())


def _of_word_size(driver: Driver, bits: int, flags: int) -> dict[Library, str]:
    # Of thousands of names in a folder some hundred are of the catalogue's libraries and subfolders.
    named = [(folder, driver.root.names(folder)) for folder in _library_folders(driver, bits)]
    listed = [(at, frozenset([it for it in names if it.partition(".so")[0] in _CATALOGUED])) for at, names in named]
    further = {it.partition(".so")[0]: [it] for it in catalogue.FILES}
    wanted = [
        (name, capabilities, [f"{name}.so.{driver.version}", *further.get(name, [])])
        for name, capabilities in catalogue.LIBRARIES
    ]
    wanted += [(name, capabilities, _of_own_version(name, listed)) for name, capabilities in catalogue.OWN_VERSION]
    found: dict[Library, str] = {}
    for name, capabilities, files in wanted:
        places = _places(files, catalogue.SUBFOLDERS.get(name, ""), listed)
        found.update(_first_library(driver, name, capabilities, places, flags))
    # What a newer driver has beside these.  Debian has some libraries in one folder and some in another.
    for folder in [*dict.fromkeys([path.rpartition("/")[0] for path in found.values()])]:
        for name in _unknown(driver, folder, {it.file for it in found}):
            file = f"{name}.so.{driver.version}"
            found.update(_first_library(driver, name, catalogue.OF_UNKNOWN, [(f"{folder}/{file}", file)], flags))
    return found


def _first_library(
    driver: Driver, name: str, capabilities: tuple[str, ...], places: list[tuple[str, str]], flags: int
) -> dict[Library, str]:
    for path, file in places:
        kind, soname = elf.identity_of(driver.root, path) or ((0, 0), "")
        # A link without a version may lead to another driver's file.
        is_link = file in catalogue.FILES and not driver.root.real(path).endswith(f"/{file}")
        if ldcache.FLAGS.get(kind) != flags or is_link:
            continue
        soname = soname or file
        names = [file, soname, catalogue.OTHER_NAMES.get(name, file)]
        if _are_same(driver.root, f"{path.rpartition('/')[0]}/{name}.so", path):
            names.append(f"{name}.so")
        called = tuple(dict.fromkeys(names))
        library = Library(driver.source(path), file, soname, called, flags, kind[1], "", capabilities)
        found = {library: path}
        for of, other, other_name, bringing in catalogue.ELSEWHERE:
            if of == name:
                found[library._replace(names=(other_name,), subfolder=other, capabilities=bringing)] = path
        return found
    return {}


def _are_same(host: HostRoot, path: str, other: str) -> bool:
    here, there = host.stat(path), host.stat(other)
    return here is not None and there is not None and is_same(here, there)


def _unknown(driver: Driver, folder: str, found: set[str]) -> list[str]:
    ending = f".so.{driver.version}"
    names = [it[: -len(ending)] for it in driver.root.names(folder) if it.endswith(ending) and it not in found]
    known = (*_CATALOGUED, *catalogue.NOT_BROUGHT, *[name.removesuffix(".so") for name, *_ in catalogue.XORG_MODULES])
    return [name for name in names if name.startswith("lib") and name not in known][:_MAX_UNKNOWN]


def _places(files: list[str], subfolder: str, listed: list[tuple[str, frozenset[str]]]) -> list[tuple[str, str]]:
    found = []
    for file, (folder, names) in [(file, place) for file in files for place in listed]:
        if file in names:
            found.append((f"{folder}/{file}", file))
        if subfolder in names:
            found.append((f"{folder}/{subfolder}/{file}", file))
    return found


def _of_own_version(name: str, listed: list[tuple[str, frozenset[str]]]) -> list[str]:
    """The files ``NAME.so.X.Y.Z``, with as many numbers as the library has, the highest version first."""
    start = f"{name}.so."
    files = {decimals(file[len(start) :]): file for _, names in listed for file in names if file.startswith(start)}
    found = [files[own] for own in sorted(files, reverse=True) if len(own) == catalogue.NUMBERS.get(name, 3)]
    return found[:_MAX_OF_ONE]


def _library_folders(driver: Driver, bits: int) -> list[str]:
    # The last two are NixOS's, and those of a package of Nix's as driver-root.
    usual = ["/usr/lib64", "/usr/lib64/nvidia", "/usr/lib", "/lib64", f"{proc.NIXOS}/lib", "/lib"]
    debian = f"/usr/lib/{ldcache.MULTIARCH.get(posix.uname().machine, '')}"
    if bits == 32:
        usual = ["/usr/lib32", "/usr/lib32/nvidia/current", "/usr/lib", f"{proc.NIXOS}-32/lib", "/lib32"]
        debian = f"/usr/lib/{ldcache.MULTIARCH_32}"
    folders = dict.fromkeys([*driver.cached, debian, f"{debian}/nvidia/current", *usual])
    # A good file in another folder comes before one that others could exchange.
    return sorted(folders, key=lambda folder: bool(driver.root.openness(folder)))


def _cached_folders(host: HostRoot) -> list[str]:
    """The folders of the driver's libraries in the ld.so.cache, in its order: it lists native libraries first."""
    try:
        paths = ldcache.paths_of(host.read(proc.LD_SO_CACHE) or b"", (b"libcuda.so.1", b"libnvidia-ml.so.1"))
    except ldcache.MalformedCache:
        return []
    names = [path.decode(errors="surrogateescape") for path in paths]
    # Debian's alternatives lead from there to the folder of one of several drivers.
    folders = dict.fromkeys([path.rpartition("/")[0] for path in (*names, *[host.real(name) for name in names])])
    # /usr/lib64 for /lib64 if one is a link to the other, as on today's distributions: ldconfig lists both.
    return [f"/usr{folder}" if _are_same(host, folder, f"/usr{folder}") else folder for folder in folders]


def _xorg_modules(driver: Driver) -> list[DriverFile]:
    """The X server's modules, at the host's own path and where a server looks, see `Layout.xorg_folder`."""
    found = []
    # Debian's variants of the driver have one name in each folder.
    variants = [f"nvidia/{folder.rpartition('/')[2]}" for folder in driver.cached if "/nvidia/" in folder]
    for name, below, places in catalogue.XORG_MODULES:
        folders = [f"{folder}/{at}" for folder in _library_folders(driver, 64) for at in (*places, *variants)]
        paths = [f"{folder}/{file}" for folder in folders for file in (f"{name}.{driver.version}", name)]
        for path in _first(driver.root, paths):
            folder, _, file = path.rpartition("/")
            at, brings = driver.source(path), catalogue.XORG_CAPABILITIES
            called = dict.fromkeys([file, name])
            found += [DriverFile(at, f"{folder}/{it}", brings, module=f"{below}/{it}") for it in called]
    return found


def _first(host: HostRoot, paths: list[str]) -> list[str]:
    """The first of `paths` that is there and that root alone could have made, else the first that is there."""
    there = [path for path in paths if host.stat(path) is not None]
    return [next((path for path in there if not host.openness(path)), there[0])] if there else []


def _other_version(driver: Driver, name: str) -> str:
    start = f"{name}.so."
    files = [file for folder in _library_folders(driver, 64) for file in driver.root.names(folder)]
    versions = [file[len(start) :] for file in files if file.startswith(start)]
    return next((version for version in versions if "." in version), "")
