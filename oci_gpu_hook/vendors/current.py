# SPDX-License-Identifier: Apache-2.0
"""What vendors' files say, and what of it is on this host: what was saved while that is true, else found anew.

A vendor's file that cannot be understood is a fault of its own: it must not stop a container that asks for another.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request.vendors import Known
from oci_gpu_hook.vendors import folders, inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.vendors.inventory import VendorInventory


def known(root: HostRoot, *, remember: bool) -> tuple[Known, ...]:
    """One for each of the vendors' files; remember: whether what is found anew is saved."""
    try:
        now = inventory.files_now(root)
    except ConfigError as err:
        return (Known("", "", folders.ADMINISTRATORS, str(err)),)
    if not now:
        return ()
    found = inventory.read_known(root, now)
    if found is None:
        found = _known_anew(root)
        if remember:
            try:
                values = (now, found)
                saved.write(root, inventory.KNOWN, saved.packed(inventory.HEADING, values))
            except OSError:
                pass  # this start knows either way
    return found


def vendor_inventory(root: HostRoot, flag: str, file: str, *, remember: bool) -> VendorInventory:
    """What a host has of one vendor's; ConfigError where the file cannot be understood."""
    found = inventory.read_saved(root, flag, file)
    if found is not None:
        return found
    from oci_gpu_hook.vendors import survey

    vendor = folders.load(root, file)
    return survey.anew(root, vendor, flag) if remember else survey.survey(root, vendor)


def _known_anew(root: HostRoot) -> tuple[Known, ...]:
    # What cannot be understood has no flag: whoever asks for one that nobody has is told.
    vendors, faults = folders.load_all(root)
    collisions = folders.collisions(vendors)
    found = [
        Known(vendor.flag, vendor.kind, vendor.file, collisions.get(vendor.flag, ""))
        for vendor in vendors
    ]
    return (*found, *[Known("", "", "", str(fault)) for fault in faults])
