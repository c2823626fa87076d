# SPDX-License-Identifier: Apache-2.0
"""udev's events about NVIDIA's devices and modules, and about devices of the kinds that other vendors have.

They come from pyudev.  Without pyudev or udev there are no events, and the caller must look by itself.  Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator

# Of any vendor.
_OF_DEVICES = ("drm", "accel", "infiniband_verbs")
_SUBSYSTEMS = ("pci", "module", *_OF_DEVICES)


def changes(settle: float, interval: float) -> Iterator[str]:
    """Yields the last event, or "" if there was none for `interval` seconds.  Events come in bursts while a driver is
    loaded: one is yielded only after `settle` seconds without another.  ImportError without pyudev, OSError without
    udev.
    """
    import pyudev

    monitor = pyudev.Monitor.from_netlink(pyudev.Context())
    for subsystem in _SUBSYSTEMS:
        monitor.filter_by(subsystem)
    monitor.start()
    while True:
        event = monitor.poll(timeout=interval)
        last = ""
        while event is not None:
            if _concerns_us(event.subsystem, dict(event.properties), event.sys_name):
                last = f"{event.action} {event.sys_name}"
            event = monitor.poll(timeout=settle)
        yield last


def _concerns_us(subsystem: str, properties: dict[str, str], name: str) -> bool:
    if subsystem == "module":
        return name.startswith("nvidia")
    if subsystem == "pci":
        return properties.get("PCI_ID", "").upper().startswith("10DE:")
    return subsystem in _OF_DEVICES
