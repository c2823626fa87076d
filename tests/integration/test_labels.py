# SPDX-License-Identifier: Apache-2.0
"""Relabelling by descriptor, on a real tmpfs: the attribute is kept by the kernel with or without SELinux.

What SELinux makes of it is shown on an enforcing kernel, in tests/selinux.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engines import run_unshared

BEFORE = "system_u:object_r:container_file_t:s0:c3,c4"
AFTER = "system_u:object_r:container_file_t:s0:c1,c2"

# A container's root with a tmpfs on /dev/shm, in a mount namespace of its own; a case does the rest.
SETTING = """
import os
from oci_gpu_hook.changes import contextset
from oci_gpu_hook.changes.tree import Tree, Undo
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
def refused():
    try: relabel()
    except OSError as err: print(err)
def everything():
    print(*sorted({{label(shm + name) for name in ("", "/sem.one", "/folder", "/folder/deep")}}))
"""
# What each case does, and what it prints.
# fmt: off
CASES = {
    "a mount and all in it is relabelled and taken back": ("""
everything()
relabel()
everything()
before = os.stat(shm + "/sem.one").st_ctime_ns
relabel()
print(os.stat(shm + "/sem.one").st_ctime_ns == before)
tree.undo.take_back()
everything()
""", f"{BEFORE}\n{AFTER}\nTrue\n{BEFORE}\n"),
    "the host's own shm is refused": ("""
mount("--bind", "/dev/shm", shm)
before = os.stat("/dev/shm").st_ctime_ns
refused()
print(os.stat("/dev/shm").st_ctime_ns == before)
""", "/dev/shm is the host's own, which is never relabelled\nTrue\n"),
    "a link in the image's place is refused": ("""
os.rename(root + "/dev", root + "/real"); os.mkdir(root + "/dev"); os.symlink("/real/shm", shm)
refused()
print(label(root + "/real/shm"))
""", f"openat2 /dev/shm: Too many levels of symbolic links\n{BEFORE}\n"),
    "a read-only mount is one sentence and keeps its label": ("""
mount("-o", "remount,ro", shm)
refused()
everything()
""", f"setxattr security.selinux: Read-only file system\n{BEFORE}\n"),
    "a label that cannot be read is left as it is": ("""
open(shm + "/sem.bare", "w").close()
refused()
tree.undo.take_back()
print("security.selinux" in os.listxattr(shm + "/sem.bare"), label(shm), label(shm + "/sem.one"))
""", f"its label cannot be read, so it could not be put back\nFalse {BEFORE} {BEFORE}\n"),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_relabelling(tmp_path: Path, name: str) -> None:
    case, printed = CASES[name]
    (tmp_path / "root").mkdir()
    assert run_unshared(SETTING.format(before=BEFORE, after=AFTER, root=f"{tmp_path}/root") + case) == printed
