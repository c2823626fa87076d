# SPDX-License-Identifier: Apache-2.0
"""What this node offers containers, for Node Feature Discovery: labels from values.  Pure.

Ours lie in the namespace that every NFD accepts.  Other vendors' devices are below the vendor's domain, by names that
begin with ours: the vendors' own labellers, such as AMD's, keep theirs there.  What is below nvidia.com is GPU Feature
Discovery's.  Every name and value is one that Kubernetes takes.  Must not look at anything.
"""

from __future__ import annotations

import re

from oci_gpu_hook.node.machine.validationrecord import FAILED, PASSED, STEPS, Validation
from oci_gpu_hook.record import NamedTuple

OURS = "feature.node.kubernetes.io/oci-gpu-hook."

_LONGEST = 63
_NOT_ALLOWED = re.compile(r"[^\sA-Za-z0-9_.-]")
_LONGEST_CLASS = 32
# Kubernetes: what stands before the slash.  A domain, and no name of a single word.
_DOMAIN = re.compile(r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class OtherVendor(NamedTuple):
    """kind: of the vendor's file, ``amd.com/gpu``; number: how many have a name; version: the driver's, or ""."""

    kind: str
    number: int
    version: str


class Host(NamedTuple):
    """driver_version: "" if NVIDIA's driver is not loaded; selinux: the mode of oci_gpu_hook_selinux(8) that it serves,
    or ``disabled``, "" if that is not known; version: ours; unhealthy: how many GPUs are not healthy.
    """

    driver_version: str
    selinux: str
    version: str
    validation: Validation | None
    unhealthy: int = 0
    others: tuple[OtherVendor, ...] = ()


def labels(host: Host) -> dict[str, str]:
    """All labels of a host, by their whole names."""
    named = {OURS + name: value for name, value in _ours(host).items()}
    for other in host.others:
        named.update(_other(other))
    return {name: label_value(value) for name, value in named.items()}


def label_value(words: str) -> str:
    """What Kubernetes takes as a label's value: letters, digits, ``-_.``, 63 at most, a letter or digit at each end."""
    kept = _NOT_ALLOWED.sub("", words)
    return "-".join(kept.split())[:_LONGEST].strip("-_.")


def _other(other: OtherVendor) -> dict[str, str]:
    """By whole names: that devices are here, how many if a request can tell them apart, and the driver's version."""
    domain, _, name = other.kind.partition("/")
    name = label_value(name)[:_LONGEST_CLASS].strip("-_.")
    if not name or not _DOMAIN.fullmatch(domain):
        return {}
    values = {"present": "true", "count": str(other.number or ""), "driver-version": other.version}
    return {f"{domain}/oci-gpu-hook.{name}.{key}": value for key, value in values.items() if value}


def _ours(host: Host) -> dict[str, str]:
    """The hook's version, SELinux, and the last validation, if it was of this driver."""
    values = {"version": host.version, "unhealthy-gpus": str(host.unhealthy or ""), "selinux-mode": host.selinux}
    found = {name: value for name, value in values.items() if value}
    last = host.validation
    if not host.driver_version:
        # It is NVIDIA's driver that is validated.
        return found
    if last is None or last.driver_version != host.driver_version:
        return {**found, "validation": "none"}
    outcomes = {step.name: step.outcome for step in last.steps}
    whole = PASSED if all([outcomes.get(name) == PASSED for name in STEPS]) else "incomplete"
    return {
        **found,
        "validation": FAILED if FAILED in outcomes.values() else whole,
        **{f"validation.{name}": outcome for name, outcome in outcomes.items()},
        "validation.timestamp": str(last.time),
    }
