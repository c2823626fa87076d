# SPDX-License-Identifier: Apache-2.0
"""The main job: a container started by a real runtime has exactly the GPUs that it asked for, and what they need."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import sys

import pytest

from tests.gpunode import description
from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import RUNTIMES, Bundle, in_turn, on_node, run, start
from tests.integration.inside import ALLOWED, COMPUTE, added, gpus, look, mounted, node

# What the runtime allowed stays allowed: /dev/null.
SHOW = """
grep ModifyDeviceFiles /proc/driver/nvidia/params
echo >/dev/null && nvidia-smi && /app/cuda
"""


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_a_container_has_exactly_what_it_asked_for(bundle: Maker, runtime: str, cgroup: str) -> None:
    made = bundle("debian").asks("1,5")
    before = roots.listing(made.rootfs)
    seen = look(made, SHOW, runtime=runtime, cgroup=cgroup)
    seen.has_exactly(*COMPUTE, node(1), node(5))
    assert {path.partition("/")[0] for path in seen.shown("gpus")} == {gpus()[index]["bus_id"] for index in (1, 5)}
    assert seen.printed.startswith("ModifyDeviceFiles: 0\n")
    assert seen.printed.count("NVIDIA H100") == 2 and "denied" not in seen.printed
    assert seen.printed.endswith("cuInit 0, 2 devices\n")
    folder = "/usr/local/nvidia/lib64"
    for soname in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
        assert seen.libraries[soname, 64] == [f"{folder}/{soname}"]
    assert seen.libraries["libc.so.6", 64] == [f"/usr/lib/{roots.MULTIARCH}/libc.so.6"]
    libraries = [point for point in seen.mounts if point.startswith(folder) and ".so" in point]
    assert f"{folder}/libcuda.so.580.65.06" in libraries
    assert len(libraries) > 10
    for point in [*libraries, "/usr/local/nvidia/bin/nvidia-smi"]:
        assert {"ro", "nosuid", "nodev"} <= seen.mounts[point], point
    for service in ("/var/run/nvidia-persistenced/socket", "/var/run/nvidia-fabricmanager/socket"):
        assert {"rw", "nosuid", "nodev", "noexec"} <= seen.mounts[service], service
    assert {"ro", "nosuid", "nodev", "noexec"} <= seen.mounts["/tmp/nvidia-mps"]

    # New in the root are mount points and links alone, and none of a library.
    new = added(made.rootfs, before)
    assert not [name for name in new if ".so" in name and name != "etc/ld.so.conf.d/000-oci-gpu-hook.conf"]
    names = {name for name, kind in new.items() if kind[0] == "link"}
    for name in names:
        # Never a way out of the root, and nothing there without a driver.
        assert os.readlink(made.rootfs / name).startswith("/usr/local/nvidia/") and not (made.rootfs / name).exists()
    files = {name for name, kind in new.items() if kind == ("file", 0)}
    assert {f"/{name}" for name in files} <= set(seen.mounts), "a file that nothing is mounted on"
    folders = {name for name, kind in new.items() if kind[0] == "folder"}
    assert {*new} == names | files | folders
    points = [*files, *names, *[point[1:] for point in seen.mounts]]
    assert all(any(point.startswith(name) for point in points) for name in folders - {"dev", "proc", "sys"})


@pytest.mark.parametrize(("runtime", "kind"), [("crun", "bare"), ("runc", "musl")])
def test_a_program_linked_to_libcuda_starts_in_any_image(bundle: Maker, runtime: str, kind: str) -> None:
    done = run(runtime, "v2", bundle(kind).asks("1,5").runs("/app/cuda"))
    assert (done.code, done.out) == (0, "cuInit 0, 2 devices\n"), done.err


def test_the_same_program_fails_without_the_hook(bundle: Maker) -> None:
    """The tests above would be worth nothing if it did."""
    made = bundle("debian").asks("1,5")
    made.config["hooks"] = {}
    done = run("runc", "v2", made.runs("/app/cuda"))
    assert done.code != 0
    assert "libcuda.so.1" in done.err


LINK = "/usr/bin/nvidia-container-runtime-hook"


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_three_hooks_give_what_one_gives(bundle: Maker, runtime: str, cgroup: str) -> None:
    """By dockerd's entry, and by two registrations, as where an engine reads two folders: the first does the work."""
    look = "cut -d' ' -f5 /proc/self/mountinfo | sort; ls -l /dev; nvidia-smi -L; /app/cuda"
    made = bundle("debian").asks("1,5").runs("/bin/sh", "-c", look)
    once = run(runtime, cgroup, made)
    node, ours = made.config["hooks"]["createRuntime"]
    dockers = {"path": LINK, "args": ["nvidia-container-runtime-hook", "prestart"]}
    made.config["hooks"] = {"prestart": [node, dockers], "createRuntime": [ours, ours]}
    made.write()
    link = f"ln -s ../libexec/oci/hooks.d/oci-gpu-hook {LINK}\n"
    thrice = on_node(link + start(runtime, made), cgroup=cgroup)
    assert (once.code, thrice.code) == (0, 0), once.err + thrice.err
    assert once.out.count("NVIDIA H100") == 2 and "cuInit 0, 2 devices" in once.out
    # But for the minute in which they were made.
    assert [re.sub(r" ..:..", "", it) for it in once[1:]] == [re.sub(r" ..:..", "", it) for it in thrice[1:]]


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_a_container_that_asks_for_nothing_is_left_alone(bundle: Maker, runtime: str, cgroup: str) -> None:
    asked = (None, "", "void", "0,void")
    made = [bundle("busybox").asks(it).runs("/bin/sh", "-c", "ls /dev; cat /proc/self/mountinfo") for it in asked]
    before = roots.listing(made[0].rootfs)
    script = "\n".join(start(runtime, each) for each in made)
    out = on_node(script, cgroup=cgroup, faults=("no-proc-driver",)).printed()
    assert out.count(" /proc ") == len(asked)
    assert "nvidia" not in out.replace("/proc/driver/nvidia", "")
    for each in made:
        assert set(roots.listing(each.rootfs)) - set(before) <= {"dev", "proc", "sys"}


def test_a_container_as_another_user_uses_its_gpu(bundle: Maker) -> None:
    made = bundle("debian").asks("0")
    made.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    made.config["process"]["capabilities"] = {}
    made.config["process"]["noNewPrivileges"] = True
    # An engine's umask may be 077, and what is made for the container must be readable all the same.
    ours = made.config["hooks"]["createRuntime"][-1]
    ours.update(path="/bin/sh", args=["sh", "-c", f"umask 077; exec {ours['path']} createRuntime"])
    read = "cat /proc/driver/nvidia/params /lib/firmware/nvidia/*/gsp* >/dev/null"
    script = f"{read} && ls /proc/driver/nvidia/gpus/*/information && /app/cuda"
    out = run("runc", "v2", made.runs("/bin/sh", "-c", script)).printed()
    assert out.endswith("/information\ncuInit 0, 1 devices\n")


@pytest.mark.parametrize("root", [0, 100_000])
@pytest.mark.parametrize(("runtime", "cgroup"), [("runc", "v1"), ("runc", "v2"), ("crun", "v2")])
def test_in_a_user_namespace_the_hosts_nodes_are_bound(bundle: Maker, runtime: str, cgroup: str, root: int) -> None:
    made = bundle("busybox").asks("1,5").in_user_namespace(root)
    # As in RHEL's images.
    made.changed(f"mkdir -p usr/bin usr/lib64; for it in usr usr/*; do chown {root}:{root} $it; chmod 555 $it; done")
    show = "for path in /dev/nvidia*; do echo $({ true <$path; } 2>&1); done; cat /proc/self/mountinfo"
    out = run(runtime, cgroup, made.runs("/bin/sh", "-c", show)).printed()
    assert out.count(ALLOWED[0]) == 5, out
    assert {*COMPUTE, node(1), node(5)} <= set(mounted(out))


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_no_node_stays_on_a_disk(bundle: Maker, runtime: str) -> None:
    """Where /dev is a folder of the root: it would be open to users of the host who have the root."""
    made = bundle("busybox").asks("5").without("/dev").changed("mkdir -p dev")
    out = run(runtime, "v2", made.runs("/bin/sh", "-c", "cat /proc/self/mountinfo")).printed()
    assert {*COMPUTE, node(5)} <= set(mounted(out))
    left = [*made.rootfs.glob("dev/nvidia*")]
    assert left and not [path for path in left if stat.S_ISCHR(path.lstat().st_mode)]


def test_a_link_to_a_folder_that_is_missing_leads_there(bundle: Maker) -> None:
    """Also one whose text ends in a slash."""
    made = bundle("busybox").asks("5").changed("mkdir -p usr/local; ln -s /opt/nvidia/ usr/local/nvidia")
    assert run("runc", "v2", made.runs("/bin/ls", "/usr/local/nvidia/")).printed()


def test_a_hosts_node_of_another_device_is_not_bound(bundle: Maker) -> None:
    made = bundle("busybox").asks("all").in_user_namespace(100_000).runs("/bin/sh", "-c", "true")
    done = run("runc", "v2", made, faults=("wrong-node",))
    assert done.code != 0
    assert re.search(r"cannot bind the host's node /dev/nvidia\d: it is device 1:7, and the driver's is 195:", done.err)


def test_stages_that_have_nothing_to_do_or_are_refused() -> None:
    hook = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
    script = f"{hook} poststop </dev/null; echo $?; {hook} startContainer </dev/null || echo $?"
    done = on_node(script)
    assert done.out == "0\n2\n"
    assert "runs inside the container" in done.err


FUSE = {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666}

# Starts its words as conmon and containerd's shim start a runtime: they collect the orphans.
COLLECTS = """
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
code = subprocess.call(sys.argv[1:])
while code == 0:
    try:
        os.wait()
    except ChildProcessError:
        break
sys.exit(code)
"""


@pytest.mark.parametrize("devices", ["1,5", None])
def test_a_bundle_that_crun_does_not_tell_is_found(bundle: Maker, devices: str | None) -> None:
    """With a user namespace and a device, crun says that the bundle is "/"."""
    made = bundle("busybox").asks(devices).in_user_namespace(100_000)
    made.config["linux"]["devices"] = [FUSE]
    made.config["root"]["path"] = str(made.rootfs)
    made.told_to_the_driver().runs("/bin/sh", "-c", "ls /dev/nvidia[0-9]* 2>/dev/null | wc -l")
    collects = f"{sys.executable} -c {shlex.quote(COLLECTS)}"
    # crun's child is the container's parent, or a subreaper, or PID 1.
    lines = [
        start("crun", made, "by-path"),
        # As an engine that starts crun in the bundle.
        f"cd {made.path}; crun run in-folder",
        f"{collects} {start('crun', made, 'collected')}",
        f"{collects} crun create --bundle {made.path} created </dev/null >/run/out & crun=$!",
        "until crun state created 2>/dev/null | grep -q 'status.*created'; do sleep 0.1; done",
        "crun start created; wait $crun; cat /run/out; crun delete --force created",
        f"crun create --bundle {made.path} orphan </dev/null >/run/out; crun start orphan",
        "until grep . /run/out; do sleep 0.1; done; crun delete --force orphan",
    ]
    done = on_node("\n".join(lines))
    assert (done.code, done.out.split()) == (0, ["2" if devices else "0"] * 5), done.err


# Of the host's group 44.  The nodes of the simulated driver give ENXIO to those who may open them.
NARROW = "chgrp 44 /dev/nvidia*[0-9l]; chmod 0660 /dev/nvidia*[0-9l]\n"
TRY = f"(exec 3<>{node(0)}) 2>&1; stat -c '%a %g' {node(0)}"


def as_user(made: Bundle, uid: int, gid: int, *groups: int) -> Bundle:
    made.config["process"]["user"] = {"uid": uid, "gid": gid, "additionalGids": list(groups)}
    # As engines do for another user than root: no capability is left to it.
    made.config["process"]["capabilities"] = {}
    return made.asks("0", "utility").runs("/bin/sh", "-c", f"{TRY} || :")


# Who the container's process is, and mode and group of the node.
PEOPLE = {
    "a user": ((1000, 1000), "660 1000"),
    "a user in the group": ((1000, 1000, 44), "660 44"),
    "a user of root's group": ((1000, 0), "660 0"),
    "root without capabilities": ((0, 0), "660 44"),
}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_containers_user_opens_its_devices(bundle: Maker, runtime: str) -> None:
    scripts = {}
    for name, (ids, _) in PEOPLE.items():
        scripts[name] = f"{start(runtime, as_user(bundle('busybox'), *ids))} 2>&1"
    found = in_turn(scripts, NARROW)
    for name, (_, made) in PEOPLE.items():
        opened, *rest = [line for line in found[name] if not line.startswith("time=")]
        assert "No such device or address" in opened and rest == [made], (name, found[name])


# The hook in a container that has some of the host's GPUs: the others have no number there, and none gets them.
# What such a container has: two of eight nodes, and one of the ways in which engines show that it is one.
KEPT = (3, 5)
NODES = "for node in 0 1 2 4 6 7; do rm /dev/nvidia$node; done\n"
MASKED = (
    "sed 's/^ModifyDeviceFiles: 1/ModifyDeviceFiles: 0/' /proc/driver/nvidia/params >/run/params\n"
    "mount --bind /run/params /proc/driver/nvidia/params\n"
)
MARKED = "mkdir -p /run/systemd; echo docker >/run/systemd/container\n"
MADE = "ls /dev | grep -c '^nvidia[0-9]'; nvidia-smi -L"


def uuids(*minors: int) -> list[str]:
    described = description.load("h100x8")
    return [gpu.uuid for minor in minors for gpu in described.gpus if gpu.minor == minor]


@pytest.mark.parametrize("shown", [MASKED, MARKED], ids=["masked", "marked"])
def test_only_its_own_gpus_are_numbered(bundle: Maker, shown: str) -> None:
    every, second, users = bundle("debian").asks("all"), bundle("debian").asks("1"), bundle("debian").asks("all")
    other = bundle("debian").asks(uuids(0)[0])
    for made in (every, second, users.in_user_namespace(100_000), other):
        made.runs("/bin/sh", "-c", MADE)
    scripts = {
        "all": start("runc", every),
        "1": start("runc", second),
        "user namespace": start("crun", users),
        "another": f"{start('runc', other)} 2>&1 || :",
        "plan": f"oci-gpu-hook plan --bundle {every.path}",
        "info": "oci-gpu-hook info --json | tr -d '\\n'",
        "doctor": "oci-gpu-hook inventory refresh >&2; oci-gpu-hook doctor --json | tr -d '\\n'",
        "spec": "oci-gpu-hook cdi generate",
    }
    found = in_turn(scripts, NODES + shown)
    first, last = uuids(*KEPT)
    for name, given in (("all", (first, last)), ("1", (last,)), ("user namespace", (first, last))):
        count, *listed = found[name]
        assert count == str(len(given)), (name, found)
        assert [uuid in line for uuid, line in zip(given, listed)] == [True] * len(given), found
    assert any("unknown device" in line and "has 2 GPUs, and none" in line for line in found["another"]), found
    assert len([line for line in found["plan"] if "is not numbered: this host is a container" in line]) == 6, found
    (info,) = found["info"]
    assert [gpu["uuid"] for gpu in json.loads(info)["gpus"]] == [first, last]
    assert len(json.loads(info)["elsewhere"]) == 6
    (said,) = found["doctor"]
    findings = {item["check"]: item for item in json.loads(said)["findings"]}
    assert "without a node here" in findings["GPUs"]["seen"]
    assert [findings[check]["level"] for check in ("GPUs", "nodes", "inventory")] == ["pass"] * 3, findings
    spec = json.loads("\n".join(found["spec"]))
    assert [it["name"] for it in spec["devices"]] == ["0", first, "1", last, "all", "none"]


def test_on_a_host_a_missing_node_is_made(bundle: Maker) -> None:
    """After a boot nodes may not be there yet: the GPUs have their numbers all the same."""
    every = bundle("debian").asks("all").runs("/bin/sh", "-c", MADE)
    done = on_node(NODES + start("runc", every))
    assert done.out.splitlines()[0] == "8", done.out


def test_a_node_by_another_gpus_name_counts_for_none(bundle: Maker) -> None:
    """As ``--device /dev/nvidia3:/dev/nvidia0`` makes one: its number, not its name, says which GPU it is."""
    every = bundle("debian").asks("all").runs("/bin/sh", "-c", MADE)
    renamed = f"{NODES}rm /dev/nvidia3 /dev/nvidia5; mknod /dev/nvidia0 c 195 3\n{MARKED}"
    done = on_node(f"{renamed}{start('runc', every)} 2>&1 || :")
    assert "drives no GPU" in done.out and "NVIDIA H100" not in done.out, done.out
