# SPDX-License-Identifier: Apache-2.0
"""A Jetson's driver: NVIDIA's CSV files of what its containers get, unchanged, as a `Vendor`.  Reads only.

JetPack's packages write them; each line is a type and a path.  They are read as by NVIDIA's runtime in its csv mode:
what is not an entry, or not on this board, is left out, as one list serves all boards.  So is what no vendor may name.
"""

from __future__ import annotations

from oci_gpu_hook.driver.proc import CSV_FOLDER, character_majors
from oci_gpu_hook.errors import ConfigError, DriverError, quoted
from oci_gpu_hook.formats import glob
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_folder
from oci_gpu_hook.request.words import VISIBLE_DEVICES
from oci_gpu_hook.vendors import folders, vendorrules
from oci_gpu_hook.vendors.platform import BASE, KIND, TEGRA_RELEASE
from oci_gpu_hook.vendors.vendorhost import refusal
from oci_gpu_hook.vendors.vendorinventory import DevicePattern, Group, Item, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.vendors.vendorinventory import See

_SUFFIX = ".csv"
_TYPES = ("dev", "lib", "dir", "sym")
# JetPack's largest file has 300 lines.
MAX_FILES, MAX_ENTRIES = 256, 10_000
_MAX_SENTENCES, _MAX_LINKS = 50, 40

# Names that programs open and that no list has; NVIDIA's runtime makes these links beside the libraries.
_LINKS_BESIDE = (
    ("libcuda.so.", "libcuda.so", "libcuda.so.1"),
    ("libGLX_nvidia.so.", "libGLX_indirect.so.0", ""),
    ("libnvidia-opticalflow.so.", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
)

_INSTALL_HINT = "the administrator must install all of JetPack: apt install --reinstall nvidia-l4t-init"
_FILE_HINT = "the administrator must fix or remove it"


def vendor(host: HostRoot, everything: bool, see: See = lambda _: None) -> tuple[Vendor, tuple[str, ...]]:
    """What the CSV files of this host say, and a sentence for each line that is left out; DriverError if none serve.
    everything: whether all files count, which a container asks for by NVIDIA_REQUIRE_JETPACK=csv-mounts=all.
    """
    see(CSV_FOLDER)
    see(TEGRA_RELEASE)
    names = [name for name in host.names(CSV_FOLDER) if name.lower().endswith(_SUFFIX) and len(name) > len(_SUFFIX)]
    if len(names) > MAX_FILES:
        raise DriverError(f"{CSV_FOLDER} has more than {MAX_FILES} CSV files", _FILE_HINT)
    names = [name for name in names if everything or name in BASE]
    if not names:
        why = f"no CSV file lists what containers get on this Jetson: {CSV_FOLDER} has no {', '.join(BASE)}"
        raise DriverError(why, _INSTALL_HINT)
    groups: list[Group] = []
    sentences: list[str] = []
    count = 0
    for name in names:
        path = f"{CSV_FOLDER}/{name}"
        see(path)
        try:
            entries = parse_csv(folders.content(host, path), path)
        except ConfigError as err:
            raise DriverError(err.message, _FILE_HINT) from err
        # Comments and what is left out are none.
        count += sum([type in _TYPES and bool(entry) for type, entry in entries])
        if count > MAX_ENTRIES:
            raise DriverError(f"{CSV_FOLDER} has more than {MAX_ENTRIES} entries", _FILE_HINT)
        listed = _Listed(host, see)
        refused = [(place, listed.add(type, entry)) for (type, entry), place in entries.items()]
        sentences += [f"{place} is left out: {why}" for place, why in refused if why]
        groups.append(listed.group(name[: -len(_SUFFIX)]))
    if not any([group.devices for group in groups]):
        raise DriverError(f"the CSV files in {CSV_FOLDER} name no device", _INSTALL_HINT)
    if host.stat(TEGRA_RELEASE) is not None:
        groups.append(Group("release", files=(Item(TEGRA_RELEASE),)))
    if len(sentences) > _MAX_SENTENCES:
        sentences[_MAX_SENTENCES:] = [f"{len(sentences) - _MAX_SENTENCES} more lines below {CSV_FOLDER} are left out"]
    return Vendor(CSV_FOLDER, VISIBLE_DEVICES, tuple(groups), KIND, ("text", release(host))), tuple(sentences)


def parse_csv(data: bytes, path: str) -> dict[tuple[str, str], str]:
    """The types and paths in one file, each with its place; DriverError.  A comma in a path belongs to it."""
    try:
        text = data.decode()
    except UnicodeDecodeError as err:
        raise DriverError(f"{path} is not UTF-8 text", _FILE_HINT) from err
    entries: dict[tuple[str, str], str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        word, _, rest = [part.strip() for part in line.partition(",")]
        # Of Jetson Linux 36.3: //lib/firmware/tegra19x/...
        while "//" in rest:
            rest = rest.replace("//", "/")
        if line.strip():
            entries.setdefault((word, rest), f"{path}:{number}")
    return entries


def release(host: HostRoot) -> str:
    """Such as ``36.4.3``; "" if it is not said, as in ``# R36 (release), REVISION: 4.3, GCID: 38968081, ...``."""
    line = (host.read(TEGRA_RELEASE) or b"").partition(b"\n")[0].decode("ascii", "replace")
    major = line.lstrip("# ").partition(" ")[0][1:]
    revision = line.partition("REVISION:")[2].partition(",")[0].strip()
    whole = f"{major}.{revision}" if revision else major
    return whole if whole.replace(".", "").isdecimal() and len(whole) < 32 else ""


class _Listed:
    """What one file's entries mean on this host, by its paths."""

    def __init__(self, host: HostRoot, see: See) -> None:
        self._root, self._see = host, see
        self._majors = character_majors(host)
        self._devices: dict[str, DevicePattern] = {}
        self._libraries: dict[str, Item] = {}
        self._files: dict[str, Item] = {}
        self._links: dict[str, str] = {}

    def group(self, name: str) -> Group:
        for item in self._libraries.values():
            folder, _, file = item.path.rpartition("/")
            for start, link, to in _LINKS_BESIDE:
                path = f"{folder}/{link}"
                if file.startswith(start) and path not in self._libraries:
                    self._links.setdefault(path, to or file)
        devices, libraries, files = tuple(self._devices.values()), self._libraries.values(), self._files.values()
        return Group(name, devices, tuple(libraries), tuple(files), links=tuple(self._links.items()))

    def add(self, type: str, path: str) -> str:
        if not path:
            return f"{quoted(type)} has no path"
        if type not in _TYPES:
            return f"its type {quoted(type)} is not one of {', '.join(_TYPES)}"
        if type == "dev":
            # As NVIDIA's runtime has it: a device's name alone is below /dev.
            return self._add_device(path if path.startswith("/") else f"{vendorrules.DEV}{path}")
        if why := vendorrules.fault_of_host_path(path):
            return why
        if type == "dir":
            self._files[path] = Item(path)
            return ""
        faults = [self._add_file(found) for found in glob.expanded(path, self._names, MAX_ENTRIES)]
        return next(filter(None, faults), "")

    def _names(self, folder: str) -> list[str]:
        self._see(folder)
        return self._root.names(folder)

    def _add_device(self, pattern: str) -> str:
        if why := vendorrules.fault_of_device_path(pattern):
            return why
        self._devices[pattern] = DevicePattern(pattern, required=False)
        for path in glob.expanded(pattern, self._root.names, MAX_ENTRIES):
            status = self._root.stat(path)
            if status is None or vendorrules.is_null(status.st_rdev):
                continue
            if why := refusal(self._root, path, status, self._majors):
                return f"{quoted(path)}: {why}"
        return ""

    def _add_file(self, path: str) -> str:
        """Add a file, and each link that leads to it by its own text, if it is on this host."""
        chain: dict[str, str] = {}
        end = path
        self._see(end.rpartition("/")[0])
        while end not in chain and (text := self._root.link(end)) is not None and len(chain) < _MAX_LINKS:
            chain[end] = text
            end = _joined(end, text)
            self._see(end.rpartition("/")[0])
        status = self._root.stat(path)
        if status is None:
            return ""
        for link, text in chain.items():
            if why := vendorrules.fault_of_host_path(_joined(link, text)):
                return f"{quoted(path)} leads elsewhere: {why}"
        self._links.update(chain)
        folder, _, name = end.rpartition("/")
        # A folder is there if a line of its own names it.
        if not is_folder(status) and self._root.stat(end) is not None:
            if ".so" in name:
                self._libraries[end] = Item(end, folder)
            else:
                self._files[end] = Item(end)
        return ""


def _joined(link: str, text: str) -> str:
    folder = "" if text.startswith("/") else link.rpartition("/")[0]
    parts: list[str] = []
    for part in f"{folder}/{text}".split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
