# SPDX-License-Identifier: Apache-2.0
"""One rule of a device cgroup, as a value and as cgroup v1 writes it.  Pure."""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple


class DeviceRule(NamedTuple):
    """As in ``linux.resources.devices`` (config-linux.md); type: also ``a`` for both; major, minor: None for any."""

    type: str
    major: int | None
    minor: int | None
    access: str
    allow: bool = True


def text_of(rule: DeviceRule) -> str:
    """In the format of devices.allow (Documentation/admin-guide/cgroup-v1/devices.rst)."""
    major, minor = ["*" if number is None else number for number in (rule.major, rule.minor)]
    return f"{rule.type} {major}:{minor} {rule.access}"
