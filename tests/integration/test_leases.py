# SPDX-License-Identifier: Apache-2.0
"""Devices that the node chooses and counts, under real runtimes: who gets which, who is refused, and what frees one."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import RUNTIMES, Bundle, in_turn, start

GPUS = ("/bin/sh", "-c", "cd /dev; echo nvidia[0-9]*")
WAITS = ("/bin/sh", "-c", "cd /dev; echo nvidia[0-9]*; exec sleep 1000")
ONE = "gpu-holders = 1\n"


def begun(runtime: str, made: Bundle, name: str) -> str:
    """The shell command that starts a container which goes on, and tells its GPUs."""
    line = start(runtime, made, name).replace(" run ", " run --detach ")
    out = f"/run/{name}.out"
    wait = f"until grep -q . {out}; do sleep 0.01; done; cat {out}"
    return f"{line} >{out} 2>{out}.err </dev/null || {{ cat {out}.err >&2; exit 1; }}; {wait}"


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_each_has_its_own_gpus_until_none_is_left(bundle: Maker, runtime: str, cgroup: str) -> None:
    """What is free is chosen; the container that finds none reads who has them; an end frees them at once."""
    five, three, one = [bundle("debian").asks(asked).runs(*WAITS) for asked in ("any:5", "any:3", "any")]
    by_name = bundle("debian").asks("7").runs(*GPUS)
    scripts = {
        "first": begun(runtime, five, "first"),
        "second": begun(runtime, three, "second"),
        "full": f"{start(runtime, one, 'full')} 2>&1 && exit 1 || :",
        "named": f"{start(runtime, by_name, 'named')} 2>&1 && exit 1 || :",
        "again": f"{runtime} kill second KILL\nuntil {runtime} delete second 2>/dev/null; do sleep 0.1; done\n"
        + start(runtime, by_name, "again"),
        "end": f"{runtime} delete --force first\nls /run/oci-gpu-hook",
    }
    found = in_turn(scripts, cgroup=cgroup, settings=ONE)
    first, second = [set(found[name][0].split()) for name in ("first", "second")]
    assert (len(first), len(second)) == (5, 3)
    assert not first & second
    told = " ".join(found["full"])
    assert "1 device is asked for, and 0 have room: GPU 0 is held by first since 20" in told
    assert "GPU 7 is held by second since 20" in " ".join(found["named"])
    assert {*found["again"]} < second
    assert "leases" in found["end"]


def test_mig_devices_are_chosen_by_their_profile(bundle: Maker) -> None:
    """As NVML names them; each is a device of its own, and another profile is none."""
    look = ("/bin/sh", "-c", "cd /dev; echo nvidia[0-9]* nvidia-caps/*; exec sleep 1000")
    made = bundle("debian").asks("any:1c.2g.20gb").runs(*look)
    other = bundle("debian").asks("any:7g.80gb").runs(*look)
    scripts = {
        "refresh": "oci-gpu-hook inventory refresh >/dev/null",
        "one": begun("runc", made, "one"),
        "two": begun("runc", made, "two"),
        "full": f"{start('runc', made, 'full')} 2>&1 && exit 1 || :",
        "other": f"{start('runc', other, 'other')} 2>&1 && exit 1 || :",
        "end": "for name in one two; do runc delete --force $name; done",
    }
    found = in_turn(scripts, description="h100mig", settings=ONE)
    one, two = found["one"], found["two"]
    assert one != two
    assert "nvidia-cap" in one[0]
    assert "MIG profile '1c.2g.20gb' is asked for, and 0 have room: MIG device 0:" in " ".join(found["full"])
    assert "MIG profile '7g.80gb' is asked for, and this host has 0" in " ".join(found["other"])


def test_what_lives_on_in_the_container_s_cgroup_holds(bundle: Maker) -> None:
    """Its first process is dead, and one that it has left in a cgroup of its own below is not: on v1 as on v2."""
    made = bundle("debian").asks("any:8").runs(*WAITS)
    again = bundle("debian").asks("any").runs(*GPUS)
    one = made.id
    leave = f"""
group=$(find /sys/fs/cgroup -type d -name {one} -path '*devices*' | head -n 1)
[ "$group" ] || group=$(find /sys/fs/cgroup -type d -name {one} | head -n 1)
mkdir $group/below
sh -c "echo \\$\\$ >$group/below/cgroup.procs; exec sleep 1000" &
until grep -q . $group/below/cgroup.procs; do sleep 0.1; done
runc kill {one} KILL
until [ "$(runc state {one} | grep -c stopped)" = 1 ]; do sleep 0.1; done
"""
    free = f"""
below=$(find /sys/fs/cgroup -path '*{one}/below/cgroup.procs' | head -n 1)
kill $(cat $below)
until [ -z "$(cat $below)" ]; do sleep 0.1; done
runc delete --force {one}
"""
    for cgroup in ("v1", "v2"):
        scripts = {
            "begun": begun("runc", made, one),
            "left": f"{leave}\n{start('runc', again, 'full')} 2>&1 && exit 1 || :",
            "freed": free + start("runc", again, "again"),
        }
        found = in_turn(scripts, cgroup=cgroup, settings=ONE)
        assert f"is held by {one[:12]} since" in " ".join(found["left"])
        assert found["freed"][0].startswith("nvidia")


def test_people_see_what_starts_count(bundle: Maker) -> None:
    """`plan` says what it would be now and takes nothing; `containers`, metrics and JSON say who holds what."""
    made = bundle("debian").asks("any:3").runs(*WAITS)
    plan = f"oci-gpu-hook plan --bundle {made.path}"
    scripts = {
        "plan": f"{plan} | grep chosen\nls /run/oci-gpu-hook | grep -c leases || :",
        "one": begun("runc", made, "one"),
        "planned": f"{plan} | grep chosen",
        "doctor": "oci-gpu-hook doctor --container one | grep -c '^fail' || :",
        "has": "oci-gpu-hook doctor --container one | grep ' nodes '",
        "containers": "oci-gpu-hook containers | tail -n 4",
        "json": "oci-gpu-hook containers --json | python3 -c 'import json, sys; "
        'rows = json.load(sys.stdin)["leases"]; print([len(row["holders"]) for row in rows])\'',
        "metrics": "oci-gpu-hook metrics --gpus | grep -c 'gpu_leases{.*} 1'",
        "end": "runc delete --force one",
    }
    found = in_turn(scripts, settings="gpu-holders = 2\n")
    assert found["plan"][0].startswith("chosen     any:3: GPU 0 (0 of 2 holders), GPU 1 (0 of 2 holders), GPU ")
    assert found["plan"][1] == "0"
    assert found["planned"] != found["plan"][:1]
    assert "(1 of 2" not in found["planned"][0]
    assert found["doctor"] == ["0"], found
    assert " 6, with" in found["has"][0]
    told = " ".join(found["containers"])
    assert "devices with room, of 2 holders each: GPU 0, GPU 1" in told
    assert "GPU 0 is leased by one since 20" in told
    assert sorted(found["json"][0].strip("[]").split(", ")) == ["0"] * 5 + ["1"] * 3
    assert found["metrics"] == ["3"]


def test_a_gpu_that_is_not_healthy_is_given_as_the_settings_say(bundle: Maker) -> None:
    """NVML has lost one; when it answers again nothing need be restarted."""
    any_gpu, every, by_name = [bundle("debian").asks(word).runs(*GPUS) for word in ("any:8", "all", "0")]
    scripts = {"lost": "oci-gpu-hook metrics --gpus --write >/dev/null 2>&1; ls /run/oci-gpu-hook/unhealthy"}
    scripts["any"] = f"{start('runc', any_gpu)} 2>&1 && exit 1 || :"
    for setting in ("give", "leave-out", "refuse"):
        wanted = f"printf 'gpu-holders = 1\\nunhealthy = {setting}\\n' >/etc/oci-gpu-hook.conf"
        scripts[setting] = f"{wanted}\n{start('runc', every)} 2>&1 || :"
        scripts[f"told {setting}"] = f"oci-gpu-hook plan --bundle {every.path} 2>&1 | grep healthy"
    scripts["named"] = f"{start('runc', by_name)} 2>&1 || :"
    scripts["doctor"] = "oci-gpu-hook doctor | grep health || :"
    scripts["features"] = "oci-gpu-hook features | grep unhealthy || :"
    settings = "gpu-holders = 1\ngpu-metrics = /run/gpus.prom\n"
    found = in_turn(scripts, settings=settings, faults=("gpu-lost",))
    assert found["lost"] == ["/run/oci-gpu-hook/unhealthy"]
    told = " ".join(found["any"])
    assert "8 devices are asked for, and 7 have room: GPU " in told
    assert "is not healthy: it does not answer NVML" in told
    assert len(found["give"][-1].split()) == 8
    assert "is not healthy" in " ".join(found["told give"])
    assert len(found["leave-out"][-1].split()) == 7
    assert "left out: GPU" in " ".join(found["told leave-out"])
    assert "is not healthy: it does not answer NVML" in " ".join(found["refuse"])
    assert "nvidia0" not in " ".join(found["refuse"])
    assert found["doctor"]
    assert found["features"] == ["feature.node.kubernetes.io/oci-gpu-hook.unhealthy-gpus=1"]


def test_who_only_watches_need_not_count_and_sections_differ(bundle: Maker) -> None:
    """The night's training starts on a GPU without a holder, and keeps what it has alone."""
    watches = bundle("debian").asks("all", "utility").runs(*GPUS)
    shares = bundle("debian").asks("0").of_crio(namespace="day").runs(*GPUS)
    alone = bundle("debian").asks("all").of_crio(namespace="night").runs(*GPUS)
    made = bundle("debian").asks("0").of_crio(namespace="day").runs(*WAITS)
    night = bundle("debian").asks("all").of_crio(namespace="night").runs(*WAITS)
    refused = "2>&1 && exit 1 || :"
    scripts = {
        "day": begun("runc", made, made.id),
        "watches": start("runc", watches),
        "shares": start("runc", shares, shares.id),
        "alone": f"{start('runc', alone, alone.id)} {refused}",
        "night": f"runc delete --force {made.id}\n{begun('runc', night, night.id)}",
        "joins": f"{start('runc', shares, shares.id)} {refused}",
        "end": f"runc delete --force {night.id}",
    }
    settings = "gpu-holders = 2\ncount-watchers = no\n[namespace night]\ngpu-holders = 1\n"
    found = in_turn(scripts, settings=settings)
    assert len(found["watches"][0].split()) == 8
    assert len(found["shares"][0].split()) == 1
    assert f"GPU 0 is held by {made.id[:12]} since" in " ".join(found["alone"])
    assert len(found["night"][0].split()) == 8
    assert f"GPU 0 is held by {night.id[:12]} since" in " ".join(found["joins"])
