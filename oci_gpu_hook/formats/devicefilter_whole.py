# SPDX-License-Identifier: Apache-2.0
"""A whole device filter, to replace a program whose instructions the kernel does not show.  Pure."""

from __future__ import annotations

from oci_gpu_hook.formats.devicefilter import (
    HALF,
    JEQ32_K,
    SCRATCH,
    TYPES,
    access,
    allow_whole,
    can_match,
    insn,
    load_request,
    major,
    masked_request,
    minor,
    skip_unless_equal,
    verdict,
)
from oci_gpu_hook.formats.devicerule import DeviceRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def runtime_defaults() -> tuple[DeviceRule, ...]:
    """What the OCI runtimes allow whatever config.json says.

    That is mknod of any device; and access to null, zero, full, random, urandom, tty, ptmx and the ptys.  Only what
    runc and crun have in common is here, so that a rebuilt program allows nothing that the runtime denied: runc also
    allows /dev/net/tun (10:200; not 1.2.0 to 1.2.3), and crun /dev/console (5:1; in a container it is a pty).
    """
    numbers = ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None))
    return (
        DeviceRule("c", None, None, "m"),
        DeviceRule("b", None, None, "m"),
        *[DeviceRule("c", first, second, "rwm") for first, second in numbers],
    )


def program(rules: Iterable[DeviceRule]) -> bytes:
    """A whole filter, with the meaning of linux.resources.devices (runtime-spec, config-linux.md).

    The last rule that fits decides: one that allows fits a request that is wholly within its access, one that denies
    fits a request for any of its access.  A request that no rule fits is denied.
    """
    blocks = [load_request()]
    for rule in reversed(tuple(rules)):
        if can_match(rule):
            blocks.append(allow_whole(rule) if rule.allow else _deny_any(rule))
    return b"".join([*blocks, verdict(0)])


def _deny_any(rule: DeviceRule) -> bytes:
    """Return 0 if the request has any of the rule's access."""
    denied = verdict(0)
    body = masked_request(access(rule) << 16)
    body += insn(JEQ32_K, SCRATCH, offset=len(denied) // 8, immediate=0) + denied
    body = major(rule, minor(rule, body))
    if rule.type == "a":
        return body
    return masked_request(HALF) + skip_unless_equal(SCRATCH, TYPES[rule.type], body)
