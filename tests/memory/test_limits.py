# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_GPU_MEMORY_LIMIT, held by the kernel in real containers, and refused where it cannot be held."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.integration.engines import PODMAN_RUN, PROCDRIVER, podman
from tests.integration.inside import sentence
from tests.memory import regions
from tests.memory.conftest import Maker
from tests.memory.containers import CGROUPFS, ENGINES, HELD, REFUSED, SYSTEMD, Engine, on_machine, said, takes

CAPACITY = regions.capacity(0) >> 20  # in MiB


def shown(region: str, *paths: str) -> str:
    """The shell command that prints a region's line of files of cgroups."""
    return "\n".join(f"grep -h '^{region} ' {path}" for path in paths)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_kernel_refuses_at_the_limit(bundle: Maker, engine: Engine) -> None:
    """On the container's own cgroup and on no other, for its own GPU and no other."""
    script = f"""
{engine.stay(bundle("0", 64), "one")}
{engine.inside("one", takes(0, 48, 32, 16))}
{engine.inside("one", takes(0, 65, 64))}
echo ==
cat $one/dmem.max
echo ==
{shown(regions.name(0), "${one%/*}/dmem.max")}
{engine.remove("one")}
"""
    taken, own, above = on_machine(script).printed().split("==\n")
    assert said(taken) == [HELD, REFUSED, HELD, REFUSED, HELD]
    limits = dict(line.rsplit(" ", 1) for line in own.splitlines())
    assert limits == {**dict.fromkeys(regions.all_of_them(), "max"), regions.name(0): str(64 * regions.MIB)}
    # crun's process is in a cgroup below its scope, and both are the container's.
    crun = "crun" in engine.program and engine.systemd
    assert above == f"{regions.name(0)} {64 * regions.MIB if crun else 'max'}\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_two_on_one_gpu_each_at_its_own(bundle: Maker, engine: Engine) -> None:
    script = f"""
{engine.stay(bundle("0", 64), "one")}
{engine.stay(bundle("0", 128), "two")}
{engine.inside("one", takes(0, 64) + "sleep 10000")} >/run/taken 2>&1 &
until grep -q . /run/taken; do sleep 0.1; done
{engine.inside("two", takes(0, 64, 64, 1))}
{engine.inside("one", takes(0, 1))}
{shown(regions.name(0), "$one/dmem.current", "$two/dmem.current")}
{engine.remove("one", "two")}
"""
    lines = on_machine(script).printed().splitlines()
    assert said("\n".join(lines[:4])) == [HELD, HELD, REFUSED, REFUSED]
    assert lines[4:] == [f"{regions.name(0)} {size}" for size in (64 * regions.MIB, 0)]


@pytest.mark.parametrize("engine", ENGINES)
def test_without_the_word_there_is_no_limit(bundle: Maker, engine: Engine) -> None:
    """REQUEST alone binds nothing."""
    script = takes(0, CAPACITY >> 1, 1)
    lines = [engine.run(made, "free", script) for made in (bundle("0"), bundle("0", NVIDIA_GPU_MEMORY_REQUEST=64))]
    out = on_machine("\n".join(lines)).printed()
    assert said(out) == [HELD] * 4


def test_another_vendors_device_has_it_too(bundle: Maker) -> None:
    """The words are NVIDIA's, the mechanism is not."""
    made = bundle(None, 64, OCI_AMD="0")
    engine = Engine("runc", systemd=False)
    script = f"""
{engine.stay(made, "one")}
{shown(regions.AMDGPU, "$one/dmem.max")}
{engine.remove("one")}
"""
    out = on_machine(script, vendors=("amd",)).printed()
    assert out == f"{regions.AMDGPU} {64 * regions.MIB}\n"


@pytest.mark.parametrize("limit", ["4GB", CAPACITY + 1], ids=["with a unit", "above the capacity"])
def test_a_wrong_word_is_refused(bundle: Maker, limit: str | int) -> None:
    engine = Engine("runc", systemd=False)
    _is_refused(engine.run(bundle("0", limit), "wrong", "echo started"), "NVIDIA_GPU_MEMORY_LIMIT")


@pytest.mark.parametrize("engine", CGROUPFS)
def test_a_gpu_without_a_region_is_refused(bundle: Maker, engine: Engine) -> None:
    asked = f"0,{regions.WITHOUT_REGION}"
    _is_refused(engine.run(bundle(asked, 64), "no-region", "echo started"), "has not told the kernel")


def test_without_a_driver_that_registers_it_is_refused(bundle: Maker) -> None:
    engine = Engine("runc", systemd=False)
    before = "rmmod regions; trap 'insmod /srv/regions.ko' EXIT\n"
    _is_refused(before + engine.run(bundle("0", 64), "none", "echo started"), "has not told the kernel")


# crun 1.8 starts no container there at all.
@pytest.mark.parametrize("engine", [it for it in CGROUPFS if it.id != "crun, cgroupfs"])
def test_a_parent_with_processes_is_refused(bundle: Maker, engine: Engine) -> None:
    """The kernel gives the controller to no child of one: with a word it is refused, without it is not."""
    script = """
echo -dmem >/sys/fs/cgroup/cgroup.subtree_control || :
mkdir -p /sys/fs/cgroup/busy/a
sleep 10000 & busy=$!
echo $busy >/sys/fs/cgroup/busy/a/cgroup.procs
trap 'kill $busy; wait $busy || :; rmdir /sys/fs/cgroup/busy/a || :' EXIT
"""
    done = on_machine(script + engine.run(bundle("0"), "free", "echo started", parent="busy"))
    assert (done.code, done.out) == (0, "started\n"), done.err
    _is_refused(script + engine.run(bundle("0", 64), "busy", "echo started", parent="busy"), "dmem")


def _is_refused(script: str, word: str) -> None:
    """One sentence of ours with a word in it, and the container's process has not run."""
    done = on_machine(script)
    assert done.code != 0
    assert "started" not in done.out
    assert word in sentence(done.err)


@pytest.mark.parametrize("engine", SYSTEMD)
def test_the_limit_stays_whatever_systemd_is_told(bundle: Maker, engine: Engine) -> None:
    """Runtimes' updates too."""
    steps = {
        "update": f"{engine.words} update --cpu-share 300 one",
        "set-property": "systemctl set-property --runtime $scope CPUWeight=77",
        "slice": "systemctl set-property --runtime lane-a.slice CPUWeight=77",
        "daemon-reload": "systemctl daemon-reload",
        "daemon-reexec": "systemctl daemon-reexec",
        "update again": f"{engine.words} update --cpu-share 400 one",
    }
    look = shown(regions.name(0), "$one/dmem.max") + "\n" + engine.inside("one", takes(0, 65, 64)) + "\n"
    script = engine.stay(bundle("0", 64), "one") + look
    script += "scope=${one##*/}; case $scope in *.scope) ;; *) scope=${one%/*}; scope=${scope##*/} ;; esac\n"
    script += "".join(f"{step}\n{look}" for step in steps.values())
    lines = on_machine(script + engine.remove("one")).printed().splitlines()
    assert lines[0::3] == [f"{regions.name(0)} {64 * regions.MIB}"] * (len(steps) + 1)
    assert said("\n".join(line for number, line in enumerate(lines) if number % 3)) == [REFUSED, HELD] * (
        len(steps) + 1
    )


# What is asked for, the script, and how often it starts: a runtime's state and cgroup are new each time.
LIMITED = {
    "two GPUs": ("1,2", 64, takes(1, 64, 1) + takes(2, 64, 1), 1),
    "a restart": ("0", 64, takes(0, 64, 1), 2),
    "the capacity": ("0", CAPACITY, takes(0, CAPACITY, 1), 1),
}


@pytest.mark.parametrize("engine", CGROUPFS)
@pytest.mark.parametrize("name", LIMITED)
def test_each_gpu_has_the_limit_at_each_start(bundle: Maker, engine: Engine, name: str) -> None:
    devices, limit, script, starts = LIMITED[name]
    line = engine.run(bundle(devices, limit), "limited", script)
    out = on_machine("\n".join([line] * starts)).printed()
    assert said(out) == [HELD, REFUSED] * (starts * len(devices.split(",")))


@pytest.mark.parametrize("engine", CGROUPFS)
def test_a_user_namespace_has_its_limit(bundle: Maker, engine: Engine) -> None:
    made = bundle("0", 64)
    engine.place(made, "mapped", "lane")
    made.in_user_namespace(100_000)
    out = on_machine(engine.run(made, "mapped", takes(0, 64, 1))).printed()
    assert said(out) == [HELD, REFUSED]


@pytest.mark.parametrize("engine", CGROUPFS)
def test_root_inside_cannot_raise_it(bundle: Maker, engine: Engine) -> None:
    """Nor with its cgroups writable: the hierarchy delegates namespaces; and what is below is bounded."""
    made = bundle("0", 64)
    [mount] = [it for it in made.config["mounts"] if it["destination"] == "/sys/fs/cgroup"]
    mount["options"].remove("ro")
    namespaces = made.config["linux"]["namespaces"]
    if {"type": "cgroup"} not in namespaces:
        namespaces.append({"type": "cgroup"})
    inside = f"""
cd /sys/fs/cgroup
{{ echo '{regions.name(0)} max' >dmem.max; }} 2>&1
busybox mkdir below && busybox mkdir own && echo 0 >own/cgroup.procs && echo +dmem >cgroup.subtree_control
cat below/dmem.max | grep '^{regions.name(0)} '
echo 0 >below/cgroup.procs
{takes(0, 64, 1)}
"""
    first, below, *rest = on_machine(engine.run(made, "root", inside)).printed().splitlines()
    assert first.endswith("Operation not permitted")
    assert below == f"{regions.name(0)} max"
    assert said("\n".join(rest)) == [HELD, REFUSED]


def test_the_hook_opens_no_gpu(bundle: Maker) -> None:
    """The module can be unloaded while a container with a limit is there that holds nothing."""
    engine = Engine("runc", systemd=False)
    script = f"{engine.stay(bundle('0', 64), 'one')}\nrmmod regions\ninsmod /srv/regions.ko\n{engine.remove('one')}"
    on_machine(script).printed()


@pytest.mark.parametrize("engine", CGROUPFS)
def test_behind_the_runtime_in_front(bundle: Maker, engine: Engine) -> None:
    """As dockerd and containerd start it, with a config.json that names no hook of ours."""
    made = bundle("0", 64)
    made.config["hooks"] = {"createRuntime": [PROCDRIVER]}
    front = Engine("oci-gpu-runtime", systemd=False)
    script = front.run(made, "front", takes(0, 65, 64, 1))
    out = on_machine(script, settings=f"runtime = {shutil.which(engine.program)}\n").printed()
    assert said(out) == [REFUSED, HELD, REFUSED]


def test_podman(tmp_path: Path, pattern: Path) -> None:
    shutil.copytree(pattern, tmp_path / "root", symlinks=True)
    asks = "--env NVIDIA_VISIBLE_DEVICES=0 --env NVIDIA_GPU_MEMORY_LIMIT=64"
    words = f"{PODMAN_RUN} --rm {asks} --rootfs {tmp_path}/root /bin/sh -c {shlex.quote(takes(0, 65, 64, 1))}"
    out = on_machine(podman(words, runtime="crun", folder=tmp_path)).printed()
    assert said(out) == [REFUSED, HELD, REFUSED]


SETTINGS = {
    "a quarter": ("gpu-holders = 4\ngpu-memory = share\n", None, CAPACITY >> 2),
    "a size": ("gpu-memory = 64M\n", None, 64),
    "less by a word": ("gpu-memory = 64M\n", 32, 32),
    "no more by a word": ("gpu-memory = 64M\n", 128, 64),
}


@pytest.mark.parametrize(("settings", "limit", "most"), SETTINGS.values(), ids=SETTINGS)
def test_the_administrators_setting_is_the_most(bundle: Maker, settings: str, limit: int | None, most: int) -> None:
    script = Engine("runc", systemd=False).run(bundle("0", limit), "set", takes(0, most + 1, most, 1))
    out = on_machine(script, settings=settings).printed()
    assert said(out) == [REFUSED, HELD, REFUSED]


def test_any_goes_where_there_is_room(bundle: Maker) -> None:
    """Each of three wants more than half of a GPU."""
    engine = Engine("runc", systemd=False)
    size = CAPACITY // 2 + 1
    names = ("one", "two", "three")
    script = "".join(engine.stay(bundle("any", size), name) + f"cat ${name}/dmem.max" + "\n" for name in names)
    out = on_machine(script + engine.remove(*names), settings="gpu-holders = 4\n").printed()
    limited = [line.split()[0] for line in out.splitlines() if not line.endswith(" max")]
    assert len(limited) == len(set(limited)) == len(names)
