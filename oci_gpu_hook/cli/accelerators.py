# SPDX-License-Identifier: Apache-2.0
"""All accelerators of a host: NVIDIA's driver, or a Jetson or WSL 2 in its place, and other vendors' hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oci_gpu_hook.cli import onhost, render
from oci_gpu_hook.driver import inventory as saved_inventory
from oci_gpu_hook.driver import survey
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.node.gpus import present
from oci_gpu_hook.vendors import platform

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.node.gpus.present import Present, WrongFile
    from oci_gpu_hook.vendors.vendorhost import VendorState

# The inventory of a host without NVIDIA's driver.
NOTHING = DriverInventory("", "", (), (), None, None, (), "", (), (), (), (), (), ())


def of_server(root: HostRoot, driver_root: str, families: tuple[str, ...]) -> DriverInventory:
    """What NVIDIA's driver has, with the nodes of these families; what only NVML knows is of the saved inventory.

    Nothing is saved.  DriverError without a driver, and on a Jetson or WSL 2.
    """
    onhost.check_is_server(root)
    return saved_inventory.with_nodes(root, survey.current(root, driver_root), families, driver_root=driver_root)


class Found(NamedTuple):
    """What a host has.

    nvidia: what NVIDIA's driver has, None if `error` says why nothing; platform: a word of `vendors.platform`, and
    the file that proves it; instead: what a Jetson or WSL 2 has, as a document and as text; vendors: those of which
    there is anything, each with what shows that its hardware is here.
    """

    nvidia: DriverInventory | None
    error: DriverError | None
    platform: tuple[str, str]
    instead: tuple[dict[str, object], str] | None
    vendors: tuple[tuple[VendorState, str], ...]
    wrong: tuple[WrongFile, ...]

    def here(self) -> tuple[VendorState, ...]:
        """The vendors whose hardware is here."""
        return tuple([item for item, hardware in self.vendors if hardware])


def look(root: HostRoot, others: Present, nvidia: Callable[[], DriverInventory]) -> Found:
    """What there is; DriverError if there is nothing at all.

    others: what other vendors have; nvidia: gives the inventory of NVIDIA's driver.
    """
    vendors = tuple(
        [(item, present.hardware(root, item)) for item in others.vendors if present.has_anything(root, item)]
    )
    found = Found(None, None, platform.prove(root), None, vendors, others.wrong)
    try:
        instead = onhost.of_platform(root)
        return found._replace(instead=instead) if instead else found._replace(nvidia=nvidia())
    except DriverError as err:
        # A vendor's file that is wrong may be that of the hardware that is here.
        if not found.here() and not found.wrong:
            raise
        return found._replace(error=err)


def document(found: Found) -> dict[str, Any]:
    """The host for JSON: but for a Jetson and WSL 2, the keys of NVIDIA's inventory are there in any case."""
    kind, proof = found.platform
    unknown = (found.error.message,) if found.error else ()
    inventory = found.nvidia or NOTHING._replace(unknown=unknown)
    return {
        "platform": {"kind": kind, "proof": proof},
        **(found.instead[0] if found.instead else render.inventory_document(inventory)),
        "vendors": [onhost.vendor_document(item, hardware) for item, hardware in found.vendors],
        "wrong": [{"file": item.file, "fault": item.fault} for item in found.wrong],
    }


def text(found: Found) -> str:
    """The host for people."""
    lines = [f"no driver of NVIDIA's: {found.error.message}"] if found.error else []
    if found.nvidia:
        lines = [render.inventory_text(found.nvidia)]
    elif found.instead:
        lines = [found.instead[1]]
    for item in found.here():
        lines += ["", *onhost.vendor_text(item)]
    unused = [f"  {onhost.summary(item)}" for item, hardware in found.vendors if not hardware]
    if unused:
        lines += ["", "files of vendors without hardware here", *unused]
    return "\n".join([*lines, *wrong_lines(found.wrong)])


def wrong_lines(wrong: tuple[WrongFile, ...]) -> list[str]:
    """The vendors' files that cannot be served, for people."""
    lines = [f"  {item.fault}" for item in wrong]
    return ["", "vendors' files that cannot be served", *lines] if lines else []
