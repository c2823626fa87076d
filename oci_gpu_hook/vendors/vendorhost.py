# SPDX-License-Identifier: Apache-2.0
"""One vendor's hardware and driver on this host as they are now: what was saved, and what is looked up at each start.

Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_socket
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.vendors import allowed, devices, vendorinventory
from oci_gpu_hook.vendors.devices import Devices
from oci_gpu_hook.vendors.vendorinventory import VendorInventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_gpu_hook.driver.nodes import DeviceNode
    from oci_gpu_hook.vendors.vendor import Vendor
    from oci_gpu_hook.vendors.vendorinventory import Identity

_MOST_DIGITS = 9


class VendorState(NamedTuple):
    """What can change while the saved inventory stays true, beside it.

    sockets: those that are there, each with its group; unmet: a sentence for each thing that the kernel lacks; faults:
    the inventory's, and a sentence for each socket that others than root could have made.
    """

    inventory: VendorInventory
    devices: Devices
    sockets: tuple[tuple[str, str], ...]
    unmet: tuple[str, ...]
    faults: tuple[str, ...]

    def nodes(self) -> tuple[DeviceNode, ...]:
        """All device nodes that are there."""
        of_devices = [pair for device in self.devices.devices for pair in device.nodes]
        return tuple([node for node, _ in (*self.devices.common, *of_devices)])

    def lacking(self) -> list[str]:
        """A sentence for each thing that the vendor's file requires and the host lacks."""
        patterns = [f"{pattern} is missing" for pattern in self.devices.lacking]
        return [*self.unmet, *self.inventory.lacking, *patterns]


def saved_or_new(
    root: HostRoot, name: str, file: str, describe: Callable[[Callable[[str], None]], Vendor]
) -> VendorInventory:
    """The inventory that is saved under `name` while it is true, else a new one, which is saved if `root` remembers.

    describe: gives the vendor of `file`, and says of each file and folder that it is about to read it.
    """
    found = vendorinventory.read_saved(root, name, file)
    if found is not None:
        return found
    from oci_gpu_hook.vendors import vendorsurvey

    places: dict[str, Identity] = {}

    def see(path: str) -> None:
        places.setdefault(path, vendorinventory.identity(root, path))

    survey = vendorsurvey.Survey(root, describe(see), places)
    if root.remember:
        try:
            survey.save(name)
        except OSError:
            pass  # this start has its inventory either way
    return survey.found


def look(root: HostRoot, inventory: VendorInventory) -> VendorState:
    """What is there now."""
    sockets, faults = [], []
    for path, group in inventory.sockets:
        found, status = root.source(path), root.stat(path)
        if found is None or status is None:
            continue
        # A link of root's own may lead to what no vendor's file may name.
        fault = found[1] or allowed.host_path(root.real(path)) or ("" if is_socket(status) else "it is no socket")
        if fault:
            faults.append(f"the host's {path} is left out: {fault}")
        else:
            sockets.append((path, group))
    unloaded = [module for module in inventory.modules if not is_loaded(root, module)]
    unmet = [f"the kernel's module {module} is not loaded" for module in unloaded]
    release = posix.uname().release
    if inventory.kernel and _numbers(release) < _numbers(inventory.kernel):
        unmet.insert(0, f"kernel {inventory.kernel} (this is {release})")
    faults[:0] = inventory.faults
    return VendorState(inventory, devices.look(root, inventory), tuple(sockets), tuple(unmet), tuple(faults))


def is_loaded(root: HostRoot, module: str) -> bool:
    """Whether the kernel has a module; one that is built in is seen, too, if it has parameters or a version."""
    return root.stat(f"/sys/module/{module.replace('-', '_')}") is not None


def _numbers(release: str) -> tuple[int, ...]:
    """5 and 14 of ``5.14.0-503.el9.x86_64``."""
    found = []
    for part in release.split("-", maxsplit=1)[0].split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits or len(digits) > _MOST_DIGITS:
            break
        found.append(int(digits))
    # 6.12-rc1 and 6.12 are 6.12.0.
    return (*found, 0, 0, 0)[:3]
