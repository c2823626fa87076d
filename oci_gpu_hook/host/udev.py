# SPDX-License-Identifier: Apache-2.0
"""What udev knows of NVIDIA's devices: the PCI functions that there are, and that something has changed.

Through pyudev, off the fast path.  Without pyudev, or without udev, there is nothing to hear and the caller looks by
himself.  Reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

VENDOR = "10DE"
# PCI class codes (pci.ids): display controllers, and the bridges that NVSwitches are.
_DISPLAY, _BRIDGE = 0x03, 0x06
_SUBSYSTEMS = ("pci", "module", "drm")


class UdevUnavailable(Exception):
    """udev cannot be asked; the sentence says why."""


class PciFunction(NamedTuple):
    """One PCI function of NVIDIA's: address as ``0000:07:00.0``, kind ``gpu``, ``nvswitch`` or ``other``."""

    address: str
    device: str
    kind: str
    driver: str


def functions() -> tuple[PciFunction, ...]:
    """NVIDIA's PCI functions, in the order of their addresses; UdevUnavailable where udev cannot be asked."""
    context = _context()
    found = [
        _function(device.properties)
        for device in context.list_devices(subsystem="pci")
        if device.properties.get("PCI_ID", "").upper().startswith(f"{VENDOR}:")
    ]
    return tuple(sorted(found))


def changes(settle: float, interval: float) -> Iterator[str]:
    """A word for each moment at which to look again: what udev told, or "" where only `interval` seconds are over.

    Events come in bursts while a driver is loaded: nothing is told until `settle` seconds have passed without one.
    """
    import pyudev

    monitor = pyudev.Monitor.from_netlink(_context())
    for subsystem in _SUBSYSTEMS:
        monitor.filter_by(subsystem)
    monitor.start()
    while True:
        event = monitor.poll(timeout=interval)
        told = ""
        while event is not None:
            if concerns(event.subsystem, dict(event.properties), event.sys_name):
                told = f"{event.action} {event.sys_name}"
            event = monitor.poll(timeout=settle)
        yield told


def concerns(subsystem: str, properties: dict[str, str], name: str) -> bool:
    """Whether an event is about NVIDIA's devices or modules."""
    if subsystem == "module":
        return name.startswith("nvidia")
    if subsystem == "pci":
        return properties.get("PCI_ID", "").upper().startswith(f"{VENDOR}:")
    return subsystem == "drm"


def _function(properties: Any) -> PciFunction:
    code = int(properties.get("PCI_CLASS", "0"), 16) >> 16
    kind = {_DISPLAY: "gpu", _BRIDGE: "nvswitch"}.get(code, "other")
    return PciFunction(
        properties.get("PCI_SLOT_NAME", ""),
        properties.get("PCI_ID", "").partition(":")[2].lower(),
        kind,
        properties.get("DRIVER", ""),
    )


def _context() -> Any:
    try:
        import pyudev

        return pyudev.Context()
    except (ImportError, OSError) as err:
        raise UdevUnavailable(f"udev cannot be asked: {err}") from err
