# SPDX-License-Identifier: Apache-2.0
"""Where a container's device cgroup is found, on real cgroup v1 and v2 hosts, in a mount namespace for each test."""

from __future__ import annotations

import ast
import os
import sys
from typing import Any

import pytest

from tests.integration.engines import REPOSITORY, UNSHARED, printed

BASE = f"test-{os.getpid()}"
ID = "0123456789abcdef" * 4
ROOT = "/sys/fs/cgroup"
HOSTS = {
    "v2": f"mount -t cgroup2 none {ROOT}; hierarchy={ROOT}",
    "v1": f"mount -t tmpfs none {ROOT}; hierarchy={ROOT}/devices; mkdir $hierarchy\n"
    "mount -t cgroup -o devices none $hierarchy",
}
# `in_cgroup NAME` leaves the number of a process that sleeps there in $pid; `locate PID ID` prints what is found.
SETTING = f"""
umount --recursive {ROOT}
{{host}}
base=$hierarchy/{BASE} pids= within=
in_cgroup() {{{{ mkdir -p $base/$1; sleep 1000 & pid=$!; pids="$pids $pid"; echo $pid >$base/$1/cgroup.procs; }}}}
end() {{{{ [ ! "$pids" ] || kill $pids; wait; [ ! -e $base ] || find $base -depth -type d -exec rmdir {{{{}}}} +; }}}}
trap end EXIT
in_group() {{{{ group=$1; shift; sh -c 'echo 0 >$0/cgroup.procs; exec "$@"' $base/$group "$@"; }}}}
locate() {{{{ $within {sys.executable} -c "$CODE" "$@"; }}}}
"""
CODE = """
import sys
from oci_gpu_hook.container import devicecgroup
from oci_gpu_hook.kernel import procfile
class Process:
    is_caller = False
    def __init__(self, pid): self.pid = pid
    def read(self, name): return procfile.read_whole(f"/proc/{self.pid}/{name}")
for pid in sys.argv[2:]:
    try: print((*devicecgroup.locate(Process(pid), sys.argv[1]), *devicecgroup.locate(None, "")))
    except OSError as err: print([str(err)])
"""


def located(version: str, script: str) -> list[Any]:
    """What is found by a script on such a host; what is expected without a process stands behind it."""
    text = SETTING.format(host=HOSTS[version]) + script
    environment = {**os.environ, "CODE": CODE}
    out = printed(*UNSHARED, "sh", "-euc", text, cwd=REPOSITORY, env=environment)
    return [ast.literal_eval(line) for line in out.splitlines()]


def none(reason: str) -> tuple[str, ...]:
    return ("", "", "", reason)


OWN = [
    (ID, ID, ID),
    (f"libpod-{ID}.scope", ID, f"libpod-{ID}.scope"),
    (f"libpod-{ID}.scope/container", ID, f"libpod-{ID}.scope"),
    (f"crio-{ID}.scope/container/init", ID, f"crio-{ID}.scope"),
    (f"{ID}/{ID}", ID, f"{ID}/{ID}"),
    (f"x{ID}/leaf", ID, f"x{ID}/leaf"),
    ("custom/leaf", ID, "custom/leaf"),
    # A service with the container's name is not the container's.
    ("gpu.service/crun-gpu.scope/container", "gpu", "gpu.service/crun-gpu.scope"),
    ("a/crun-a.scope/container", "a", "a/crun-a.scope"),
    # An engine may name the scope as it likes, and crun its sub-cgroup as an annotation says.
    ("pre-other.scope/container", ID, "pre-other.scope"),
    ("pre-named.scope/sub", ID, "pre-named.scope"),
]
# What is not the container's alone.
SHARED = {
    "session-1.scope/container": "echo $$ >$base/session-1.scope/cgroup.procs",
    "session-2.scope/container": "mkdir $base/session-2.scope/other",
    "pods.slice/container": "",
}


def test_the_containers_own_cgroups_end_where_its_name_is() -> None:
    script = [f"in_cgroup {name}; locate {container_id} $pid" for name, container_id, _ in OWN]
    path = f"{ROOT}/{BASE}"
    assert located("v2", "\n".join(script)) == [
        ("v2", f"{path}/{name}", f"{path}/{top}", "", "v2", "", "", "") for name, _, top in OWN
    ]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_scope_with_others_is_not_the_containers(version: str) -> None:
    script = [f"in_cgroup {name}; {beside}\nlocate {ID} $pid" for name, beside in SHARED.items()]
    back = "\necho $$ >$hierarchy/cgroup.procs"
    path = ROOT if version == "v2" else f"{ROOT}/devices"
    assert [found[:3] for found in located(version, "\n".join(script) + back)] == [
        (version, f"{path}/{BASE}/{name}", f"{path}/{BASE}/{name}") for name in SHARED
    ]


@pytest.mark.parametrize(
    ("version", "cgroup", "move", "path"),
    [
        ("v1", ID, "mkdir {0}/else; mount --move {0}/devices {0}/else", f"{ROOT}/else/{BASE}/{ID}"),
        ("v2", f"crun-{ID}.scope/container", "mount --bind $base/$name {0}", ROOT),
        ("v2", f"outer/{ID}", "mount --bind $base/outer {0}", f"{ROOT}/{ID}"),
        # The whole hierarchy is still in the table of mounts, hidden below the bind mount.
        ("v1", f"outer/{ID}", "mount --bind $base/outer {0}/devices", f"{ROOT}/devices/{ID}"),
    ],
    ids=["v1, elsewhere", "v2, its own alone", "v2, a part", "v1, a part"],
)
def test_a_mount_may_show_a_part_of_a_hierarchy(version: str, cgroup: str, move: str, path: str) -> None:
    back = "mount --move {0}/else {0}/devices" if "--move" in move else "umount ${{move##* }}"
    move, back = move.format(ROOT), back.format(ROOT)
    script = f"name={cgroup}; in_cgroup $name\n{move}\nlocate {ID} $pid; move='{move}'; {back}"
    assert located(version, script) == [(version, path, path, "", version, "", "", "")]


def test_no_other_filesystem_is_asked_for_it() -> None:
    """Mounted before the hierarchy, and its server never answers: dead NFS, or a user's FUSE."""
    script = f"""
mkdir {ROOT}/silent; mkfifo {ROOT}/ready
{sys.executable} tests/hostile/silent.py {ROOT}/silent allow_other >{ROOT}/ready & silent=$!; pids=$silent
read -r line <{ROOT}/ready
umount {ROOT}/devices; mkdir {ROOT}/else; mount -t cgroup -o devices none {ROOT}/else; base={ROOT}/else/{BASE}
in_cgroup {ID}
kill -USR1 $silent; (sleep 20; kill -KILL $silent) >/dev/null 2>&1 & pids="$pids $!"
locate {ID} $(cat $base/{ID}/cgroup.procs)
kill -0 $silent
"""
    path = f"{ROOT}/else/{BASE}/{ID}"
    assert located("v1", script) == [("v1", path, path, "", "v1", "", "", "")]


def test_a_host_without_device_cgroups_is_said() -> None:
    script = "mount -t tmpfs none {0}; echo 0::/ >{0}/empty; within=without_devices\n"
    script += 'without_devices() {{ sh -c \'mount --bind $0 /proc/$$/cgroup; exec "$@" $$\' {0}/empty "$@"; }}\n'
    script += "locate x"
    reason = "this host has no device cgroups"
    assert located("v2", script.format(ROOT)) == [(*none(reason), *none(reason))]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_container_without_a_cgroup_of_its_own_is_said(version: str) -> None:
    """It is where the runtime is, or in the root, whatever its id."""
    script = "in_cgroup service; others=$pid; in_cgroup ..; within='in_group service'\n"
    script += f"locate {ID} $others $pid; locate '' $others $pid"
    sentence = "the container has no cgroup of its own, it is in {} with others"
    reasons = [sentence.format(f"/{BASE}/service"), sentence.format("/")] * 2
    assert [found[:4] for found in located(version, script)] == [none(item) for item in reasons]


def test_in_a_user_namespace_nothing_may_be_changed() -> None:
    reason = "the kernel lets no process in a user namespace change a device cgroup"
    script = "in_cgroup x; within='unshare --user --map-root-user'; locate x $pid"
    assert located("v2", script) == [(*none(reason), *none(reason))]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_cgroup_outside_our_cgroup_namespace_is_found_at_the_mounts_root(version: str) -> None:
    """As of an engine in a container that sees the host's mounts.  The names between that root and ours do not show."""
    outside = f"{BASE}-outside"
    script = f"""in_cgroup beside; beside=$pid; mkdir $base/inside; within='in_group inside unshare --cgroup'
in_cgroup ../{outside}; locate {outside} $pid; locate beside $beside
kill $pid; wait $pid || :; pids=$beside; rmdir $hierarchy/{outside}
"""
    path = f"{ROOT}/{outside}" if version == "v2" else f"{ROOT}/devices/{outside}"
    found, hidden = located(version, script)
    assert found[:4] == (version, path, path, "")
    assert hidden == ["open cgroup /../beside below the mounts of its hierarchy: No such file or directory"]


def test_a_process_that_is_gone_is_an_error() -> None:
    assert "No such file" in located("v2", "locate x 4194304")[0][0]
