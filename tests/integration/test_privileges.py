# SPDX-License-Identifier: Apache-2.0
"""What the hook may do in each phase, as the kernel shows it in /proc/PID/status, and as the manual's table says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import manual
from tests.integration.engines import run_unshared

# An operation that looks at this process, in a plan for a container that is a process in namespaces of its own.
CASE = """
import json, os, subprocess, types
from oci_gpu_hook import apply
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import syscalls
def look():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    return [int(lines[key], 16) for key in ("CapEff", "CapPrm", "CapInh", "NoNewPrivs")]
class Look:
    required, reason, seen = True, "a test", {}
    def describe(self): return "look"
    def prepare(self, host, undo):
        self.seen["prepare"] = look()
        return self.perform
    def perform(self, tree): self.seen["change"] = look()
child = subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1)
child.stdout.readline()
root = os.open("/", os.O_PATH)
container = types.SimpleNamespace(own_mounts=(), is_layer=False)
layout = types.SimpleNamespace(user_namespace={user_namespace})
plan = types.SimpleNamespace(container=container, layout=layout, operations=(Look(),), label="")
apply.run(plan, HostRoot(), root, Process(child.pid))
Look.seen["record"] = look()
print(json.dumps(Look.seen))
child.kill()
"""


def named(sets: int) -> set[str]:
    """The capabilities of a set by the names that the kernel's header has."""
    header = Path("/usr/include/linux/capability.h").read_text()
    numbers = re.findall(r"^#define (CAP_\w+)\s+(\d+)$", header, re.MULTILINE)
    return {name for name, number in numbers if sets >> int(number) & 1}


@pytest.mark.parametrize("user_namespace", [False, True])
def test_each_phase_may_do_what_the_manual_says(user_namespace: bool) -> None:
    seen = json.loads(run_unshared(CASE.replace("{user_namespace}", str(user_namespace))))
    table = manual.sections("oci-gpu-hook-security.7")["WHAT EACH PHASE MAY DO"]
    always, as_owners = table.split("; in a user namespace")
    kept = set(re.findall(r"\bCAP_\w+", table if user_namespace else always))
    assert "CAP_SETUID" in as_owners
    all_of_them, _, _, no_new_privs = seen["prepare"]
    assert named(all_of_them) > kept and no_new_privs == 0
    for phase in ("change", "record"):
        effective, permitted, inheritable, no_new_privs = seen[phase]
        assert named(effective) == named(permitted) == kept, phase
        assert (inheritable, no_new_privs) == (0, 1), phase
