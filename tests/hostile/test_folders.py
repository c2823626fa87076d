# SPDX-License-Identifier: Apache-2.0
"""Folders that a vendor's file or a Jetson's list gives whole: what in them is not for everybody, or not root's alone.

The container's root reads and writes what it can there, in the host's user namespace, and in one of its own with
CAP_SYS_ADMIN, which makes a read-only mount writable again.
"""

from __future__ import annotations

import json

import pytest

from tests.hostile.scene import BOTH
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, in_turn, on_node, start

FOLDER = "/opt/acme"
INVENTORY = {"driver_feature": ["compute"], "inventory": {"compute": {"directories": [FOLDER]}}}
VENDOR = json.dumps({"kind": "acme.com/card", "activation_flag": "OCI_ACME", **INVENTORY})
# Beside what is for everybody: a licence, a token in a closed folder, what others may write, whatever is no file.
MAKE = f"""
mount -t tmpfs -o mode=0755 none /opt
mkdir -p /etc/oci-gpu-hook/vendors {FOLDER}/lib/deep {FOLDER}/closed {FOLDER}/spool {FOLDER}/mounted
printf %s '{VENDOR}' >/etc/oci-gpu-hook/vendors/acme.json
umask 022
for file in lib/deep/open lib/licence closed/token spool/job theirs group mounted/hidden; do
    echo secret-$file >{FOLDER}/$file
done
chmod 0600 {FOLDER}/lib/licence
chmod 0700 {FOLDER}/closed
chmod 1777 {FOLDER}/spool
chown 64123 {FOLDER}/theirs
chmod 0664 {FOLDER}/group
mount -t tmpfs none {FOLDER}/mounted && echo secret-mounted >{FOLDER}/mounted/shown
mkfifo -m 0666 {FOLDER}/fifo
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("{FOLDER}/socket")' && chmod 0666 {FOLDER}/socket
ln -s lib/deep/open {FOLDER}/link
"""
LOOK = f"""
for path in $(find {FOLDER}); do
    if test -L $path; then continue; fi
    if test -f $path; then echo seen $path $(head -n 1 $path 2>/dev/null); fi
    if test -p $path || test -S $path; then echo seen $path; fi
done
cat {FOLDER}/link
# A mount that is made for another user namespace has locks; what the hook attaches later has none.
while read -r _ _ _ _ point _; do
    case $point in {FOLDER}*) mount -o remount,bind,rw $point 2>/dev/null && echo writable $point ;; esac
done </proc/self/mountinfo
for path in $(find {FOLDER}); do
    if test -p $path || test -S $path || test -L $path; then continue; fi
    if test -d $path; then touch $path/planted; else echo tampered >>$path; fi 2>/dev/null && echo written $path
done
echo looked
"""
# Of a folder that is given in parts, the container has one of its own.
OWN = (f"written {FOLDER}", f"written {FOLDER}/lib")
OPEN = f"seen {FOLDER}/lib/deep/open secret-lib/deep/open"


def asks(made: Bundle) -> Bundle:
    return made.asks(None, OCI_ACME="none").runs("/bin/sh", "-c", LOOK)


def in_namespace(made: Bundle) -> Bundle:
    """With CAP_SYS_ADMIN in a user namespace, where the container's root is nobody on the host."""
    for kind in ("bounding", "effective", "permitted"):
        made.config["process"]["capabilities"][kind] += ["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"]
    return made.in_user_namespace(6_553_600)


@pytest.mark.parametrize("runtime", BOTH)
def test_only_what_is_for_everybody_is_in_a_folder(bundle: Maker, runtime: str) -> None:
    plain, mapped = asks(bundle("busybox")), asks(in_namespace(bundle("busybox")))
    kept = f"find {FOLDER} -printf '%p %m %s %C@\\n' | sort"
    scripts = {
        "host": f"{kept} >/run/kept",
        "plain": start(runtime, plain),
        "mapped": start(runtime, mapped),
        "after": f"{kept} | diff /run/kept - && echo unchanged",
        "plan": f"oci-gpu-hook plan --bundle {plain.path} || :",
    }
    seen = in_turn(scripts, MAKE)
    for name in ("plain", "mapped"):
        lines = [it for it in seen[name] if it not in OWN and not it.startswith("writable")]
        assert lines == [OPEN, "secret-lib/deep/open", "looked"], (name, seen[name])
    assert seen["after"] == ["unchanged"]
    told = " ".join(seen["plan"])
    for path in ("lib/licence", "closed", "spool", "theirs", "group", "mounted", "fifo", "socket"):
        assert f"the host's {FOLDER}/{path} is left out: " in told, told


def test_what_is_closed_later_is_given_to_no_later_container(bundle: Maker) -> None:
    """What was saved of a folder is true no longer, though no name in it has changed."""
    tidy = "".join([f"rm -rf {FOLDER}/{name}; " for name in ("closed", "spool", "theirs", "group")])
    tidy += f"rm -f {FOLDER}/fifo {FOLDER}/socket {FOLDER}/lib/licence; umount {FOLDER}/mounted"
    look = f"cat {FOLDER}/lib/deep/open {FOLDER}/lib/deep/late; grep -c acme /proc/self/mountinfo"
    made = [bundle("busybox").asks(None, OCI_ACME="none").runs("/bin/sh", "-c", f"{look}; true") for _ in range(4)]
    first, late, closed, again = [f"{start('runc', it)} 2>/dev/null" for it in made]
    scripts = {
        "whole": f"{tidy}; {first}",
        "late": f"echo late >{FOLDER}/lib/deep/late; chmod 0600 {FOLDER}/lib/deep/late; {late}",
        "closed": f"rm {FOLDER}/lib/deep/late; chmod 0600 {FOLDER}/lib/deep/open; {closed}",
        "again": f"chmod 0644 {FOLDER}/lib/deep/open; {again}",
    }
    seen = in_turn(scripts, MAKE)
    assert seen["whole"] == seen["again"] == ["secret-lib/deep/open", "1"]
    assert seen["late"][0] == "secret-lib/deep/open" and int(seen["late"][1]) > 1
    assert len(seen["closed"]) == 1


def test_a_jetsons_folders_too(bundle: Maker) -> None:
    samples = "/usr/src/cudnn_samples_v9"
    made = bundle("busybox").asks("all", NVIDIA_REQUIRE_JETPACK="csv-mounts=all")
    made.runs("/bin/sh", "-c", f"cat {samples}/*; ls {samples}")
    script = f"echo licence >{samples}/key; chmod 0600 {samples}/key; {start('runc', made)}"
    done = on_node(script, platform="tegra")
    assert (done.code, done.out.split()) == (0, ["simulated", "README.md"]), done.err


REMOUNT = """
while read -r _ _ _ _ point _; do
    case $point in
    *nvidia* | /usr/* | /etc/*)
        mount -o remount,bind,rw $point && echo writable
        echo x >>$point && echo written $point ;;
    esac
done </proc/self/mountinfo 2>/dev/null
echo looked
"""


@pytest.mark.parametrize("runtime", BOTH)
def test_permissions_keep_what_is_roots_where_a_mount_is_made_writable(bundle: Maker, runtime: str) -> None:
    """With CAP_SYS_ADMIN in a user namespace: SECURITY.md says that read-only does not hold there, and what does."""
    made = in_namespace(bundle("debian").asks("0", "all")).runs("/bin/sh", "-c", REMOUNT)
    lines = on_node(start(runtime, made)).printed().splitlines()
    assert lines.count("writable") > 10 and lines[-1] == "looked"
    assert [line for line in lines if line.startswith("written")] == []
