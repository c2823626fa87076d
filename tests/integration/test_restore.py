# SPDX-License-Identifier: Apache-2.0
"""Checkpoint and restore: real runc and CRIU, the newest that Debian has; older ones do not know a newer kernel's vDSO.

At a restore runc calls its hooks with CRIU's child as the process, in a copy of the host's mounts.  And containers that
are started again in the same root: what a start has left there serves the next, or is in no way.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import PODMAN_RUN, Bundle, cdi_devices, in_turn, on_node, podman, run, start, with_podman
from tests.integration.inside import ALLOWED, DENIED, node
from tests.integration.test_leases import ONE, begun

GIVEN = node(1)
NUMBER, OTHER = [int(node(index)[len("/dev/nvidia") :]) for index in (1, 5)]
LOOK = f"for node in {GIVEN} /dev/not-asked-for; do cat $node 2>&1; done; nvidia-smi -L; cat /count"
COUNTS = "i=0; while :; do i=$((i+1)); echo $i >/next; mv /next /count; sleep 0.05; done"
COUNT = f"mknod /dev/not-asked-for c 195 {OTHER}; {COUNTS}"
# What the manual says that CRIU needs.  CRIU and runc are found in PATH.
DUMPS = """
export PATH={newest}:$PATH
mkdir -p /etc/criu; echo 'external mnt[]:ms' >/etc/criu/runc.conf
runc() {{ {runc} {options} "$@"; }}
# Terminals are the machine's, and of what runs beside this; "next" is there for a moment.
made() {{ (cd /dev; find . -path ./pts -prune -o -type c -print -o -type b -print | sort); ls -R -I next {rootfs}; }}
checkpoint() {{
    runc checkpoint --image-path {folder}/image --work-path {folder}/criu again >&2 ||
        {{ cat {folder}/criu/dump.log >&2; exit 1; }}
}}
restore() {{
    runc restore --detach --bundle {bundle} --image-path {folder}/image --work-path {folder}/criu again \\
        </dev/null >/dev/null 2>{folder}/said
}}
"""


def dumps(made: Bundle, newest: Path, folder: Path, runc: str, options: str = "") -> str:
    words = {"bundle": made.path, "rootfs": made.rootfs, "folder": folder, "newest": newest, "options": options}
    return DUMPS.format(runc="command runc" if runc == "newest" else "/usr/sbin/runc", **words)


@pytest.mark.parametrize("runc", ["distribution's", "newest"])
@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_a_restored_one_has_its_devices(bundle: Maker, newest: Path, tmp_path: Path, cgroup: str, runc: str) -> None:
    made = bundle("busybox").asks("1", "utility").runs("/bin/sh", "-c", COUNT)
    script = f"""
        {dumps(made, newest, tmp_path, runc)}
        look() {{ echo "== $1"; runc exec again sh -c '{LOOK}'; }}
        runc run --detach --bundle {made.path} again </dev/null >/dev/null 2>&1
        look start
        made >{tmp_path}/before
        for time in first second; do
            checkpoint
            rm -rf /run/oci-gpu-hook
            restore || {{ cat {tmp_path}/said {tmp_path}/criu/restore.log >&2; exit 1; }}
            look $time
        done
        made | diff {tmp_path}/before - >&2
        runc delete --force again
    """
    out = on_node(script, cgroup=cgroup).printed()
    counts = []
    for part in out.split("== ")[1:]:
        lines = part.splitlines()
        assert lines[1].endswith(ALLOWED[0]), part
        assert lines[2].endswith(DENIED), part
        assert lines[3].startswith("GPU 0: "), part
        counts.append(int(lines[-1]))
    assert len(counts) == 3 and counts == sorted(counts)


def test_systemd_knows_what_is_restored(bundle: Maker, newest: Path, tmp_path: Path) -> None:
    made = bundle("busybox").asks("1", "utility")
    made.config["linux"]["cgroupsPath"] = "system.slice:runc:again"
    look = f"runc exec again cat {GIVEN} 2>&1 || true"
    script = f"""
        {dumps(made.runs("/bin/sh", "-c", COUNT), newest, tmp_path, "newest", "--systemd-cgroup")}
        # What CRIU sets there is the container's own.
        for path in kernel fs/mqueue; do
            mount --bind /proc/sys/$path /proc/sys/$path; mount -o remount,bind,rw /proc/sys/$path
        done
        runc run --detach --bundle {made.path} again </dev/null >/dev/null 2>&1
        checkpoint
        restore || {{ cat {tmp_path}/said {tmp_path}/criu/restore.log >&2; exit 1; }}
        {look}; systemctl daemon-reload; {look}
        runc delete --force again
    """
    out = on_node(script, booted=True).printed()
    answers = [line for line in out.splitlines() if GIVEN in line]
    assert [line.endswith(ALLOWED[0]) for line in answers] == [True, True]


# CRIU would restore the machine's other cgroups, too: the node is in none of its own.
CRUN = """
crun run --detach --bundle {bundle} {name} </dev/null >/dev/null 2>&1
for command in checkpoint "restore --detach --bundle {bundle}"; do
    crun $command --manage-cgroups-mode ignore --image-path {folder}/{name} --work-path {folder}/log {name} \
        </dev/null >{folder}/said 2>&1 || {{ cat {folder}/said {folder}/log/*.log >&2; exit 1; }}
done
crun exec {name} cat {given} 2>&1 || true
oci-gpu-hook doctor --container {name} | grep "^fail" || true
crun delete --force {name}
"""


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_crun_restores_what_config_json_allows_and_doctor_tells_the_rest(
    bundle: Maker, newest: Path, tmp_path: Path, cgroup: str
) -> None:
    """It starts no hook then.  An engine writes the devices of a CDI spec into config.json."""
    scripts = {}
    for name in ("hook", "cdi"):
        # Nothing that forks: CRIU cannot stop who waits for a child that it has stopped.
        made = bundle("busybox").asks("1", "utility").runs("/bin/sh", "-c", "while :; do :; done")
        if name == "cdi":
            rule = {"allow": True, "type": "c", "major": 195, "minor": NUMBER, "access": "rw"}
            made.config["linux"]["resources"]["devices"].append(rule)
            made.write()
        scripts[name] = CRUN.format(bundle=made.path, name=f"{made.id}-{name}", folder=tmp_path, given=GIVEN)
    before = f"export PATH={newest}:$PATH; mkdir /etc/criu; echo 'external mnt[]:ms' >/etc/criu/crun.conf\n"
    seen = in_turn(scripts, before, cgroup=cgroup)
    assert seen["cdi"][0].endswith(ALLOWED[0]), seen
    assert seen["hook"][0].endswith(DENIED), seen
    assert "as daemon-reload, update and a restore by crun do" in seen["hook"][1], seen


@pytest.mark.parametrize("asked", ["--env NVIDIA_VISIBLE_DEVICES=1", cdi_devices("nvidia.com/gpu=1")])
def test_by_podman(root: Path, newest: Path, tmp_path: Path, asked: str) -> None:
    line = podman('"$@"', runtime=f"{newest}/runc", folder=tmp_path)
    # A long sleep may end with the restore.
    look = f"podman exec again sh -c 'cat {GIVEN} 2>&1; nvidia-smi -L'"
    script = f"""
        export PATH={newest}:$PATH
        mkdir -p /etc/criu /var/run/cdi; echo 'external mnt[]:ms' >/etc/criu/runc.conf
        oci-gpu-hook cdi generate --output /var/run/cdi/nvidia.json >&2
        podman() {{ command {line}; }}
        podman {PODMAN_RUN} --detach --name again --log-driver=k8s-file {asked} \
            --rootfs {root} sh -c 'while sleep 0.05; do :; done' </dev/null >/dev/null
        {look}
        podman container checkpoint again >&2
        podman container restore again >&2
        {look}
        podman rm --force --time 0 again >&2
    """
    lines = with_podman(script).printed().splitlines()
    before, after = lines[:2], lines[2:]
    assert before == after
    assert before[0].endswith(ALLOWED[0]) and before[1].startswith("GPU 0: ")


CHOSEN = "runc exec again sh -c 'cd /dev; echo nvidia[0-9]*'"


def test_any_gives_the_same_if_it_has_room(bundle: Maker, newest: Path, tmp_path: Path) -> None:
    """And not those that it would choose now.  A node of the container's own making can make it tell nothing."""
    made = bundle("busybox").asks("any:2", "utility").runs("/bin/sh", "-c", "while :; do sleep 0.05; done")
    rival = bundle("debian").asks("any:2", "utility").runs("/bin/sh", "-c", "cd /dev; echo nvidia[0-9]*; sleep 1000")
    begin = f"command runc run --detach --bundle {made.path} again </dev/null >/dev/null 2>&1\n{CHOSEN}\n"
    opens = "runc exec again sh -c 'for node in /dev/nvidia[0-9]*; do cat $node 2>&1; done' || true\n"
    refused = f"restore && exit 1; cat {tmp_path}/said\n"
    again = f"restore || {{ cat {tmp_path}/said; exit 1; }}; {CHOSEN}\n"
    scripts = {
        "rival": begun("command runc", rival, "rival"),
        "start": begin,
        "restored": f"runc delete --force rival; checkpoint; {again}{opens}",
        "held": f"checkpoint; {begun('command runc', rival, 'r2')}; {begun('command runc', rival, 'r3')}; {refused}",
        "freed": f"runc delete --force r3; {again}",
        "forged": f"runc exec again mknod /dev/other c 195 5; checkpoint; {refused}runc delete --force r2",
    }
    found = in_turn(scripts, dumps(made, newest, tmp_path, "newest"), settings=ONE)
    assert found["start"] != found["rival"]
    assert found["restored"][0] == found["start"][0]
    assert [line.endswith(ALLOWED[0]) for line in found["restored"][1:]] == [True, True]
    assert "2 devices are asked for, and 0 have room" in " ".join(found["held"])
    assert found["freed"] == found["start"]
    told = "any:2 is asked for, and the checkpoint has nodes of 3 of this host's devices"
    assert told in " ".join(found["forged"])


# Programs of a process in a mount namespace of its own, for a state that says "stopped", which any runtime can write.
CALLED = """
hook() {
    "$@" & pid=$!
    sleep 0.3
    echo '{"ociVersion": "1.2.0", "id": "x", "status": "stopped", "pid": '$pid', "bundle": "BUNDLE"}' |
        /usr/libexec/oci/hooks.d/oci-gpu-hook createRuntime 2>&1 && echo done
    kill $pid
}
"""
FORGED = {
    "another program": "unshare -m /bin/sleep 1000",
    "another name": "unshare -m bash -c 'exec -a criu /bin/sleep 1000'",
    "a user's program": "cp /bin/sleep /run/criu; chown 1000 /run/criu; hook unshare -m /run/criu 1000",
    "a program that its group can write to": "chown 0 /run/criu; chmod 775 /run/criu; hook unshare -m /run/criu 1000",
    "in a user's folder": "install -d -o 1000 /run/u; cp /bin/sleep /run/u/criu; hook unshare -m /run/u/criu 1000",
}


def test_nothing_else_is_restored(bundle: Maker) -> None:
    """Nothing is made where the state is a lie, on a root that the host has mounted, as engines do."""
    made = bundle("busybox").asks("1", "utility").runs("/bin/true")
    before = CALLED.replace("BUNDLE", str(made.path)) + f"mount --bind {made.rootfs} {made.rootfs}\n"
    # Of the machine's mounts and terminals, others' come and go beside this.
    devices = "cd /dev; find . -path ./pts -prune -o -type c -print"
    look = f"({devices}; cd {made.rootfs}; find .; grep -F {made.rootfs} /proc/self/mountinfo) | sort"
    scripts = {name: line if "hook " in line else f"hook {line}" for name, line in FORGED.items()}
    scripts = {name: f"{look} >/run/before; {line}; {look} | diff /run/before -" for name, line in scripts.items()}
    found = in_turn(scripts, before)
    for name, lines in found.items():
        assert len(lines) == 1, (name, lines)
        assert "the state says that the container is stopped, and process" in lines[0], name
        assert "is not root's CRIU" in lines[0], name


FOLDER = "/usr/local/nvidia/lib64"
IMAGES = f"usr/lib/{roots.MULTIARCH}"
DRIVERS = {"h100x8": "580.65.06", "h100mig": "590.48.01", "v100": "535.183.01"}

SEE = f"/app/cuda; LD_LIBRARY_PATH=/{IMAGES} /app/cuda; nvidia-smi; cat /proc/self/mountinfo"
LOOKS = ("/bin/sh", "-c", SEE)


def libraries(lines: list[str]) -> list[str]:
    """The mount points of libraries, of a container in which a program finds its GPU, whatever folder it names."""
    assert lines[:2] == ["cuInit 0, 1 devices"] * 2, lines
    points = [line.split()[4] for line in lines if " - " in line]
    return sorted(point for point in points if point.startswith(f"{FOLDER}/"))


@pytest.mark.parametrize(("runtime", "read_only"), [("runc", False), ("crun", True)])
def test_the_same_driver_adds_nothing(bundle: Maker, runtime: str, read_only: bool) -> None:
    made = bundle("debian").asks("0")
    made.config["root"]["readonly"] = read_only
    left = f"cd {made.rootfs}; find . -printf '%p %y %s %l\\n' | sort | md5sum"
    script = f"{start(runtime, made.runs(*LOOKS))}\n{left}"
    first, second = in_turn({"first": script, "second": script}).values()
    assert libraries(first) == libraries(second)
    assert first[-1] == second[-1]


def test_a_dev_on_a_disk_is_served_again(bundle: Maker, tmp_path: Path) -> None:
    """By a caller that has no other: nodes are bound there, and their mount points stay."""
    root = bundle("debian").rootfs
    before = f"""
        ln -s ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
        mkdir {tmp_path}/upper {tmp_path}/work
        mount -t overlay -o lowerdir={root},upperdir={tmp_path}/upper,workdir={tmp_path}/work none /mnt
    """
    script = """
        unshare --mount sh -ec 'nvidia-container-cli configure --no-cgroups --device=0 --compute /mnt
            stat -c %t:%T /mnt/dev/nvidiactl'
        stat -c %F /mnt/dev/nvidiactl
    """
    first, second = in_turn({"first": script, "second": script}, before).values()
    assert first == second == ["c3:ff", "regular empty file"]


def test_another_driver_finds_nothing_of_the_last(bundle: Maker) -> None:
    """Up and down: what is left names no version but the firmware's folder, and serves each driver."""
    made = bundle("debian").asks("0").runs(*LOOKS)
    left = set()
    for description in ("h100x8", "h100mig", "v100", "h100x8"):
        points = libraries(run("crun", "v2", made, description=description).printed().splitlines())
        assert f"{FOLDER}/libcuda.so.{DRIVERS[description]}" in points
        assert {point for point in points if DRIVERS[description] in point} == {p for p in points if ".so.5" in p}
        assert os.readlink(made.rootfs / "usr/bin/nvidia-smi") == "/usr/local/nvidia/bin/nvidia-smi"
        left.add(tuple(name for name in roots.listing(made.rootfs) if "firmware" not in name))
    assert len(left) == 1


# What an image has, made in its folder of libraries; each start left the last until it had a folder for the driver.
PLANTED = {
    "own file": "echo own >libcuda.so.1",
    "own link": "echo own >libcuda.so.535.54.03; ln -s libcuda.so.535.54.03 libcuda.so.1",
    "dangling link": "ln -s /usr/lib/libcuda.so.535.54.03 libcuda.so.1",
    "older versions": """
for name in libcuda libnvidia-ml; do touch $name.so.535.54.03; ln -s $name.so.535.54.03 $name.so.1; done
ln -s libcuda.so.535.54.03 libcuda.so; touch ../../bin/nvidia-smi""",
}


@pytest.mark.parametrize(("runtime", "with_users"), [("runc", True), ("crun", False)])
def test_what_an_image_has_stays(bundle: Maker, runtime: str, with_users: bool) -> None:
    """And is in no way, where LD_LIBRARY_PATH names its folder; in a user namespace too."""
    scripts, before = {}, {}
    for name, plant in PLANTED.items():
        made = bundle("debian").asks("0").changed(plant, IMAGES)
        if with_users:
            made.in_user_namespace(0)
        before[made.rootfs] = named(made.rootfs)
        line = start(runtime, made.runs(*LOOKS))
        scripts.update({f"{name} {time}": line for time in ("once", "twice")})
    found = in_turn(scripts)
    assert len(found) == 8
    for lines in found.values():
        libraries(lines)
    for root, names in before.items():
        assert {name: it for name, it in named(root).items() if name in names} == names


def named(root: Path) -> dict[str, tuple[str, int]]:
    return {name: kind for name, kind in roots.listing(root).items() if "cuda" in name or "nvidia-smi" in name}
