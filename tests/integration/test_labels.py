# SPDX-License-Identifier: Apache-2.0
"""Relabelling by descriptor, on a real tmpfs: the attribute is kept by the kernel with or without SELinux.

What SELinux makes of it is shown on an enforcing kernel, in tests/selinux.
"""

from __future__ import annotations

from pathlib import Path

from tests.integration.engines import run_unshared

BEFORE = "system_u:object_r:container_file_t:s0:c3,c4"
AFTER = "system_u:object_r:container_file_t:s0:c1,c2"

# A container's root with a tmpfs on /dev/shm, in a mount namespace of its own; CASE does the rest.
SETTING = """
import os
from oci_gpu_hook.changes import contextset
from oci_gpu_hook.changes.tree import TargetError, Tree
from oci_gpu_hook.changes.tree import Undo
BEFORE, AFTER = {before!r}, {after!r}
root = {root!r}
shm = root + "/dev/shm"
os.makedirs(shm, exist_ok=True)
def mount(*words):
    assert os.spawnvp(os.P_WAIT, "mount", ["mount", *words]) == 0
mount("-t", "tmpfs", "shm", shm)
def label(path):
    return os.getxattr(path, "security.selinux", follow_symlinks=False).rstrip(b"\\0").decode()
def plant(path, folder=False):
    os.mkdir(path) if folder else open(path, "w").close()
    os.setxattr(path, "security.selinux", BEFORE.encode())
os.setxattr(shm, "security.selinux", BEFORE.encode())
plant(shm + "/sem.one"); plant(shm + "/folder", True); plant(shm + "/folder/deep")
tree = Tree(os.open(root, os.O_PATH), (), Undo())
def relabel():
    contextset.relabel(tree, "/dev/shm", AFTER)
"""


def run(tmp_path: Path, case: str) -> str:
    root = tmp_path / "root"
    root.mkdir()
    code = SETTING.format(before=BEFORE, after=AFTER, root=str(root))
    return run_unshared(code + case)


EVERYTHING = 'print(*sorted({label(shm + name) for name in ("", "/sem.one", "/folder", "/folder/deep")}))'


def test_a_mount_and_all_in_it_is_relabelled_and_taken_back(tmp_path: Path) -> None:
    case = f"""
{EVERYTHING}
relabel()
{EVERYTHING}
before = os.stat(shm + "/sem.one").st_ctime_ns
relabel()
print(os.stat(shm + "/sem.one").st_ctime_ns == before)
tree.undo.take_back()
{EVERYTHING}
"""
    assert run(tmp_path, case) == f"{BEFORE}\n{AFTER}\nTrue\n{BEFORE}\n"


def test_the_hosts_own_shm_is_refused(tmp_path: Path) -> None:
    case = """
mount("--bind", "/dev/shm", shm)
before = os.stat("/dev/shm").st_ctime_ns
try: relabel()
except TargetError as err: print(err)
print(os.stat("/dev/shm").st_ctime_ns == before)
"""
    assert run(tmp_path, case) == "/dev/shm is the host's own, which is never relabelled\nTrue\n"


def test_a_link_in_the_images_place_is_refused(tmp_path: Path) -> None:
    case = """
os.rename(root + "/dev", root + "/real"); os.mkdir(root + "/dev"); os.symlink("/real/shm", shm)
try: relabel()
except OSError as err: print(err)
print(label(root + "/real/shm"))
"""
    assert run(tmp_path, case) == (f"openat2 /dev/shm: Too many levels of symbolic links\n{BEFORE}\n")


def test_a_read_only_mount_is_one_sentence_and_keeps_its_label(tmp_path: Path) -> None:
    case = f"""
mount("-o", "remount,ro", shm)
try: relabel()
except OSError as err: print(err)
{EVERYTHING}
"""
    assert run(tmp_path, case) == f"setxattr security.selinux: Read-only file system\n{BEFORE}\n"


def test_a_label_that_cannot_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    """It could not be put back."""
    case = """
open(shm + "/sem.bare", "w").close()
try: relabel()
except OSError as err: print(err)
tree.undo.take_back()
print("security.selinux" in os.listxattr(shm + "/sem.bare"), label(shm), label(shm + "/sem.one"))
"""
    said = "its label cannot be read, so it could not be put back"
    assert run(tmp_path, case) == f"{said}\nFalse {BEFORE} {BEFORE}\n"
