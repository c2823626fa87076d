# SPDX-License-Identifier: Apache-2.0
"""Attacks on ``nvidia-container-cli configure``: by the image, by volumes, by who owns a folder, by words.

Root calls, as SingularityCE's set-user-ID starter does for any user, who may also stop the call at any moment, on a
booted node, whose PID 1 has the host's mounts.  Whatever comes of a call, the host is as before, and where it is
refused, the container's root too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.engines import in_turn
from tests.integration.roots import MULTIARCH

OTHER, USER = 64_124, 64_123
# In the machine's own folder, where other programs' files come and go.
SHM = f"/dev/shm/hostile-{os.getpid()}"
UPPER = "/run/w/upper"
VICTIM, ROOT, LIBRARIES = "/run/w/victim", "/run/w/root", f"/run/w/root/usr/lib/{MULTIARCH}"
LOCAL = f"{ROOT}/usr/local"
WORDS = "configure --no-cgroups --compute --utility"
VOLUME = "lies in a volume of the host, where nothing is made"
HOSTS_ROOT = "lies in a root of the host's, where nothing is made"

# What the host is like: its files that an image would like to reach, its nodes and its mounts.
BEFORE = f"""
ln -sf ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
oci-gpu-hook inventory refresh >/dev/null
cat >/run/silent <<'END'
{{silent}}
END
mkdir -p /run/w && cd /run/w
fresh() {{
    rm -rf {ROOT} {VICTIM}
    cp -a {{root}} {ROOT}
    for name in dev proc sys tmp run; do mkdir -p {ROOT}/$name; done
    mkdir -p {VICTIM}/sub && echo secret >{VICTIM}/file && echo keep >{VICTIM}/log && chmod 0755 {VICTIM}
    mkdir -p {UPPER}
}}
host() {{
    find {VICTIM} /dev {SHM} '(' -name 'pt*' -o -path /dev/shm ')' -prune -o -printf '%p %m %U %y %s %l\\n' 2>&1 | sort
    cat {VICTIM}/file {VICTIM}/log
    awk '$5 ~ "^/(run/w|dev)"' /proc/self/mountinfo
}}
"""
# A FUSE server of the user's that never says a word.
SERVER = f"""
import ctypes, os, time
fd = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other" % fd
ctypes.CDLL(None).mount(b"none", b"{ROOT}", b"fuse", 6, options.encode())
time.sleep(120)
"""
TURN = f"""
fresh
{{image}}
host >/run/before
(cd {ROOT} && find . -xdev | sort) >/run/listing
unshare --mount --propagation {{propagation}} sh -c '
listing() {{{{ (cd {ROOT} && find . -xdev 2>/dev/null | sort); }}}}
{{bind}}
{{mounts}}
{{listing}} >/run/inside
{{prefix}} nvidia-container-cli {{options}} {WORDS} {{more}} {{path}} && echo code 0 || echo code $?
{{listing}} | diff /run/inside - >/dev/null && echo root as before || echo root is changed
{{after}}' 2>&1 || echo failed
(cd {ROOT} && find . -xdev | sort) | diff /run/listing - && echo disk as before || :
host | diff /run/before - && echo host as before || :
{{clean}}
"""

BIND = f"mount --bind {ROOT} {ROOT}"
# As --writable-tmpfs has it: what is made in the root lies in memory, in a filesystem that is this container's alone.
OWN_ROOT = f"""
mount -t tmpfs none {UPPER} && mkdir {UPPER}/upper {UPPER}/work
mount -t overlay -o lowerdir={ROOT},upperdir={UPPER}/upper,workdir={UPPER}/work none {ROOT}"""


class Row(NamedTuple):
    """One call.

    code: its exit code; says: a part of what it says; image, mounts: shell lines that the host and the caller run
    before it, after, clean: behind it; prints: a line that one of them prints; more, options: words.
    """

    code: int
    says: str = ""
    image: str = ""
    mounts: str = ""
    after: str = ""
    clean: str = ""
    prints: str = ""
    more: str = "--device=0"
    options: str = ""
    path: str = ROOT
    bind: str = OWN_ROOT
    propagation: str = "slave"
    prefix: str = ""
    listing: str = "listing"


def linked(place: str, text: str) -> str:
    return f"rm -rf {ROOT}/{place}; ln -s {text} {ROOT}/{place}"


def moved(text: str) -> str:
    return f"mv {LIBRARIES} {LIBRARIES}.real; ln -s {text} {LIBRARIES}"


UP = "../../../../../../../.."
READ_ONLY = f"mount -o remount,bind,ro {ROOT}"
WRITTEN = f"touch {ROOT}/written 2>/dev/null && echo writable || echo read-only"
WORKS = f"chroot {ROOT} /app/cuda"
ONE = "cuInit 0, 1 devices"
USERS = f"setpriv --reuid {USER} --regid {USER} --clear-groups"
AT_ONCE = f"for n in 1 2 3; do nvidia-container-cli {WORDS} --device=0 {ROOT} || echo failed $n; done & wait; {WORKS}"
SETTINGS = "/etc/oci-gpu-hook.conf"
TRACED = "strace -f -o /run/trace -e trace=flock,fcntl"
LOCKS = 'echo locks $(grep -cE "LCK|LK|flock" /run/trace)'
SILENT = f"""
python3 /run/silent & SERVER=$!
until grep -q " {ROOT} .* fuse " /proc/self/mountinfo; do sleep 0.1; done"""
LINKS = {
    "libraries": Row(0, image=moved(VICTIM)),
    "libraries by dots": Row(0, image=moved(f"{UP}{VICTIM}")),
    "libraries by /proc": Row(0, image=moved(f"/proc/1/root{VICTIM}")),
    **{f"/{name}": Row(0, image=linked(name, VICTIM)) for name in ("dev", "proc", "etc")},
    "ld.so.cache": Row(0, image=linked("etc/ld.so.cache", f"{UP}{VICTIM}/file")),
    "a node": Row(0, image=linked("dev/nvidiactl", f"{UP}{VICTIM}/file")),
    "programs": Row(0, image=linked("usr/bin", f"{UP}{VICTIM}/sub")),
}
TMPFS = f"mount -t tmpfs none {VICTIM}/sub"
COPY = f"cp -a {ROOT} {VICTIM}/sub/root"
VOLUMES = {
    **{f"/{name}": Row(7, VOLUME, mounts=f"mount --bind {VICTIM} {ROOT}/{name}") for name in ("dev", "usr", "etc")},
    # The site's own programs, and the driver's folder.
    **{
        folder: Row(0, "", f"mkdir -p {folder}", f"mount --bind {VICTIM} {folder}", after=WORKS, prints=ONE)
        for folder in (LOCAL, f"{LOCAL}/nvidia")
    },
    "a tmpfs": Row(7, VOLUME, TMPFS, f"mount --bind {VICTIM}/sub {ROOT}/dev", clean=f"umount {VICTIM}/sub"),
    "of /dev/shm": Row(7, VOLUME, f"mkdir {SHM}", f"mount --bind {SHM} {ROOT}/dev", clean=f"rm -r {SHM}"),
    "a tmpfs that the caller no longer has": Row(
        *(7, VOLUME, TMPFS, f"mount --bind {VICTIM}/sub {ROOT}/dev; umount {VICTIM}/sub"), clean=f"umount {VICTIM}/sub"
    ),
    "a tmpfs that the host has there": Row(
        *(7, VOLUME, f"mkdir -p {LOCAL}/nvidia; mount --bind {ROOT} {ROOT}; mount -t tmpfs none {ROOT}/dev"),
        bind=":",
        clean=f"ls -A {ROOT}/dev; umount -R {ROOT}",
    ),
    "beside the root, in a tmpfs of the host's": Row(
        *(7, VOLUME, f"mount -t tmpfs none {VICTIM}/sub; mkdir -p {LOCAL}/nvidia {VICTIM}/sub/dev; {COPY}"),
        bind=f"mount --bind {VICTIM}/sub/root {VICTIM}/sub/root",
        mounts=f"mount --bind {VICTIM}/sub/dev {VICTIM}/sub/root/dev",
        path=f"{VICTIM}/sub/root",
        clean=f"umount {VICTIM}/sub",
    ),
    "the container's own tmpfs": Row(0, mounts=f"mount -t tmpfs none {ROOT}/dev", after=WORKS, prints=ONE),
}
NOT_THE_ROOT = "is not the container's root"
# A folder of the user's, in which the user can exchange the root's mount point; see SingularityCE's session folder.
SESSION = "/run/w/session"
MOUNTED = f"mkdir -p {SESSION}; mount -t tmpfs -o uid={USER} none {SESSION}; mkdir {SESSION}/root"
IN_SESSION = f"mount --move {ROOT} {SESSION}/root"
FROM_JOB = f"cp -a {ROOT}/. /run/w/job/; mount --bind /run/w/job {SESSION}/root"
BOUND = f"{BIND}; mount --make-shared {ROOT}"
ROOTS = {
    "no mount": Row(3, f"{NOT_THE_ROOT}: nothing is mounted there", bind=":"),
    "/": Row(3, NOT_THE_ROOT, path="/"),
    "above": Row(3, NOT_THE_ROOT, path=f"{ROOT}/.."),
    "shows elsewhere": Row(
        *(3, "would show in other mount namespaces too", BOUND, "", "", f"umount -R {ROOT}"),
        bind=":",
        propagation="unchanged",
    ),
    "in another's folder": Row(
        3, f"{NOT_THE_ROOT}: others than root", image=f"chown {OTHER} /run/w", clean="chown 0 /run/w"
    ),
    "in a user's folder that the host has, too": Row(
        *(3, f"{NOT_THE_ROOT}: others than root", MOUNTED, IN_SESSION),
        path=f"{SESSION}/root",
        clean=f"umount {SESSION}",
    ),
    "in a user's folder that the caller has made": Row(
        *(0, "", "", f"{MOUNTED}; {IN_SESSION}", f"chroot {SESSION}/root /app/cuda"),
        prints=ONE,
        path=f"{SESSION}/root",
        listing=f"find {SESSION}/root -xdev | sort",
    ),
    "of a disk of the caller's, in a user's folder": Row(
        *(7, HOSTS_ROOT, "", f"{MOUNTED}; mkdir /run/w/job; mount -t tmpfs none /run/w/job; {FROM_JOB}"),
        bind=":",
        path=f"{SESSION}/root",
    ),
    "in everybody's folder": Row(3, NOT_THE_ROOT, image="chmod 0777 /run/w", clean="chmod 0755 /run/w"),
    "of a user in everybody's folder": Row(
        *(3, NOT_THE_ROOT, f"chown -R {USER} {ROOT}; chmod 0777 /run/w"),
        bind=":",
        prefix=f'{USERS} unshare --user --map-root-user --mount sh -c "mount --bind {ROOT} {ROOT}; exec \\$0 \\$*"',
        clean="chmod 0755 /run/w",
    ),
    "that never answers": Row(142, bind=":", mounts=SILENT, after="kill -KILL $SERVER", listing=":"),
    # What is made there stays, for any user who may look into it.
    "on the host's disk": Row(7, HOSTS_ROOT, bind=BIND),
    "a shared image, bound read-only": Row(
        *(7, HOSTS_ROOT), bind=f"{BIND}; {READ_ONLY}", after=WRITTEN, prints="read-only"
    ),
    "a user's, on the host's disk": Row(7, HOSTS_ROOT, image=f"chown -R {USER} {ROOT}", bind=BIND),
    "a user's, bound read-only": Row(7, HOSTS_ROOT, image=f"chown -R {USER} {ROOT}", bind=f"{BIND}; {READ_ONLY}"),
    "a user's, below a filesystem of its own": Row(0, image=f"chown -R {USER} {ROOT}", after=WORKS, prints=ONE),
}
READ_ONLY_ROOTS = {
    "its own": Row(7, "Read-only file system", mounts=READ_ONLY, after=WRITTEN, prints="read-only"),
    "refusal": Row(5, "unknown device", mounts=READ_ONLY, after=WRITTEN, prints="read-only", more="--device=99"),
    "a volume in it": Row(
        *(0, "", f"mkdir -p {LOCAL}", f"mount --bind {LOCAL} {LOCAL}; mount -o remount,bind,ro {LOCAL}"),
        after=f"touch {LOCAL}/written 2>/dev/null || echo read-only",
        prints="read-only",
    ),
}
OWN = "unshare --mount --propagation slave sleep 60 & PID=$!; sleep 0.5"
SHARED = "mount --make-rshared /; unshare --mount --propagation unchanged sleep 60 & PID=$!; sleep 0.5"
KILL = "kill $PID"
PIDS = {
    "dead": Row(3, "cannot be looked into", mounts="true & PID=$!; wait $PID"),
    "PID 1": Row(3, "in the host's mount namespace", mounts="PID=1"),
    "itself": Row(3, "this hook's own mount namespace", mounts="PID=$$"),
    "of another root": Row(3, NOT_THE_ROOT, mounts=f"{OWN}", path=VICTIM, after=KILL),
    # As gVisor's, which cuts its mounts off from the host's later.
    "whose mounts show elsewhere": Row(
        0, mounts=SHARED, after=f"echo shown $(grep -c usr/local/nvidia /proc/self/mountinfo); {KILL}", prints="shown 0"
    ),
    "of a user, of root's": Row(3, "cannot be looked into", mounts=OWN, prefix=USERS, after=KILL),
    "a path": Row(2, "which is not a process", mounts="PID=1/../1"),
    "good": Row(0, mounts=OWN, after=f"nsenter --target $PID --mount {WORKS}; {KILL}", prints=ONE),
}
CALLS = {
    "nodes": Row(0, after=f"{WORKS}; echo nodes $(find {UPPER} -type c | wc -l)", prints="nodes 0"),
    "twice": Row(0, after=f"nvidia-container-cli {WORDS} --device=0 {ROOT} && {WORKS}", prints=ONE),
    "at once": Row(0, after=AT_ONCE, prints=ONE),
    "after another driver's": Row(
        0, image=f"cd {LIBRARIES}; : >libcuda.so.1.2; ln -s libcuda.so.1.2 libcuda.so.1; cd -", after=WORKS, prints=ONE
    ),
    # A lock that a stopped call holds would hold up each start of the node.
    "no lock": Row(0, prefix=TRACED, after=LOCKS, prints="locks 0"),
    **{
        f"no lock, where holders are counted: {device}": Row(
            *(4, "gpu-holders is set", f"echo gpu-holders = 1 >{SETTINGS}"),
            prefix=TRACED,
            more=f"--device={device}",
            after=LOCKS,
            prints="locks 0",
            clean=f"rm {SETTINGS}",
        )
        for device in ("0", "any")
    },
    # What a user asks of a setuid caller.
    "MIG's configuration": Row(5, "CAP_SYS_ADMIN only", more="--device=0 --mig-config=all"),
    "a log": Row(0, options=f"--debug={VICTIM}/log"),
    "a driver of the caller's": Row(2, "is not taken from a caller", options=f"--root={VICTIM}"),
}
ROWS = {
    **{f"link of the image: {name}": row for name, row in LINKS.items()},
    **{f"volume: {name}": row for name, row in VOLUMES.items()},
    **{f"root: {name}": row for name, row in ROOTS.items()},
    **{f"read-only: {name}": row for name, row in READ_ONLY_ROOTS.items()},
    **{f"process: {name}": row._replace(more="--device=0 --pid=$PID") for name, row in PIDS.items()},
    **{f"call: {name}": row for name, row in CALLS.items()},
}
# A user's root in a folder like /tmp, and its link to what the caller has mounted beside it, exchanged without a rest.
RACER = f"""
import ctypes, os
os.setuid({USER})
libc = ctypes.CDLL(None)
os.symlink("/run/w/beside", "/run/w/tmp/link")
while not os.path.exists("/run/w/begun"):
    pass
while not os.path.exists("/run/w/ended"):
    libc.renameat2(-100, b"/run/w/tmp/link", -100, b"/run/w/tmp/root", 2)
"""
RACE = f"""
mkdir -m 1777 /run/w/tmp; mkdir -p /run/w/beside {UPPER}
cp -a {{root}} /run/w/tmp/root; mkdir -p /run/w/tmp/root/dev /run/w/tmp/root/proc; chown {USER} /run/w/tmp/root
cat >/run/w/racer <<'END'
{RACER}
END
python3 /run/w/racer & racer=$!
unshare --mount --propagation slave sh -c '
mount -t tmpfs -o uid={USER} none /run/w/beside
mount -t tmpfs none {UPPER} && mkdir {UPPER}/upper {UPPER}/work
mount -t overlay -o lowerdir=/run/w/tmp/root,upperdir={UPPER}/upper,workdir={UPPER}/work none /run/w/tmp/root
touch /run/w/begun
for n in $(seq 60); do
    nvidia-container-cli {WORDS} --device=0 /run/w/tmp/root 2>said && echo given || grep -o "others than root" said
done
echo beside $(ls /run/w/beside)'
touch /run/w/ended; wait $racer
"""


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    root = str(patterns["debian"])
    scripts = {name: TURN.format(**row._asdict()) for name, row in ROWS.items()}
    scripts["race"] = RACE.format(root=root)
    scripts["host itself"] = f"fresh; {BIND}; nvidia-container-cli {WORDS} --device=0 {ROOT} 2>&1 || :"
    before = BEFORE.replace("{root}", root).replace("{silent}", SERVER)
    return in_turn(scripts, before, description="h100x8", cgroup="v1", booted=True)


@pytest.mark.parametrize("name", ROWS)
def test_an_attack_wins_nothing(seen: dict[str, list[str]], name: str) -> None:
    row, lines = ROWS[name], seen[name]
    assert {f"code {row.code}", "host as before", "disk as before", row.prints or lines[0]} <= {*lines}, lines
    assert any(row.says in line for line in lines), lines
    assert ("root as before" in lines) == (row.code != 0), lines


def test_an_exchanged_root(seen: dict[str, list[str]]) -> None:
    """It is the caller's, or none; both have been seen, and never the other."""
    assert "beside" in seen["race"], seen["race"]
    assert {"given", "others than root"} <= {*seen["race"]}, seen["race"]


def test_the_hosts_own_namespace(seen: dict[str, list[str]]) -> None:
    assert any("is in the host's mount namespace" in line for line in seen["host itself"]), seen["host itself"]
