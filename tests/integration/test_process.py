# SPDX-License-Identifier: Apache-2.0
"""Real processes: an ended one is never taken for the next with its number, an engine's is root's own; own mounts."""

from __future__ import annotations

from pathlib import Path

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
