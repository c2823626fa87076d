# SPDX-License-Identifier: Apache-2.0
"""The main job: a container started by a real runtime has exactly the GPUs that it asked for.

Each test starts real containers on the simulated node with the installed hook.  The node's GPUs have no driver behind
them, so that open() of a node tells what the device cgroup says: ENXIO is allowed, EPERM is denied.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, RUNTIMES, Bundle, Installed, on_node, run, start
from tests.integration.savedinventory import NO_ANSWERS

ALLOWED = "No such device or address"
DENIED = "Operation not permitted"

# What a container sees, as lines that tests search.
LOOK = r"""
for node in /dev/nvidia*; do echo "open $node: $(cat $node 2>&1)"; done
mknod /dev/other c 195 3; echo "open other: $(cat /dev/other 2>&1)"; rm -f /dev/other
ls /proc/driver/nvidia/gpus | sed 's/^/folder /'
grep ModifyDeviceFiles /proc/driver/nvidia/params
cat /proc/self/mountinfo
"""


def minors(*indices: int) -> list[int]:
    """The minors of GPUs by NVML's index on the eight-GPU node."""
    node = json.loads((REPOSITORY / "tests/gpunode/descriptions/h100x8.json").read_text())
    gpus = sorted(node["gpus"], key=lambda gpu: gpu["bus_id"])
    return [gpus[index]["minor"] for index in indices]


def look(bundle: Bundle) -> Bundle:
    script = LOOK.replace(
        "sed 's/^/folder /'", "while read name; do echo folder $name; done"
    ).replace("rm -f /dev/other", "true")
    return bundle.runs("/bin/sh", "-c", script)


def mounted(text: str) -> dict[str, str]:
    """Mount points and their options, from a container's mountinfo."""
    rows = [line.split() for line in text.splitlines() if " - " in line]
    return {row[4]: row[5] for row in rows}


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
@pytest.mark.parametrize("kind", ["debian", "musl", "busybox"])
def test_a_container_has_exactly_the_two_gpus_it_asked_for(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str, kind: str
) -> None:
    done = run(installed, runtime, cgroup, look(bundle(kind).asks("1,5")))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    first, second = minors(1, 5)
    opened = {line.split(": ", 1)[0]: line for line in lines if line.startswith("open /dev/")}
    assert set(opened) == {
        "open /dev/nvidiactl",
        f"open /dev/nvidia{first}",
        f"open /dev/nvidia{second}",
        "open /dev/nvidia-uvm",
        "open /dev/nvidia-uvm-tools",
    }
    assert all(ALLOWED in line for line in opened.values()), opened
    assert DENIED in next(line for line in lines if line.startswith("open other"))
    assert len([line for line in lines if line.startswith("folder ")]) == 2
    assert "ModifyDeviceFiles: 0" in lines


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_libraries_are_mounted_read_only_and_the_root_holds_only_mount_points_and_names(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str
) -> None:
    made = look(bundle("debian").asks("0"))
    before = roots.listing(made.rootfs)
    done = run(installed, runtime, cgroup, made)
    assert done.code == 0, done.err
    found = mounted(done.out)
    libraries = [point for point in found if ".so" in point and point.startswith("/usr/lib/")]
    folder = f"usr/lib/{roots.MULTIARCH}"
    assert f"/{folder}/libcuda.so.580.65.06" in libraries
    assert len(libraries) > 10
    for point in [*libraries, "/usr/bin/nvidia-smi"]:
        assert {"ro", "nosuid", "nodev"} <= set(found[point].split(",")), point
    after = roots.listing(made.rootfs)
    assert {name: kind for name, kind in after.items() if name in before} == before
    new = {name: kind for name, kind in after.items() if name not in before}
    assert set(new.values()) <= {("file", 0), ("folder", 0), ("link", 0)}
    names = [made.rootfs / name for name, kind in new.items() if kind[0] == "link"]
    assert {f"{folder}/libcuda.so.1", f"{folder}/libcuda.so"} <= {
        str(name.relative_to(made.rootfs)) for name in names
    }
    for name in names:
        # In the folder that it lies in, or a folder above it in the same place: never a way out of the root.
        assert f"/{name.resolve().relative_to(made.rootfs.resolve())}" in libraries, name
    runtimes_own = {"dev", "proc", "sys"}
    files = {name for name, kind in new.items() if kind[0] == "file"}
    assert {f"/{name}" for name in files} <= set(found), "an empty file that nothing is mounted on"
    folders = {name for name, kind in new.items() if kind[0] == "folder"} - runtimes_own
    assert all(
        any(f"/{point}".startswith(f"/{name}") for point in [*files, *[key[1:] for key in found]])
        for name in folders
    )


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_ldconfig_lists_our_libraries_and_the_containers_own(
    installed: Installed, bundle: Maker, runtime: str
) -> None:
    done = run(installed, runtime, "v2", bundle("debian").asks("0").runs("/sbin/ldconfig", "-p"))
    assert done.code == 0, done.err
    for soname in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libc.so.6"):
        assert f"\t{soname} (libc6" in done.out, soname


@pytest.mark.parametrize("kind", ["debian", "bare", "musl"])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_program_linked_to_libcuda_starts(
    installed: Installed, bundle: Maker, runtime: str, kind: str
) -> None:
    made = bundle(kind).asks("1,5").runs("/app/cuda")
    done = run(installed, runtime, "v2", made)
    assert (done.code, done.out) == (0, "cuInit 0, 2 devices\n"), done.err


def test_the_same_program_does_not_start_without_the_hook(
    installed: Installed, bundle: Maker
) -> None:
    """The test above would be worth nothing if it did."""
    made = bundle("debian").asks("1,5")
    made.config["hooks"] = {}
    done = run(installed, "runc", "v2", made.runs("/app/cuda"))
    assert done.code != 0
    assert "libcuda.so.1" in done.err


@pytest.mark.parametrize("devices", [None, "", "void", "0,void"])
@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_a_container_that_asks_for_nothing_is_left_alone(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str, devices: str | None
) -> None:
    made = (
        bundle("busybox").asks(devices).runs("/bin/sh", "-c", "ls /dev; cat /proc/self/mountinfo")
    )
    before = roots.listing(made.rootfs)
    done = run(installed, runtime, cgroup, made, faults=("no-proc-driver",))
    assert done.code == 0, done.err
    assert "nvidia" not in done.out.replace("/proc/driver/nvidia", "")
    new = set(roots.listing(made.rootfs)) - set(before)
    assert new <= {"dev", "proc", "sys"}


def test_none_brings_driver_files_and_no_gpu(installed: Installed, bundle: Maker) -> None:
    done = run(installed, "runc", "v2", look(bundle("busybox").asks("none", "utility")))
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if line.startswith("open /dev/")] == [
        f"open /dev/nvidiactl: cat: can't open '/dev/nvidiactl': {ALLOWED}"
    ]
    assert "libnvidia-ml.so.580.65.06" in done.out
    assert "libcuda" not in done.out


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_a_read_only_root_works(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str
) -> None:
    made = bundle("debian").asks("0")
    made.config["root"]["readonly"] = True
    done = run(installed, runtime, cgroup, made.runs("/bin/sh", "-c", "/app/cuda; touch /x"))
    assert "cuInit 0, 1 devices" in done.out, done.err
    assert "Read-only file system" in done.err


def test_a_container_as_another_user_uses_its_gpu(installed: Installed, bundle: Maker) -> None:
    made = bundle("debian").asks("0")
    made.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    made.config["process"]["capabilities"] = {}
    made.config["process"]["noNewPrivileges"] = True
    # An engine's umask may be 077, and what is made for the container must be readable all the same.
    hooks = copy.deepcopy(made.config["hooks"])
    ours = hooks["createRuntime"][-1]
    ours["args"] = ["sh", "-c", f"umask 077; exec {ours['path']} createRuntime"]
    ours["path"] = "/bin/sh"
    made.config["hooks"] = hooks
    read = "cat /proc/driver/nvidia/params /lib/firmware/nvidia/*/gsp* >/dev/null"
    script = f"{read} && ls /proc/driver/nvidia/gpus/*/information && /app/cuda"
    done = run(installed, "runc", "v2", made.runs("/bin/sh", "-c", script))
    assert done.code == 0, done.err
    assert done.out.endswith("/information\ncuInit 0, 1 devices\n")


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_in_a_user_namespace_the_hosts_nodes_are_bound(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str
) -> None:
    made = bundle("busybox").asks("1,5")
    mapping = [{"containerID": 0, "hostID": 0, "size": 65536}]
    # sysfs can be mounted in a user namespace only together with a network namespace.
    made.config["linux"]["namespaces"] += [{"type": "user"}, {"type": "network"}]
    made.config["linux"]["uidMappings"] = made.config["linux"]["gidMappings"] = mapping
    done = run(installed, runtime, cgroup, look(made))
    assert done.code == 0, done.err
    opened = [line for line in done.out.splitlines() if line.startswith("open /dev/")]
    assert len(opened) == 5
    assert all(ALLOWED in line for line in opened), opened
    assert f"/dev/nvidia{minors(1)[0]}" in mounted(done.out)


def test_the_sockets_of_nvidias_services_are_there(installed: Installed, bundle: Maker) -> None:
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", "cat /proc/self/mountinfo")
    found = mounted(run(installed, "runc", "v2", made).out)
    for socket in (
        "/var/run/nvidia-persistenced/socket",
        "/var/run/nvidia-fabricmanager/socket",
        "/tmp/nvidia-mps",
    ):
        assert {"rw", "nosuid", "nodev", "noexec"} <= set(found[socket].split(",")), socket


def test_nvidia_smi_lists_the_gpus_as_allowed(installed: Installed, bundle: Maker) -> None:
    done = run(installed, "runc", "v2", bundle("busybox").asks("1,5").runs("/usr/bin/nvidia-smi"))
    assert done.code == 0, done.out + done.err
    assert done.out.count("NVIDIA H100") == 2
    assert "denied" not in done.out


def test_a_hundred_starts_in_a_row(installed: Installed, bundle: Maker) -> None:
    made = bundle("busybox").asks("1,5").runs("/usr/bin/nvidia-smi")
    line = start("runc", made, "row-$i")
    done = on_node(
        installed, f"for i in $(seq 100); do {line} >/dev/null || echo failed $i; done; echo done"
    )
    assert (done.code, done.out) == (0, "done\n"), done.err


def test_sixteen_starts_at_a_time(installed: Installed, bundle: Maker, tmp_path: Path) -> None:
    """With no saved inventory: sixteen hooks survey and save at once and do not hurt each other."""
    lines = ["rm -f /run/oci-gpu-hook/*"]
    for number in range(16):
        made = bundle("busybox").asks(str(number % 8)).runs("/usr/bin/nvidia-smi")
        lines.append(
            f"{start('runc', made, f'side-{number}')} >/dev/null || echo failed {number} &"
        )
    lines += ["wait", f"ls /run/oci-gpu-hook {NO_ANSWERS}"]
    done = on_node(installed, "\n".join(lines))
    assert (done.code, done.out) == (0, "inventory\n"), done.err


def test_poststop_does_nothing_and_the_containers_own_stages_are_refused(
    installed: Installed,
) -> None:
    hook = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
    done = on_node(
        installed,
        f"{hook} poststop </dev/null; echo $?; {hook} startContainer </dev/null || echo $?",
    )
    assert done.out == "0\n2\n"
    assert "runs inside the container" in done.err
