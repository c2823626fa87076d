# SPDX-License-Identifier: Apache-2.0
"""What is asked of an enforcing host besides its containers: the commands of units and people.

Runs in the domain of services, as units do.
Each question gives what is wrong with what it saw.  Must not start a container but by `validate`.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
from contextlib import suppress
from typing import NamedTuple

from tests.gpunode import catalogue

from ..files import write
from . import policy
from .kubelet import FEATURES
from .mounting import label, set_label

ENGINE_CONTEXT = f"system_u:system_r:{policy.HERE.engine}:s0"
HOOK = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
PROGRAM = "/usr/bin/oci-gpu-hook"
INVENTORY = "/run/oci-gpu-hook/inventory"
STATE_CONTEXT = "system_u:object_r:oci_gpu_hook_state_t:s0"
SPEC = "/run/cdi/oci-gpu-hook.yaml"

ENTERED = frozenset({("oci_gpu_hook_entry_t", "oci_gpu_hook_t")})

# What `selinux status` must answer here: type, nodes, whether they can be used.
USES = {
    ("container_t", "made by the hook", True),
    ("container_t", "bound from the host", False),
    ("nvidia_container_t", "made by the hook", True),
    ("nvidia_container_t", "bound from the host", True),
    ("spc_t", "made by the hook", True),
    ("spc_t", "bound from the host", True),
}


class Answer(NamedTuple):
    """What was wrong; which changes of domain the kernel's log must have, source and target; and which denials.

    denied: as a row has them, "DOMAIN TYPE:CLASS PERMISSION"; if there are none, none may be there.
    """

    wrong: list[str]
    entered: frozenset[tuple[str, str]] = frozenset()
    denied: frozenset[str] = frozenset()


def _run(*words: str) -> tuple[str, list[str]]:
    done = subprocess.run([PROGRAM, *words], check=False, capture_output=True, text=True)
    return done.stdout, [done.stderr.strip()] if done.returncode else []


def status() -> Answer:
    """The command line's own view of this policy, by the real libselinux."""
    told, wrong = _run("selinux", "status", "--json")
    if not wrong:
        document = json.loads(told)
        uses = {(use["type"], use["nodes"], use["can"]) for use in document["uses"]}
        states = {module["state"] for module in document["modules"]}
        if uses != USES:
            wrong.append(f"uses are {sorted(uses)}")
        if states != {"installed"} or not document["enforcing"]:
            wrong.append(f"modules are {sorted(states)}")
    return Answer(wrong)


def refresh() -> Answer:
    """`inventory refresh`, as its unit starts it: again, and in the place of the hook's."""
    labels = []
    wrong: list[str] = []
    for _ in range(2):
        wrong += _run("inventory", "refresh")[1]
        labels.append(label(INVENTORY))
        if os.path.exists(INVENTORY) and len(labels) == 1:
            os.unlink(INVENTORY)
    if labels != [STATE_CONTEXT] * 2:
        wrong.append(f"{INVENTORY} is {labels}")
    return Answer(wrong)


def generate() -> Answer:
    """`cdi generate`, as its unit starts it."""
    os.makedirs(os.path.dirname(SPEC), exist_ok=True)
    _, wrong = _run("cdi", "generate", "--output", SPEC)
    if not wrong and not os.path.getsize(SPEC):
        wrong.append(f"{SPEC} is empty")
    return Answer(wrong)


def validate() -> Answer:
    """`validate hook`, as its unit: its container is made, and the hook's domains do their work there."""
    told, wrong = _run("validate", "hook", "--runtime", "/usr/lib/e2e/bin/simulated-runc")
    return Answer(wrong + (told.splitlines() if not told.endswith("hook: passed\n") else []), ENTERED)


def relabel() -> Answer:
    """`selinux relabel`: what lies in folders that a user or an agent may write to, and no file of the host's.

    By a link and by a second name: tests/hostile/test_relabelling.py has them exchanged meanwhile.
    """
    old = "system_u:object_r:etc_t:s0"
    wrong: list[str] = []
    secret = "/etc/relabel-secret"
    for folder, kind in ((FEATURES, "nvidia_feature_t"), (catalogue.MPS_FOLDER, "nvidia_mps_t")):
        file, link, second = [f"{folder}/relabel-{name}" for name in ("file", "link", "second")]
        for path in (secret, file):
            write(path, "")
        os.symlink(secret, link)
        with suppress(OSError):  # on another filesystem it has no second name
            os.link(secret, second)
        for path in (secret, file, folder):
            set_label(path, old)
        wrong += _run("selinux", "relabel")[1]
        labels = {path: label(path).split(":")[2] for path in (folder, file, secret)}
        wrong += [] if labels == {folder: kind, file: kind, secret: "etc_t"} else [str(labels)]
        for path in (secret, file, link, second):
            with suppress(FileNotFoundError):
                os.unlink(path)
    return Answer(wrong)


def device_nodes() -> Answer:
    """`inventory refresh --nodes`: a node that a fresh boot lacks gets the label of the others."""
    nodes = ("/dev/nvidia-uvm", *sorted(glob.glob("/dev/nvidia-caps/*"))[:1])
    before = [label(path) for path in nodes]
    for path in nodes:
        os.unlink(path)
    _, wrong = _run("inventory", "refresh", "--nodes")
    after = [label(path) for path in nodes]
    if after != before:
        wrong.append(f"{nodes} are {after}")
    return Answer(wrong)


# Each by the name of its line in the table.  The last of them changes what the host has.
QUESTIONS = {
    "selinux status": status,
    "inventory refresh, as its unit": refresh,
    "cdi generate, as its unit": generate,
    "selinux relabel, with links of a user's and an agent's": relabel,
    "validate, as its unit": validate,
    "inventory refresh --nodes, as its unit": device_nodes,
}
