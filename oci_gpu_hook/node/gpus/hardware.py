# SPDX-License-Identifier: Apache-2.0
"""All vendors of a host: what of each is here, and which files are wrong; such a file does not hide the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from oci_gpu_hook.driver import nodes, proc, survey
from oci_gpu_hook.driver.inventory import DriverInventory, of_this_host
from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.vendors import folders, vendorhost, vendorinventory, vendorsurvey
from oci_gpu_hook.vendors.vendorhost import VendorState
from oci_gpu_hook.vendors.vendorinventory import Vendor

_NVIDIA = "10de"
# Of classes of PCI functions (pci.ids): displays, co-processors, accelerators.  A vendor has bridges and sensors, too.
_CLASSES = ("03", "0b40", "12")


class WrongFile(NamedTuple):
    """A vendor's file that cannot be served; is_open: because others than root could have made it."""

    file: str
    fault: str
    is_open: bool = False


class FoundVendors(NamedTuple):
    """What of vendors' hardware and software a host has, and their files that cannot be served."""

    vendors: tuple[VendorState, ...]
    wrong: tuple[WrongFile, ...]


def nvidia(host: HostRoot, driver_root: str) -> DriverInventory:
    """The saved inventory while it is true, as only that has NVML's answer, else a new one; nothing is saved."""
    return of_this_host(host, survey.read_true(host, driver_root) or survey.survey(host, driver_root))


def find_vendors(host: HostRoot, *, saved_only: bool = False) -> FoundVendors:
    """What is here now; nothing is saved.  saved_only: only of those whose saved inventory is still true."""

    def inventory(vendor: Vendor) -> Vendor | None:
        known = vendorinventory.read_saved(host, vendor.flag, vendor.file)
        return known if known or saved_only else vendorsurvey.Survey(host, vendor, {}).found

    return _look(host, inventory)


def refresh(host: HostRoot) -> FoundVendors:
    """What is here, found by a new survey and saved for the next starts; OSError if nothing can be saved."""
    now = _files_now(host)

    def inventory(vendor: Vendor) -> Vendor:
        survey = vendorsurvey.Survey(host, vendor, {vendor.file: dict(now).get(vendor.file)})
        survey.save(vendor.flag)
        return survey.found

    found = _look(host, inventory)
    if now:
        folders.read_all(host, now)
    return found


def is_saved(host: HostRoot) -> bool:
    now = _files_now(host)
    known = folders.read_known(host, now) if now else ()
    return known is not None and all(
        [vendorinventory.read_saved(host, item.flag, item.file) is not None for item in known if not item.fault]
    )


def _files_now(host: HostRoot) -> folders.FilesNow:
    try:
        return folders.files_now(host)
    except ConfigError:
        return ()  # `_look` says it


def _look(host: HostRoot, inventory: Callable[[Vendor], Vendor | None]) -> FoundVendors:
    try:
        vendors, errors = folders.load_all(host)
    except ConfigError as err:
        return FoundVendors((), (WrongFile(folders.ADMINISTRATORS, err.message),))
    wrong = [WrongFile(path, err.message, bool(host.openness(path))) for path, err in errors.items()]
    collisions, found = folders.collisions(vendors), []
    for vendor in vendors:
        if vendor.flag in collisions:
            wrong.append(WrongFile(vendor.file, collisions[vendor.flag]))
            continue
        try:
            its = inventory(vendor)
            if its is not None:
                found.append(vendorhost.vendor_state(host, its))
        except ConfigError as err:
            wrong.append(WrongFile(vendor.file, err.message))
    return FoundVendors(tuple(found), tuple(wrong))


def proven(host: HostRoot) -> list[VendorState]:
    return [it for it in find_vendors(host).vendors if proof(host, it)]


def proof(host: HostRoot, found: VendorState) -> str:
    """A node or a PCI function, which shows that the vendor's hardware is here, as no library does; "" for nothing.

    Where its file requires nodes, one of those must be here: /dev/infiniband/rdma_cm comes with a module alone.
    """
    patterns = found.inventory.patterns
    required = [it for it in patterns if it.required]
    paths = [node.path for node in found.nodes()] if len(found.unmatched) < len(required) or not required else []
    return paths[0] if paths else _on_pci(host, {pci for it in patterns for pci in it.pci})


def _on_pci(host: HostRoot, wanted: Set[str]) -> str:
    """A function on PCI of one of these vendors, or vendors and devices, that computes; "" for none."""
    for address in host.names(vendorhost.PCI) if wanted else ():
        vendor, device, kind = vendorhost.pci_ids(host, address, "vendor", "device", "class")
        if f"{vendor}:{device}" in wanted or (vendor in wanted and kind.startswith(_CLASSES)):
            return f"PCI {address}"
    return ""


def expects_nvidia(host: HostRoot) -> bool:
    """Whether a GPU of NVIDIA's is here, or was: then its driver's absence is a fault, whatever else there is."""
    return any([host.stat(path) for path in (proc.VERSION, nodes.CONTROL)]) or bool(_on_pci(host, {_NVIDIA}))


def rdma_adapters(host: HostRoot) -> list[str]:
    """NVIDIA's own adapters of InfiniBand and RoCE, such as ``mlx5_0``: those that can reach a GPU's memory."""
    devices = [f"{vendorhost.PCI}/{address}" for address in host.names(vendorhost.PCI)]
    ours = [path for path in devices if (host.link(f"{path}/driver") or "").endswith("/mlx5_core")]
    return [name for path in ours for name in host.names(f"{path}/infiniband")]


def udev_events(settle: float, interval: float) -> Iterator[None]:
    """Of modules, PCI functions and accelerators; one as well if there was none for `interval` seconds.

    They come in bursts while a driver loads: one is yielded after `settle` seconds without another.  ImportError
    without pyudev, OSError without udev: the caller must look by itself.
    """
    import pyudev

    monitor = pyudev.Monitor.from_netlink(pyudev.Context())
    for subsystem in ("pci", "module", "drm", "accel", "infiniband_verbs"):
        monitor.filter_by(subsystem)
    monitor.start()
    while True:
        seconds = interval
        while monitor.poll(timeout=seconds) is not None:
            seconds = settle
        yield
