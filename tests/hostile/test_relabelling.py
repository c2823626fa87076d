# SPDX-License-Identifier: Apache-2.0
"""Root gives the files of folders that others may write to their SELinux type, while a user exchanges what lies there.

The kernel keeps the attribute with or without SELinux; tests/selinux has the same on an enforcing kernel.  HOSTILE_LOAD
says how often root does it; a fifth of it, 200 by hand.
"""

from __future__ import annotations

import os

from tests.integration.engines import REPOSITORY, run_unshared

TRIES = max(20, int(os.environ.get("HOSTILE_LOAD", "100")) // 5)
OPEN = "in a folder that others than root may write to"
# The host's files that a user would like to have, MPS's folder in /tmp, and what root runs, which is `walk`.
SCENE = f"""
import atexit, os, subprocess, sys
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import filecontext
USER = 64_123
OLD, NEW = "system_u:object_r:etc_t:s0", "nvidia_mps_t"
assert os.spawnvp(os.P_WAIT, "mount", ["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/mnt"]) == 0
os.mkdir("/mnt/tmp"); os.chmod("/mnt/tmp", 0o1777)
def plant(path, text=None, label=OLD, owner=0):
    os.mkdir(path) if text is None else open(path, "w").write(text)
    os.chown(path, owner, owner)
    os.setxattr(path, "security.selinux", label.encode())
def label(path):
    return os.getxattr(path, "security.selinux", follow_symlinks=False).rstrip(b"\\0").decode()
plant("/mnt/etc"); plant("/mnt/etc/shadow", "secret")
MPS = "/mnt/tmp/nvidia-mps"
TMP = OLD.replace("etc_t", "user_tmp_t")
plant(MPS, label=TMP); os.chmod(MPS, 0o777)
for name in ("control", "file"):
    plant(f"{{MPS}}/{{name}}", "", label=TMP, owner=USER)
plant(f"{{MPS}}/folder", label=TMP, owner=USER); plant(f"{{MPS}}/folder/shadow", "", label=TMP, owner=USER)
os.symlink("/mnt/etc", f"{{MPS}}/other")
os.symlink("/mnt/etc/shadow", f"{{MPS}}/link"); os.link("/mnt/etc/shadow", f"{{MPS}}/second")
HOSTS = ("/mnt/etc", "/mnt/etc/shadow")
racers = []
atexit.register(lambda: [racer.kill() for racer in racers])
for one, other in (("folder", "other"), ("file", "link")):
    line = ["setpriv", f"--reuid={{USER}}", f"--regid={{USER}}", "--clear-groups", sys.executable, "-S"]
    line += ["{REPOSITORY}/tests/hostile/racer.py", f"{{MPS}}/{{one}}", f"{{MPS}}/{{other}}"]
    racers.append(subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert racers[-1].stderr.readline() == "ready\\n"
taken = set()
for number in range(tries):
    for kind in (NEW, "other_t"):
        walk(kind)
        taken.update([path for path in HOSTS if label(path) != OLD])
    if len(taken) > 1:
        break
exchanges = 0
for racer in racers:
    racer.terminate()
    exchanges += int(racer.communicate()[0])
walk(NEW)
print(*sorted(taken), exchanges > 100, label(f"{{MPS}}/control"))
"""
STILL, _, _ = SCENE.partition("racers = []")
OURS = f"""
tries = {TRIES}
def walk(kind):
    filecontext._expected = lambda path: kind
    filecontext.restore(HostRoot("/mnt"), "/tmp/nvidia-mps")
"""
# As restorecon -R and chcon -R do it.
BY_NAME = """
tries = 20_000
def walk(kind):
    for folder, names, files in os.walk(MPS):
        for name in ("", *names, *files):
            path = os.path.join(folder, name)
            try:
                if not os.path.islink(path):
                    os.setxattr(path, "security.selinux", OLD.replace("etc_t", kind).encode())
            except FileNotFoundError:
                pass
"""


def test_no_file_of_the_hosts_gets_the_type() -> None:
    out = run_unshared(OURS + SCENE)
    assert out == "True system_u:object_r:nvidia_mps_t:s0\n"


def test_by_name_it_would() -> None:
    """By a folder that is exchanged, and by a second name of the host's file."""
    taken = run_unshared(BY_NAME + SCENE).split()
    assert "/mnt/etc/shadow" in taken and len(taken) > 3, taken


def test_a_folder_that_a_user_has_made_is_left_alone() -> None:
    case = """
os.rename(MPS, "/mnt/tmp/away"); plant(MPS, label=TMP, owner=USER)
print(filecontext.restore(HostRoot("/mnt"), "/tmp/nvidia-mps"), label(MPS))
filecontext._expected = lambda path: NEW
print(len(filecontext.restore(HostRoot("/mnt"), "/tmp/nvidia-mps", USER)), label(MPS))
os.rmdir(MPS); os.symlink("/mnt/etc", MPS)
print(filecontext.restore(HostRoot("/mnt"), "/tmp/nvidia-mps"))
"""
    assert run_unshared(STILL + case).splitlines() == [
        f"[\"left alone: /tmp/nvidia-mps: 'nvidia-mps' is user 64123's, {OPEN}\"] system_u:object_r:user_tmp_t:s0",
        "1 system_u:object_r:nvidia_mps_t:s0",
        f"[\"left alone: /tmp/nvidia-mps: 'nvidia-mps' is a link, {OPEN}\"]",
    ]


def test_another_mount_and_what_is_too_much_are_left() -> None:
    case = """
os.mkdir(f"{MPS}/mount")
assert os.spawnvp(os.P_WAIT, "mount", ["mount", "--bind", "/mnt/etc", f"{MPS}/mount"]) == 0
filecontext._expected = lambda path: NEW
said = filecontext.restore(HostRoot("/mnt"), "/tmp/nvidia-mps")
print(len(said), {label(path) for path in HOSTS})
for number in range(10_001):
    open(f"{MPS}/{number}", "w").close()
print(filecontext.restore(HostRoot("/mnt"), "/tmp/nvidia-mps")[-1])
"""
    assert run_unshared(STILL + case).splitlines() == [
        "4 {'system_u:object_r:etc_t:s0'}",
        "left alone: /tmp/nvidia-mps holds more than 10000 files",
    ]
