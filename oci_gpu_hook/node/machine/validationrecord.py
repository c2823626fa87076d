# SPDX-License-Identifier: Apache-2.0
"""The record of this host's last validation, which ``validate`` writes, and what marks the node reads."""

from __future__ import annotations

import json

from oci_gpu_hook.errors import HookError
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import outputfile
from oci_gpu_hook.record import NamedTuple

STEPS = ("driver", "hook", "workload")
PASSED, FAILED, SKIPPED = OUTCOMES = ("passed", "failed", "skipped")

_NAME = "validation.json"
_PATH = f"{statefile.FOLDER}/{_NAME}"


class StepResult(NamedTuple):
    """One step of STEPS; outcome: one of OUTCOMES; why: the sentence of one that has not passed."""

    name: str
    outcome: str
    why: str


class Validation(NamedTuple):
    """time: when it ended, in seconds since 1970; driver_version: "" if there was none."""

    time: int
    driver_version: str
    steps: tuple[StepResult, ...]


def lock(host: HostRoot, seconds: float) -> int:
    """A descriptor; until it is closed no other has one.  HookError if another has it for so long; ApplyError."""
    try:
        with outputfile.explained(_PATH):
            return statefile.lock(host, "validation.lock", seconds)
    except statefile.LockedError as err:
        why = f"another validation has not ended within {seconds:g} seconds"
        raise HookError(why, "try again, or give a longer --timeout") from err


def read_validation(host: HostRoot) -> Validation | None:
    """The last validation since the boot; None if there was none, or where others could have written the record."""
    try:
        document = json.loads(statefile.read_file(host, _NAME) or b"")
        steps = tuple([StepResult(row["name"], row["outcome"], str(row["why"])) for row in document["steps"]])
        if not all([step.name in STEPS and step.outcome in OUTCOMES for step in steps]):
            return None
        return Validation(int(document["time"]), str(document["driver_version"]), steps)
    except (ValueError, TypeError, KeyError):
        return None


def write(host: HostRoot, validation: Validation) -> None:
    """ApplyError if that fails."""
    document = {**validation._asdict(), "steps": [step._asdict() for step in validation.steps]}
    with outputfile.explained(_PATH):
        statefile.write(host, _NAME, json.dumps(document).encode() + b"\n")
