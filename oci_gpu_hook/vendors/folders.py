# SPDX-License-Identifier: Apache-2.0
"""The vendors' files of a host: where they lie, which of them holds, what they say, and what is wrong with them.

What they say is saved while they are the same.  One that cannot be understood must not stop a container that asks for
another.  Reads no file that others than root could have made.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import read_source
from oci_gpu_hook.request.selectors import KnownVendor
from oci_gpu_hook.request.words import CDI_FOLDERS, is_flag
from oci_gpu_hook.vendors.vendorinventory import HEADING, LARGEST_FILE, identity, way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oci_gpu_hook.request.sources import Inputs
    from oci_gpu_hook.vendors.vendorinventory import Identity, See, Vendor

    FilesNow = tuple[tuple[str, Identity], ...]

# A file in one takes the place of one of the same name in a later one, as in systemd's folders.  The second is that of
# `make install PREFIX=/usr/local`, and so of nodes whose /usr is read-only.
ADMINISTRATORS, LOCAL, PACKAGES = FOLDERS = (
    "/etc/oci-gpu-hook/vendors",
    "/usr/local/share/oci-gpu-hook/vendors",
    "/usr/share/oci-gpu-hook/vendors",
)
# These, and the folders above them: who may write to one could put a file there.
WAYS = tuple(dict.fromkeys([it.rsplit("/", up)[0] for it in FOLDERS for up in range(it.count("/") - 1, -1, -1)]))
SUFFIX, MAX_FILES = ".json", 256
_KNOWN = "vendors"
_REMEDY = "the administrator must fix it"


def list_files(host: HostRoot) -> tuple[str, ...]:
    """The paths of those that hold, sorted by name; ConfigError if there are too many."""
    found = _by_name(host)
    if len(found) > MAX_FILES:
        raise ConfigError(f"{' and '.join(FOLDERS)} have more than {MAX_FILES} vendors' files", _REMEDY)
    return tuple([found[name][0] for name in sorted(found)])


def replaced(host: HostRoot) -> dict[str, str]:
    """The file whose place another has taken, by that other's path; of several the one that would hold next."""
    return {paths[0]: paths[1] for paths in _by_name(host).values() if len(paths) > 1}


def load(host: HostRoot, path: str) -> Vendor:
    """What the file at `path` says; ConfigError if it is wrong, or not only root's."""
    # A start that finds everything saved reads no such file.
    from oci_gpu_hook.vendors import vendorfile

    return vendorfile.parse_vendor(content(host, path), path)


def flag_of(host: HostRoot, path: str) -> str:
    try:
        document = jsontext.loads(content(host, path))
    except (ConfigError, ValueError):
        return ""
    flag = document.get("activation_flag") if isinstance(document, dict) else None
    return flag if isinstance(flag, str) and is_flag(flag) else ""


def load_all(host: HostRoot) -> tuple[tuple[Vendor, ...], dict[str, ConfigError]]:
    vendors, errors = [], {}
    for path in list_files(host):
        try:
            vendors.append(load(host, path))
        except ConfigError as err:
            errors[path] = err
    return tuple(vendors), errors


def collisions(vendors: Sequence[Vendor]) -> dict[str, str]:
    found: dict[str, str] = {}
    for vendor in vendors:
        for word, what in ((vendor.kind, "kind"), (vendor.flag, "flag")):
            files = sorted([other.file for other in vendors if word and word in (other.flag, other.kind)])
            if len(files) > 1:
                found[vendor.flag] = f"{word} is the {what} of {' and of '.join(files)}"
    return found


def content(host: HostRoot, path: str) -> bytes:
    """The bytes of the file at `path`; ConfigError if they cannot be read, or are not only root's."""
    data = read_source(host.fd, path, LARGEST_FILE)
    if data is not None:
        return data
    if fault := host.openness(path):
        hint = "what root alone may write is read: 'chown root' and 'chmod go-w' make it so"
        raise ConfigError(f"cannot read {path}: {fault}", hint)
    raise ConfigError(f"cannot read {path}: it is not a regular file of at most {LARGEST_FILE >> 20} MiB", _REMEDY)


def files_now(host: HostRoot) -> FilesNow:
    files = [(path, identity(host, path)) for path in list_files(host)]
    return (*files, *[(path, way(host, path)) for path in WAYS if files])


def read_known(host: HostRoot, now: FilesNow) -> tuple[KnownVendor, ...] | None:
    try:
        files, rows = statefile.load(host, _KNOWN, HEADING)
        return statefile.records(KnownVendor, rows) if files == now else None
    except (ValueError, TypeError):
        return None


def known(host: HostRoot) -> tuple[KnownVendor, ...]:
    """One for each file; what is not saved yet is saved if `host` remembers."""
    try:
        now = files_now(host)
    except ConfigError as err:
        return (KnownVendor("", "", ADMINISTRATORS, str(err)),)
    if not now:
        return ()
    found = read_known(host, now)
    return read_all(host, now if host.remember else None) if found is None else found


def for_container(host: HostRoot, inputs: Inputs) -> tuple[KnownVendor, ...]:
    """The same without the kinds whose CDI names the container's engine has resolved, or would have, by a spec on the
    host: AMD's and Intel's own tools write such specs.
    """
    kinds, found = {name.partition("=")[0] for name in inputs.cdi}, known(host)
    theirs = [it for it in found if it.kind in kinds and _has_spec(host, it.kind.encode())]
    return tuple([it._replace(kind="") if it in theirs else it for it in found])


def _has_spec(host: HostRoot, kind: bytes) -> bool:
    paths = [f"{folder}/{name}" for folder in CDI_FOLDERS for name in host.names(folder)]
    return any([kind in (host.read(path) or b"") for path in paths if path.endswith((".json", ".yaml"))])


def vendor_inventory(host: HostRoot, flag: str, file: str) -> Vendor:
    """What a host has of one vendor's; ConfigError if the file cannot be understood."""
    from oci_gpu_hook.vendors import vendorhost

    def describe(see: See) -> Vendor:
        see(file)
        return load(host, file)

    return vendorhost.saved_or_new(host, flag, file, describe)


def read_all(host: HostRoot, now: FilesNow | None) -> tuple[KnownVendor, ...]:
    """What the files say, without what was saved of them; now: the files as they are, if the answer is to be saved."""
    vendors, errors = load_all(host)
    faults = collisions(vendors)
    found = (
        *[KnownVendor(item.flag, item.kind, item.file, faults.get(item.flag, "")) for item in vendors],
        # If not even the flag can be read, each container is told that asks for a flag of no other file.
        *[KnownVendor(flag_of(host, path), "", path, str(err)) for path, err in errors.items()],
    )
    if now is not None:
        try:
            statefile.save(host, _KNOWN, HEADING, (now, found))
        except OSError:
            pass  # this start knows either way
    return found


def _by_name(host: HostRoot) -> dict[str, list[str]]:
    """The paths of the files of each name, that which holds first."""
    found: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for name in host.names(folder):
            if name.endswith(SUFFIX) and name[0] != ".":
                found.setdefault(name, []).append(f"{folder}/{name}")
    return found
