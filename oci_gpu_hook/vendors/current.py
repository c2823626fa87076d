# SPDX-License-Identifier: Apache-2.0
"""What vendors' files say, and what of it is on this host: what was saved while that is true, else a new look.

A vendor's file that cannot be understood is a fault of its own: it must not stop a container that asks for another.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.vendorrequest import Known
from oci_gpu_hook.request.words import CDI_FOLDERS
from oci_gpu_hook.vendors import folders, vendorinventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_gpu_hook.request.sources import Inputs
    from oci_gpu_hook.vendors.vendor import Vendor
    from oci_gpu_hook.vendors.vendorinventory import Identity, VendorInventory

    FilesNow = tuple[tuple[str, Identity], ...]


def known(root: HostRoot) -> tuple[Known, ...]:
    """One for each of the vendors' files; what is not saved yet is saved if `root` remembers."""
    try:
        now = vendorinventory.files_now(root)
    except ConfigError as err:
        return (Known("", "", folders.ADMINISTRATORS, str(err)),)
    if not now:
        return ()
    found = vendorinventory.read_known(root, now)
    return read_all(root, now if root.remember else None) if found is None else found


def for_container(root: HostRoot, inputs: Inputs) -> tuple[Known, ...]:
    """The same for one container: without the kinds whose CDI names its engine has resolved, or would have.

    An engine that knows CDI finds a spec of that kind on the host; AMD's and Intel's own tools write such specs.
    """
    kinds = {name.partition("=")[0] for name in sources.cdi_names(inputs)}
    return tuple(
        [
            vendor._replace(kind="") if vendor.kind in kinds and _has_spec(root, vendor.kind.encode()) else vendor
            for vendor in known(root)
        ]
    )


def _has_spec(root: HostRoot, kind: bytes) -> bool:
    """Whether a CDI spec of the host may be of this kind."""
    paths = [f"{folder}/{name}" for folder in CDI_FOLDERS for name in root.names(folder)]
    return any([kind in (root.read(path) or b"") for path in paths if path.endswith((".json", ".yaml"))])


def vendor_inventory(root: HostRoot, flag: str, file: str) -> VendorInventory:
    """What a host has of one vendor's; ConfigError if the file cannot be understood."""
    from oci_gpu_hook.vendors import vendorhost

    def describe(see: Callable[[str], None]) -> Vendor:
        see(file)
        return folders.load(root, file)

    return vendorhost.saved_or_new(root, flag, file, describe)


def read_all(root: HostRoot, now: FilesNow | None) -> tuple[Known, ...]:
    """What the files say, without what was saved of them; now: the files as they are, if the answer is to be saved."""
    vendors, errors = folders.load_all(root)
    collisions = folders.collisions(vendors)
    found = (
        *[Known(item.flag, item.kind, item.file, collisions.get(item.flag, "")) for item in vendors],
        # If not even the flag can be read, each container is told that asks for a flag of no other file.
        *[Known(folders.flag_of(root, path), "", path, str(err)) for path, err in errors.items()],
    )
    if now is not None:
        try:
            saved.write(root, vendorinventory.KNOWN, saved.packed(vendorinventory.HEADING, (now, found)))
        except OSError:
            pass  # this start knows either way
    return found
