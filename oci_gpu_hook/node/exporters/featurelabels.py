# SPDX-License-Identifier: Apache-2.0
"""What this node offers containers, for Node Feature Discovery: labels from values.  Pure.

Ours lie in the namespace that every NFD accepts.  Other vendors' devices are below the vendor's domain, by names that
begin with ours: the vendors' own labellers, such as AMD's, keep theirs there.  What is below nvidia.com is GPU Feature
Discovery's.  Every name and value is one that Kubernetes takes.  Must not look at anything.
"""

from __future__ import annotations

import re

from oci_gpu_hook.node.machine.validationrecord import FAILED, PASSED, STEPS, Validation

OURS = "feature.node.kubernetes.io/oci-gpu-hook."

_LONGEST = 63
_NOT_ALLOWED = re.compile(r"[^\sA-Za-z0-9_.-]")
_LONGEST_CLASS = 32
# Kubernetes: what stands before the slash.  A domain, and no name of a single word.
_DOMAIN = re.compile(r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Of a vendor's file its kind, ``amd.com/gpu``; how many devices have a name; and the driver's version, or "".
OtherVendor = tuple[str, int, str]


def labels(
    driver_version: str,
    selinux: str,
    version: str,
    validation: Validation | None,
    unhealthy: int = 0,
    others: tuple[OtherVendor, ...] = (),
) -> dict[str, str]:
    """All labels of a host, by their whole names.

    driver_version: "" if NVIDIA's driver is not loaded; selinux: the mode of oci_gpu_hook_selinux(8) that it serves, or
    ``disabled``, "" if that is not known; version: ours; unhealthy: how many GPUs are not healthy.
    """
    values = {"version": version, "unhealthy-gpus": str(unhealthy or ""), "selinux-mode": selinux}
    ours = {name: value for name, value in values.items() if value}
    if driver_version:
        # It is NVIDIA's driver that is validated.
        is_its = validation and validation.driver_version == driver_version
        ours.update(_validated(validation) if validation and is_its else {"validation": "none"})
    named = {OURS + name: value for name, value in ours.items()}
    for other in others:
        named.update(_other(*other))
    return {name: label_value(value) for name, value in named.items()}


def label_value(words: str) -> str:
    """What Kubernetes takes as a label's value: letters, digits, ``-_.``, 63 at most, a letter or digit at each end."""
    kept = _NOT_ALLOWED.sub("", words)
    return "-".join(kept.split())[:_LONGEST].strip("-_.")


def _other(kind: str, number: int, version: str) -> dict[str, str]:
    """By whole names: that devices are here, how many if a request can tell them apart, and the driver's version."""
    domain, _, name = kind.partition("/")
    name = label_value(name)[:_LONGEST_CLASS].strip("-_.")
    if not name or not _DOMAIN.fullmatch(domain):
        return {}
    values = {"present": "true", "count": str(number or ""), "driver-version": version}
    return {f"{domain}/oci-gpu-hook.{name}.{key}": value for key, value in values.items() if value}


def _validated(last: Validation) -> dict[str, str]:
    outcomes = {step.name: step.outcome for step in last.steps}
    whole = PASSED if all([outcomes.get(name) == PASSED for name in STEPS]) else "incomplete"
    return {
        "validation": FAILED if FAILED in outcomes.values() else whole,
        **{f"validation.{name}": outcome for name, outcome in outcomes.items()},
        "validation.timestamp": str(last.time),
    }
