# SPDX-License-Identifier: Apache-2.0
"""udev's events about modules, PCI functions and accelerators, by pyudev.  Reads only."""

from __future__ import annotations

from collections.abc import Iterator


def changes(settle: float, interval: float) -> Iterator[str]:
    """Yields the last event, or "" if there was none for `interval` seconds.  Events come in bursts while a driver is
    loaded: one is yielded only after `settle` seconds without another.  ImportError without pyudev, OSError without
    udev: the caller must look by itself.
    """
    import pyudev

    monitor = pyudev.Monitor.from_netlink(pyudev.Context())
    for subsystem in ("pci", "module", "drm", "accel", "infiniband_verbs"):
        monitor.filter_by(subsystem)
    monitor.start()
    while True:
        event = monitor.poll(timeout=interval)
        last = ""
        while event is not None:
            last = f"{event.action} {event.sys_name}"
            event = monitor.poll(timeout=settle)
        yield last
