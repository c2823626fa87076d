# SPDX-License-Identifier: Apache-2.0
"""Real processes: an ended one is never taken for the next with its number, an engine's is root's own; own mounts.

And what the hook may do in each phase, as the kernel shows it in /proc/PID/status, and as the manual's table says.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import manual
from tests.integration.engines import run_unshared

# In a PID namespace of one's own the number of the next process can be chosen (proc_sys_kernel(5), ns_last_pid).
CODE = """
import os, subprocess
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import BundleError
def begun():
    child = subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1)
    child.stdout.readline()
    return child
def seen():
    for name, look in looks.items():
        try: look()
        except BundleError as err: print(name, err.message.rpartition(": ")[2])
        else: print(name, "looked")
first = begun()
process = Process(first.pid)
looks = {
    "open": lambda: os.close(process.open("ns/mnt", os.O_RDONLY)),
    "read": lambda: process.read("cgroup"),
    "pieces": lambda: next(process.pieces("mountinfo")),
    "namespace": lambda: process.namespace("mnt"),
    "user": lambda: process.in_user_namespace(),
}
seen()
first.communicate()
with open("/proc/sys/kernel/ns_last_pid", "w") as last: last.write(str(first.pid - 1))
second = begun()
print(second.pid == first.pid == Process(second.pid).pid)
seen()
second.communicate()
"""


def test_another_process_with_the_number_is_not_looked_at() -> None:
    lines = run_unshared(CODE, "--pid", "--fork", "--mount-proc").splitlines()
    looks = ("open", "read", "pieces", "namespace", "user")
    before, after = [[f"{look} {what}" for look in looks] for what in ("looked", "No such process")]
    assert lines == [*before, "True", *after]


# The name that commands believe of root's `cat`, when it is started by these words.
PROGRAM = """
import subprocess
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import processes
for words in {starts!r}:
    child = subprocess.Popen([*words, "cat"], stdin=-1, stdout=-1)
    child.stdin.write(b"\\n"); child.stdin.flush(); child.stdout.readline()
    print(processes.program(HostRoot(), child.pid))
    child.communicate()
"""


def test_in_a_user_namespace_no_process_is_an_engines() -> None:
    """Not even one of root's that root there is in its own eyes; a mount namespace of its own a service may have."""
    starts = ((), ("unshare", "--mount"), ("unshare", "--user", "--map-root-user"), ("unshare", "--user"))
    assert run_unshared(PROGRAM.format(starts=starts)).split("\n") == ["cat", "cat", "", "", ""]


# Which mounts are the container's own: a tmpfs or a procfs of which the host has no mount, and nothing else.
# Beside the host's mount namespace, that of a container: both have a tmpfs, and only one has what is mounted there.
MOUNTS = """
import os, subprocess
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.kernel import syscalls
os.chdir({root!r})
for name in ("proc", "dev/mqueue", "scratch", "volume", "hosts"): os.makedirs(name)
subprocess.run("mount -t tmpfs none hosts", shell=True, check=True)
mounts = '''
mount -t proc none proc
mount -t tmpfs none scratch
mount -t mqueue none dev/mqueue
mount --bind hosts volume
{more}
echo
exec cat
'''
line = ["unshare", "--mount", "--ipc", "--propagation", "private", "sh", "-euc", mounts]
inside = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert inside.stdout.readline() == b"\\n"
fd = os.open(f"/proc/{{inside.pid}}/root{root}", os.O_PATH)
own = rootfs._own(fd, ("/scratch", "/volume", "/dev/mqueue", "/absent"))
print(sorted(own.values()))
inside.communicate()
"""


def own(root: Path, more: str = "") -> str:
    root.mkdir()
    return run_unshared(MOUNTS.format(root=str(root), more=more))


def test_own_are_a_tmpfs_and_a_procfs_that_the_host_has_not(tmp_path: Path) -> None:
    assert own(tmp_path / "root") == "['/proc/driver', '/scratch']\n"


def test_what_lies_over_a_folder_of_procfs_is_looked_at_like_the_rest(tmp_path: Path) -> None:
    """A volume of the host, and queues, which no mount of the host has either."""
    assert own(tmp_path / "a", "mount --bind hosts proc/driver") == "['/scratch']\n"
    assert own(tmp_path / "b", "mount --bind dev/mqueue proc/driver") == "['/scratch']\n"


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
