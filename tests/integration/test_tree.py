# SPDX-License-Identifier: Apache-2.0
"""changes.tree.Tree on a real root: what is taken back is made again, and by whatever name a folder is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engines import run_unshared

# A container's root in a mount namespace of its own, a file and a folder to be mounted; a case does the rest.
SETTING = """
import os
from oci_gpu_hook.changes.detached import attributes
from oci_gpu_hook.changes.tree import Tree, Undo
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import syscalls
root, host = {root!r}, {host!r}
os.makedirs(root + "/opt"); os.makedirs(host + "/folder")
with open(host + "/file", "w") as file: file.write("ours")
beside = os.open(host, os.O_PATH)
def clone(name):
    return syscalls.open_tree(beside, name)
def below():
    found = [f"{{path}}/{{name}}" for path, *names in os.walk(root) for name in sum(names, [])]
    return sorted(path[len(root):] for path in found)
root_fd = os.open(root, os.O_PATH)
tree = Tree(root_fd, (syscalls.mount_of(root_fd)[0],), Undo())
"""
# Names of a library whose file is mounted; what lies at each, and how many mounts there are.
NAMES = """
def there(*names):
    for name in names:
        path = root + "/opt/" + name
        print(name, os.readlink(path) if os.path.islink(path) else "-", open(path).read() or "empty")
def count():
    return sum(root in line for line in open("/proc/self/mountinfo"))
tree.attach(clone("file"), "/opt/lib.so.2.5", folder=False)
"""
OWN = 'tree.attach_tmpfs("/opt/a/own", ("ro", "nosuid", "nodev", "noexec"), ("lib",), [])'
# A user namespace with many users, as a container's is; its root's own things in the root, user 1000's in /opt.
MAPPED = """
import ctypes, sys
FIRST, CLONE_NEWUSER = 100_000, 0x10000000
for name, user in (("", 0), ("/opt", 1000)): os.chown(root + name, FIRST + user, FIRST + user)
os.chmod(root + "/opt", 0o555)
ready, go = os.pipe(), os.pipe()
pid = os.fork()
if pid:
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as map: map.write(f"0 {FIRST} 65536")
    os.write(go[1], b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
assert ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0
os.write(ready[1], b"x"); os.read(go[0], 1)
os.setgid(0); os.setuid(0)
"""

# What each case does, and the lines that it prints.
# fmt: off
CASES = {
    # As where an optional operation fails in a folder of its own, and the next one wants the same.
    "a folder that was taken back is made again": ("""
folder, file = clone("folder"), clone("file")
mark = tree.undo.mark()
try: tree.attach(folder, "/opt/a/b/x", folder=False)
except OSError: print("refused", below())
tree.undo.take_back(mark)
print(below())
tree.attach(file, "/opt/a/b/x", folder=False)
print(below(), open(root + "/opt/a/b/x").read())
tree.undo.take_back()
print(below())
""", ["refused ['/opt', '/opt/a', '/opt/a/b', '/opt/a/b/x']", "['/opt']",
        "['/opt', '/opt/a', '/opt/a/b', '/opt/a/b/x'] ours", "['/opt']"]),
    "what lies in a folder that was there stays": ("""
os.makedirs(root + "/opt/a/b")
mark = tree.undo.mark()
try: tree.attach(clone("folder"), "/opt/a/b/x/y", folder=False)
except OSError: tree.undo.take_back(mark)
print(below())
tree.attach(clone("file"), "/opt/a/b/y", folder=False)
print(below())
""", ["['/opt', '/opt/a', '/opt/a/b']", "['/opt', '/opt/a', '/opt/a/b', '/opt/a/b/y']"]),
    # As images have /lib for /usr/lib.
    "a folder of ours has what came there by another name": ("""
os.symlink("opt", root + "/link")
tree.attach(clone("file"), "/link/a/x", folder=False)
tree.attach(clone("file"), "/opt/a/b/y", folder=False)
tree.attach(clone("file"), "/link/a/b/z", folder=False)
print(below())
tree.undo.take_back()
print(below())
""", ["['/link', '/opt', '/opt/a', '/opt/a/b', '/opt/a/b/y', '/opt/a/b/z', '/opt/a/x']", "['/link', '/opt']"]),
    "a file of ours is no folder": ("""
tree.attach(clone("file"), "/opt/a/x", folder=False)
try: tree.own_folder("/opt/a/x")
except OSError as err: print(err)
""", ["/opt/a/x is there and is not a folder"]),
    "a clone has its attributes": ("""
def cloned(name, root_of_host, path):
    tree.attach(HostRoot(root_of_host).clone(path, attributes(("ro", "nosuid", "nodev"))), name, folder=False)
    for line in open("/proc/self/mountinfo"):
        words = line.split()
        if words[4] == root + name: print(words[5].replace("relatime", "").strip(","), words[6] == "-")
cloned("/of-the-host", "/", host + "/file")
cloned("/of-another-root", host, "/file")
""", ["ro,nosuid,nodev True"] * 2),
    # Whatever has its name by then: here a link to a file that root alone may read.
    "a clone is of the source that was checked": ("""
def plant(name, text):
    with open(f"{host}/{name}", "w") as file: file.write(text)
plant("secret", "secret")
def exchanged(status):
    os.unlink(host + "/file"); os.symlink("secret", host + "/file")
    plant("file (deleted)", "secret")
    return attributes(("ro",))
def cloned(root_of_host, path):
    cloned = HostRoot(root_of_host).clone_source(path, 0, exchanged)
    print(open(host + "/file").read(), open(f"/proc/self/fd/{cloned}").read())
    os.unlink(host + "/file"); plant("file", "ours")
cloned("/", host + "/file")
cloned(host, "/file")
""", ["secret ours"] * 2),
    # Once: who clones it again gets what lies there, if root alone could have put it there.
    "a source that is held is cloned whatever has its name by then": ("""
def cloned(top, path):
    return open(f"/proc/self/fd/{top.clone_source(path, 0, lambda status: attributes(('ro',)))}").read()
for name, path in (("/", host + "/file"), (host, "/file")):
    with HostRoot(name) as top:
        print(top.source(path), top.source(path, hold=True))
        os.rename(host + "/file", host + "/moved")
        with open(host + "/file", "w") as file: file.write("new")
        print(cloned(top, path), cloned(top, path))
        before = len(os.listdir("/proc/self/fd"))
        print(top.source(path, hold=True), top.source(path, hold=True))
        os.chmod(host, 0o777)
        print(top.source(path, hold=True)[1].startswith("'file' lies in a folder that others"))
        print(len(os.listdir("/proc/self/fd")) - before)
        os.chmod(host, 0o755)
        os.rename(host + "/moved", host + "/file")
""", ["(False, '') (False, '')", "ours new", "(False, '') (False, '')", "True", "0"] * 2),
    # Nor is it asked whose a folder is that was made here.
    "nothing is searched for in a filesystem of ours": ("""
calls, real = [], syscalls._result
def counted(name, *arguments):
    calls.append(name)
    return real(name, *arguments)
tree.attach_tmpfs("/opt/a", (), ("there",), [])
file, other, third = [clone("file") for _ in range(3)]
syscalls._result = counted
tree.attach(file, "/opt/a/b/c/x", folder=False)
tree.attach(other, "/opt/a/there/x", folder=False)
print(calls)
calls.clear()
tree.attach(third, "/new/folder/x", folder=False)
print(calls)
""", ["['move_mount', 'openat2', 'statx', 'move_mount']",
        "['openat2', 'openat2', 'openat2', 'statx', 'move_mount']"]),
    # A library of the image's own, a link to one, and one that leads nowhere, which another driver has left.
    "what has the name is mounted over and stays": (f"""
open(root + "/opt/lib.so.2", "w").write("the image's")
open(root + "/opt/lib.so.1.0", "w").write("older")
os.symlink("lib.so.1.0", root + "/opt/lib.so.1"); os.symlink("gone", root + "/opt/lib.so")
before = below()
{NAMES}
for name in ("lib.so.2", "lib.so.1", "lib.so"): tree.name("/opt/lib.so.2.5", "/opt/" + name, "lib.so.2.5")
there("lib.so.2", "lib.so.1", "lib.so")
print(count())
options = [line.split()[5] for line in open("/proc/self/mountinfo") if root in line]
print(len(set(options)))
tree.undo.take_back()
print(below() == before)
there("lib.so.2", "lib.so.1")
""", ["lib.so.2 - ours", "lib.so.1 lib.so.1.0 ours", "lib.so gone ours", "4", "2", "True",
        "lib.so.2 - the image's", "lib.so.1 lib.so.1.0 older"]),
    # As in a container that is started again, with what the start before has made in its layer.
    "a link of the last start is left": (f"""
open(root + "/opt/lib.so.2.5", "w"); os.symlink("lib.so.2.5", root + "/opt/lib.so.2")
{NAMES}
tree.name("/opt/lib.so.2.5", "/opt/lib.so.2", "lib.so.2.5")
there("lib.so.2")
print(count())
tree.undo.take_back()
print(below())
""", ["lib.so.2 lib.so.2.5 ours", "1", "['/opt', '/opt/lib.so.2', '/opt/lib.so.2.5']"]),
    "a name in a volume of the host is not made": (f"""
open(host + "/folder/lib.so.2.5", "w").close()
syscalls.move_mount(clone("folder"), os.open(root + "/opt", os.O_PATH))
{NAMES}
try: tree.name("/opt/lib.so.2.5", "/opt/lib.so", "lib.so.2.5")
except OSError as err: print(err)
print(os.listdir(host + "/folder"))
""", ["/opt lies in a volume of the host, where nothing is made", "['lib.so.2.5']"]),
    # mountinfo lists what can be reached from a process's root alone; here the volume is shared, and lies outside.
    "a volume that mountinfo does not list counts as shared": ("""
os.makedirs(host + "/jail/proc")
open(host + "/folder/x", "w").close()
def mount(*words):
    assert os.spawnvp(os.P_WAIT, "mount", ["mount", *words]) == 0
mount("--bind", host + "/folder", host + "/folder"); mount("--make-shared", host + "/folder")
mount("--bind", host + "/folder", root + "/opt")
mount("--bind", "/proc", host + "/jail/proc")
folder = os.open(host + "/folder", os.O_PATH)
os.chroot(host + "/jail")
try: tree.attach(clone("file"), "/opt/x", folder=False)
except OSError as err: print(err)
print(os.stat("x", dir_fd=folder).st_size)
""", ["/opt/x lies in a volume that shares its mounts with the host", "0"]),
    # Each of its folders would be made first.
    "a link that leads too deep is refused": ("""
os.symlink("a/" * 400 + "x", root + "/opt/link")
for folder in (False, True):
    try: tree.attach(clone("folder" if folder else "file"), "/opt/link", folder=folder)
    except OSError as err: print(err, below())
""", ["/opt/link leads too deep ['/opt', '/opt/link']"] * 2),
    "a file of ours covers another read only": (f"""
open(root + "/opt/x", "w").write("the image's")
{OWN}
tree.cover_with("/opt/x", "/opt/a/own/file", b"new")
(line,) = [line for line in open("/proc/self/mountinfo") if root + "/opt/x " in line]
print(line.split()[3], line.split()[5].replace(",relatime", ""), open(root + "/opt/x").read())
try: open(root + "/opt/x", "a")
except OSError as err: print(err.strerror)
tree.undo.take_back()
print(below(), open(root + "/opt/x").read())
""", ["/file ro,nosuid,nodev,noexec new", "Read-only file system", "['/opt', '/opt/x'] the image's"]),
    # The kernel takes the capabilities for files away with user 0 (capabilities(7), setfsuid(2)).
    "in a folder that is closed to its owner things are made as the owner": (f"""
{MAPPED}
tree = Tree(root_fd, (syscalls.mount_of(root_fd)[0],), Undo(), as_owners=True)
def powers():
    return [line for line in open("/proc/self/status") if line.startswith(("Uid", "Gid", "CapPrm", "CapEff"))]
before = powers()
tree.link("/x", "to"); tree.link("/opt/x", "to"); tree.link("/opt/folder/x", "to")
print([os.lstat(name, dir_fd=root_fd).st_uid for name in ("x", "opt/x", "opt/folder", "opt/folder/x")])
print(powers() == before)
""", ["[0, 1000, 1000, 1000]", "True"]),
    "what is opened later is not own by the number of a folder that has gone": ("""
os.makedirs(root + "/opt/volume")
syscalls.move_mount(clone("folder"), os.open(root + "/opt/volume", os.O_PATH))
made = tree.own_folder("/opt/a")
tree.undo.take_back()
try: tree.own_folder("/opt/volume")
except OSError as err: print(err, tree._folders["/opt/volume"] == made)
""", ["/opt/volume lies in a volume of the host, where nothing is made True"]),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_on_a_real_root(tmp_path: Path, name: str) -> None:
    case, printed = CASES[name]
    places = {"root": str(tmp_path / "root"), "host": str(tmp_path / "host")}
    assert run_unshared(SETTING.format(**places) + case).splitlines() == printed
