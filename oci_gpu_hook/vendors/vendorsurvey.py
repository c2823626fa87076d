# SPDX-License-Identifier: Apache-2.0
"""The survey of one vendor's file: which of this host's files it means, saved for later starts.

What others than root could have made is left out, with a sentence.  Writes the saved inventory alone.  Never used by a
start that finds one that is still true.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.driver import elf, proc
from oci_gpu_hook.driver.inventory import DriverFile, Library
from oci_gpu_hook.errors import ConfigError, quoted
from oci_gpu_hook.formats import glob, ldcache
from oci_gpu_hook.host import contents, statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_folder
from oci_gpu_hook.request.words import VISIBLE_DEVICES
from oci_gpu_hook.vendors import vendorrules
from oci_gpu_hook.vendors.vendorinventory import HEADING, PREFIX, Item, identity, way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.vendors.vendorinventory import Identity, Vendor

_MAX_LINKS = 40
# For one vendor's file; a saved inventory holds some thousands.
_MAX_FILES = 4096
# How many files of one folder are watched, and how many that are left out are named.
_MAX_WATCHED, _MAX_TOLD = 2048, 16
# LLVM needs some ten, a program with windows some hundred.
_MAX_NEEDED = 256
# Libraries that every image of such programs has: its own fit its C library, and the host's might not.
_BASE = (
    *("ld-linux", "libc.so.", "libm.so.", "libmvec.so.", "libdl.so.", "libpthread.so.", "librt.so.", "libutil.so."),
    *("libresolv.so.", "libanl.so.", "libgcc_s.so.", "libstdc++.so.", "libz.so."),
)


class Survey:
    def __init__(self, host: HostRoot, vendor: Vendor, read: dict[str, Identity]) -> None:
        """read: the files that `vendor` was read from, as they were before that."""
        self._host = host
        self._vendor = vendor
        self._places = dict(read)
        self._ways: dict[str, Identity] = {}
        self._texts: dict[str, bytes | None] = {}
        # Used as sets that keep their order.
        self._absent: dict[str, None] = {}
        self._lacking: dict[str, None] = {}
        self._faults: dict[str, None] = {}
        self._files: dict[str, DriverFile] = {}
        self._libraries: dict[tuple[str, str], Library] = {}
        self._links: dict[str, str] = {}
        for path, text in [link for group in vendor.groups for link in group.links]:
            self._links.setdefault(path, text)
        self._flags = ldcache.NATIVE_FLAGS.get(posix.uname().machine)
        self.found = self._inventory()

    def save(self, name: str) -> None:
        seen = tuple([tuple(looked.items()) for looked in (self._places, self._ways, self._texts)])
        statefile.save(self._host, f"{PREFIX}{name}", HEADING, (seen, self.found))

    def _inventory(self) -> Vendor:
        vendor = self._vendor
        version = self._version_of(*vendor.source)
        wanted = [(self._add_file, group.name, item) for group in vendor.groups for item in group.files]
        wanted += [(self._add_library, group.name, item) for group in vendor.groups for item in group.libraries]
        for add, group_name, item in wanted:
            for path in self._existing(item, version):
                add(group_name, item.target, path)
        mounted = {file.target: file.path for file in self._files.values() if file.folder}
        own = {*self._libraries}
        # A Jetson's lists are whole, and so is what Windows shows to WSL.
        if vendor.flag != VISIBLE_DEVICES:
            self._add_needed()
        libraries = [it for key, it in self._libraries.items() if key in own]
        cached = [it for it in libraries if it.folder and self._is_within(f"{it.folder}/{it.file}", it.path, mounted)]
        files = [file for file in self._files.values() if not self._is_within(file.target, file.path, mounted)]
        return vendor._replace(
            groups=(),
            version=version,
            patterns=tuple([it._replace(group=group.name) for group in vendor.groups for it in group.devices]),
            libraries=tuple([it for it in libraries if it not in cached]),
            cached=tuple(cached),
            needed=tuple([it for key, it in self._libraries.items() if key not in own]),
            # What is mounted as a library at the same place is not mounted twice.
            files=tuple([it for it in files if (it.path, it.target.rpartition("/")[0]) not in self._libraries]),
            sockets=tuple([(path, group.name) for group in vendor.groups for path in group.sockets]),
            links=tuple(self._links.items()),
            lacking=tuple(self._lacking),
            absent=tuple(self._absent),
            faults=tuple(self._faults),
        )

    def _leave_out(self, path: str, fault: str) -> None:
        self._faults[f"the host's {path if path.isprintable() else quoted(path)} is left out: {fault}"] = None

    def _see(self, path: str) -> None:
        self._places.setdefault(path, identity(self._host, path))

    def _version_of(self, kind: str, path: str) -> str:
        if kind == "module":
            path = f"/sys/module/{path.replace('-', '_')}/version"
        elif kind != "file":
            return path
        data = self._texts[path] = self._host.read(path)
        found = next(iter((data or b"").decode("utf-8", "replace").split()), "")
        return "" if vendorrules.fault_of_version(found) else found

    def _existing(self, item: Item, version: str) -> list[str]:
        """The paths that an item means and that can be trusted; what is missing or cannot be is noted."""
        pattern = item.path.replace(vendorrules.VERSION, version)
        is_known = version or vendorrules.VERSION not in item.path
        paths = glob.expanded(pattern, self._names, _MAX_FILES) if is_known else []
        if len(paths) > _MAX_FILES:
            what = f"{self._vendor.file}: {pattern} fits more than {_MAX_FILES} files of this host"
            raise ConfigError(what, "the file's author must name fewer")
        for folder in dict.fromkeys([path.rpartition("/")[0] for path in paths]):
            self._see_down(folder)
        there, found = [path for path in paths if self._host.stat(path) is not None], []
        for path in there:
            if fault := self._fault(path):
                self._leave_out(path, fault)
            else:
                self._see_links(path)
                self._ways.setdefault(path, way(self._host, path))
                found.append(path)
        if not found and item.required:
            self._lacking[f"{item.path} is missing"] = None
        elif not there:
            self._absent[item.path] = None
        return found

    def _fault(self, path: str) -> str:
        """Why it cannot be given: a link of root's own may lead to what no vendor's file may name."""
        source, status = self._host.source(path), self._host.stat(path)
        fault = (source[1] if source else "") or contents.fault(path, status, self._host.roots)
        return fault or vendorrules.fault_of_host_path(self._host.real(path))

    def _names(self, folder: str) -> list[str]:
        """In /usr/lib64 there are thousands: only the folder's time is compared later."""
        self._see(folder)
        return self._host.names(folder)

    def _see_links(self, path: str) -> None:
        """See the folder of each link that leads from `path` to a file: one of them may be led elsewhere."""
        for _ in range(_MAX_LINKS):
            text = self._host.link(path)
            if text is None:
                return
            path = text if text.startswith("/") else f"{path.rpartition('/')[0]}/{text}"
            self._see_down(path.rpartition("/")[0])

    def _see_down(self, folder: str) -> None:
        """See a folder and the way there; for one that is missing the nearest that is there: it may appear in that."""
        self._see(folder or "/")
        while folder and self._places[folder] is None:
            folder = folder.rpartition("/")[0]
            self._see(folder or "/")
        while folder:
            folder = folder.rpartition("/")[0]
            self._ways.setdefault(folder or "/", way(self._host, folder or "/"))

    def _add_file(self, group: str, into: str, path: str) -> None:
        target = f"{into}/{path.rpartition('/')[2]}" if into else path
        # By the path without links: one of them may be led elsewhere after this look.
        real = self._host.real(path)
        status = self._host.stat(real)
        if status and is_folder(status):
            self._add_folder(group, real, target)
        else:
            self._files.setdefault(target, DriverFile(real, target, (group,)))

    def _add_folder(self, group: str, folder: str, target: str) -> None:
        try:
            found = contents.folder_contents(self._host, folder, self._see)
        except contents.TooMuchError as err:
            self._leave_out(folder, str(err))
            return
        # What becomes closed later must not be given.  Each takes a start a microsecond or two: of very many only the
        # names are compared, until the next refresh.
        if len(found.files) <= _MAX_WATCHED:
            self._ways.update(found.files)
        pieces = found.pieces()
        if len(pieces) > _MAX_FILES:
            self._leave_out(folder, f"it cannot be given whole, and has more than {_MAX_FILES} parts")
            return
        told = sorted(found.faults.items())
        for path, fault in told[:_MAX_TOLD]:
            self._leave_out(path, fault)
        if len(told) > _MAX_TOLD:
            self._faults[f"{len(told) - _MAX_TOLD} more things in the host's {folder} are left out"] = None
        whole, links = {*found.folders}, {*found.links}
        for path in pieces:
            at = target + path[len(folder) :]
            if path in links:
                self._links.setdefault(at, self._host.link(path) or "")
            else:
                self._files.setdefault(at, DriverFile(path, at, (group,), path in whole))

    def _add_library(self, group: str, into: str, path: str) -> None:
        """A library, by the file that the path leads to; one for another machine is a file like others."""
        real = self._host.real(path)
        self._see_down(real.rpartition("/")[0])
        identified = elf.identity_of(self._host, real)
        if identified is None:
            self._add_file(group, "", path)
            return
        flags, file, name = ldcache.FLAGS.get(identified[0]), real.rpartition("/")[2], path.rpartition("/")[2]
        soname = identified[1] or file
        if flags is None or flags != self._flags or not soname.isprintable():
            return  # of another architecture or word size: its names are not this machine's
        new = Library(real, file, soname, (file, soname), flags, 64, "", (group,), into)
        known = self._libraries.get((real, into), new)
        self._libraries[real, into] = known._replace(names=tuple(dict.fromkeys([*known.names, name])))

    def _add_needed(self) -> None:
        self._see(proc.LD_SO_CACHE)
        try:
            table = ldcache.parse_cache(self._host.read(proc.LD_SO_CACHE) or b"")
        except ldcache.MalformedCache:
            table = ldcache.Table(b"", 0, b"", [], ())
        waiting = [(it.path, it.capabilities[0]) for it in self._libraries.values()]
        waiting += [(it.path, it.capabilities[0]) for it in self._files.values() if not it.folder]
        known = {name for it in self._libraries.values() for name in (*it.names, it.soname)}
        most = len(known) + _MAX_NEEDED
        while waiting:
            path, group = waiting.pop()
            for name in elf.needs_of(self._host, path):
                if name in known or name.startswith(_BASE) or not name.isprintable():
                    continue
                if len(known) == most:
                    what = f"more than {_MAX_NEEDED} libraries of the host's are needed, and the rest is left out"
                    self._faults[f"{self._vendor.file}: {what}"] = None
                    return
                known.add(name)
                place = self._place_of(name, path.rpartition("/")[0], table)
                if not place:
                    self._faults[f"the host's {path} needs {name}, which the host does not have"] = None
                for it in self._existing(Item(place), "") if place else ():
                    self._add_library(group, "", it)
                    waiting.append((self._host.real(it), group))

    def _place_of(self, name: str, beside: str, table: ldcache.Table) -> str:
        """Where the host's loader finds a library that a file in the folder `beside` needs; "" for nowhere.  What
        cannot be given is not opened, as it may be a device, and hides nothing that can; it is told if it is all.
        """
        wanted = name.encode()
        cached = [table.path(row) for row, called in enumerate(table.names) if called == wanted]
        # What lies there is for some processors, and has a twin for all.
        plain = [path.decode(errors="replace") for path in cached if b"/glibc-hwcaps/" not in path]
        # A vendor's own folder is named in its libraries.
        there = [path for path in (f"{beside}/{name}", *plain) if self._host.stat(path)]
        given = [path for path in there if not self._fault(path)]
        for path in given:
            found = elf.identity_of(self._host, path)
            if found and ldcache.FLAGS.get(found[0]) == self._flags:
                return path
        return "" if given else next(iter(there), "")

    def _is_within(self, target: str, source: str, mounted: dict[str, str]) -> bool:
        """Whether `source` is at `target` anyway, as a folder above that is mounted holds it there."""
        folder = max([it for it in mounted if target.startswith(f"{it}/")], key=len, default="")
        return bool(folder) and self._host.real(f"{mounted[folder]}{target[len(folder) :]}") == source
