# SPDX-License-Identifier: Apache-2.0
"""Every way in which a host can change behind its saved inventory: the container gets what the host has now.

Real runc on the simulated node.  The file itself is the subject of test_inventory_file.py.
"""

from __future__ import annotations

import copy
import shutil

import pytest

from tests.integration import inside
from tests.integration.conftest import Maker
from tests.integration.engines import Installed, on_node, start
from tests.integration.savedinventory import (
    ASKED_NVML,
    FILE,
    FOLDER,
    HAS_LIED,
    LIE,
    LIES,
    NO_ANSWERS,
    REBUILT,
    REFRESH,
    SECOND,
    TRUE,
    has_gpu,
    started,
)

GPUS = "/proc/driver/nvidia/gpus"
FIRST, SECOND_GPU = f"{GPUS}/0000:1b:00.0", f"{GPUS}/0000:43:00.0"
BOOT = "/proc/sys/kernel/random/boot_id"
REBOOT = f"cat /proc/sys/kernel/random/uuid >/tmp/boot; mount --bind /tmp/boot {BOOT}\n"
SWAP = f"""sed -i 's/^Device Minor:.*/Device Minor: 0/' {FIRST}/information
sed -i 's/^Device Minor:.*/Device Minor: 2/' {SECOND_GPU}/information
"""
# Its entries in sysfs, whose inode numbers the kernel gives but once; the simulated node has none.
BOUND = """mount -t tmpfs none /sys/bus/pci/drivers
mkdir /sys/bus/pci/drivers/nvidia
cd /sys/bus/pci/drivers/nvidia
for gpu in /proc/driver/nvidia/gpus/*; do ln -s ../../devices/${gpu##*/}; done
cd /
"""
REBIND = f"""cd /sys/bus/pci/drivers/nvidia
for gpu in 0000:43:00.0 0000:1b:00.0; do ln -s $gpu new; mv -T new $gpu; done
cd /
{SWAP}"""

# What has changed on the host, as a command, and the GPU that is number 0 then.
CHANGES = {
    "another boot": (REBOOT, TRUE),
    "minors that another boot gave": (REBOOT + SWAP, SECOND),
    "a GPU that is gone": (f"rm -r {FIRST}", SECOND),
    "a GPU that is gone, back in the file's own past": (
        f"rm -r {FIRST}; touch -d 2001-01-01 {FILE} {FOLDER}",
        SECOND,
    ),
    "a GPU that is gone, and a file of the future": (
        f"rm -r {FIRST}; touch -d 2099-01-01 {FILE} {FOLDER}",
        SECOND,
    ),
    "a GPU that has come": (
        f"mkdir {GPUS}/0000:01:00.0; sed -e 's/0000:1b:00.0/0000:01:00.0/' -e 's/a1f20c3e/b1f20c3e/' "
        f"-e 's/^Device Minor:.*/Device Minor: 0/' {FIRST}/information >{GPUS}/0000:01:00.0/information",
        SECOND,
    ),
    "a GPU in another slot": (f"mv {FIRST} {GPUS}/0000:ff:00.0", SECOND),
    "ldconfig has run": ("ldconfig -X", TRUE),
    "ldconfig has run while the clock was wrong": ("touch -d 2001-01-01 /etc/ld.so.cache", TRUE),
    "an older ld.so.cache was put back": (
        "cp -p /etc/ld.so.cache /etc/old; mv /etc/old /etc/ld.so.cache",
        TRUE,
    ),
    "another driver root": (
        "mkdir -p /run/nvidia; ln -s / /run/nvidia/driver; echo 'driver-root = /run/nvidia/driver' "
        ">>/etc/oci-gpu-hook.conf",
        TRUE,
    ),
}


@pytest.mark.parametrize(("change", "gpu"), CHANGES.values(), ids=CHANGES)
def test_what_changes_on_the_host_changes_in_the_container(
    installed: Installed, bundle: Maker, change: str, gpu: str
) -> None:
    seen, after = started(installed, bundle("busybox").asks("0"), change)
    has_gpu(seen, gpu)
    assert after == REBUILT


def test_gpus_that_were_bound_anew_in_another_order_are_told_apart(
    installed: Installed, bundle: Maker
) -> None:
    """No boot, no other name, no other driver, and yet other minors."""
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", "echo /dev/nvidia[0-9]*")
    again = f"; {start('runc', made, 'again')}"
    script = f"{BOUND}{REFRESH}{LIES}{start('runc', made, 'before')}\n{REBIND}{start('runc', made)}"
    done = on_node(installed, script + again)
    assert done.code == 0, done.err
    assert done.out.split() == [LIE, SECOND, SECOND]


def test_a_true_inventory_of_the_future_is_used(installed: Installed, bundle: Maker) -> None:
    """Only what it says counts: whoever sets a clock back does not make every start slow."""
    seen, _ = started(installed, bundle("busybox").asks("0"), f"touch -d 2099-01-01 {FILE}")
    has_gpu(seen, LIE)


def test_the_uuid_of_a_gpu_counts_from_its_first_use(installed: Installed, bundle: Maker) -> None:
    """The kernel has question marks for it until then, and a survey may have been saved."""
    uuid = "GPU-a1f20c3e-5b7d-4c91-9e02-0d6f4b8a7c15"
    made = bundle("busybox").asks(uuid).runs("/bin/sh", "-c", "echo /dev/nvidia[0-9]*")
    other = copy.deepcopy(made)
    other.path = made.path.parent / "other"
    shutil.copytree(made.path, other.path, symlinks=True)
    other.asks("0").runs("/bin/sh", "-c", "echo /dev/nvidia[0-9]*")
    script = f"""cp {FIRST}/information /tmp/known
sed -i 's/^GPU UUID:.*/GPU UUID: \t GPU-????????-????-????-????-????????????/' {FIRST}/information
{start("runc", other, "other")}
test -e {FILE}
{start("runc", made)} 2>/tmp/said && exit 3
grep -o "unknown device[^\\\\]*" /tmp/said | head -n 1
cp /tmp/known {FIRST}/information
{start("runc", made, "known")}
"""
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    first, said, then = done.out.splitlines()
    assert (first, then) == (TRUE, TRUE)
    assert said.startswith(f"unknown device '{uuid}': this host has indices 0 to 7"), said


# The kernel module's next release and its libraries, as an upgrade leaves them.
UPGRADE = """sed -i 's/580.65.06/580.65.09/' /proc/driver/nvidia/version
folder=$(dirname $(find /usr/lib /usr/lib64 -maxdepth 2 -name libcuda.so.580.65.06 | head -n 1))
for old in $(find $folder -name '*.so.580.65.06'); do
    sed 's/580.65.06/580.65.09/g' $old >${old%06}09
    rm $old
done
"""
LDCONFIG = "ldconfig -X\n"


def cuda_of(seen: inside.Seen) -> str:
    """The version of the libcuda that the container has."""
    (folder,) = {path for path in seen.mounts if "/libcuda.so.580" in path}
    return folder.rpartition("/libcuda.so.")[2]


@pytest.mark.parametrize("cached", [LDCONFIG, ""], ids=["ldconfig has run", "ldconfig has not run"])
def test_the_container_gets_the_driver_that_is_there_now(
    installed: Installed, bundle: Maker, cached: str
) -> None:
    seen, after = started(installed, bundle("debian").asks("0"), UPGRADE + cached)
    has_gpu(seen, TRUE)
    assert cuda_of(seen) == "580.65.09"
    assert not [path for path in seen.mounts if path.endswith("580.65.06")]
    assert after == REBUILT


def test_an_upgrade_that_is_half_done_is_one_sentence(installed: Installed, bundle: Maker) -> None:
    module_only = UPGRADE.splitlines(keepends=True)[0]
    said = inside.refused(
        installed,
        bundle("debian").asks("0"),
        refresh=False,
        before=f"{REFRESH}{LIES}{module_only}",
    )
    assert "580.65.06" in said and "580.65.09" in said, said


@pytest.mark.parametrize("cached", [LDCONFIG, ""], ids=["ldconfig has run", "ldconfig has not run"])
def test_a_library_of_the_same_version_is_the_new_file(
    installed: Installed, bundle: Maker, cached: str
) -> None:
    """A driver that was installed once more: the path is saved, the file is looked up."""
    change = """cuda=$(find /usr/lib /usr/lib64 -maxdepth 2 -name libcuda.so.580.65.06 | head -n 1)
cp $cuda /tmp/cuda
echo installed-once-more >>/tmp/cuda
mv /tmp/cuda $cuda
"""
    made = bundle("debian").asks("0")
    tell = "grep -c installed-once-more $(find /usr/lib -name libcuda.so.580.65.06)"
    before = f"{REFRESH}{change}{cached}"
    seen = inside.look(installed, made, tell, refresh=False, before=before)
    has_gpu(seen, TRUE)
    assert seen.told.split() == ["1"]


@pytest.mark.parametrize("library", ["libcuda", "libnvidia-opticalflow"])
def test_a_library_that_was_taken_away_by_hand_is_one_sentence(
    installed: Installed, bundle: Maker, library: str
) -> None:
    """Nobody has run ldconfig: that it is gone is noticed when it is to be mounted."""
    taken = f"find /usr/lib /usr/lib64 -maxdepth 2 -name '{library}.so.580.65.06' -delete\n"
    made = bundle("debian").asks("0", "compute,utility,video")
    said = inside.refused(installed, made, refresh=False, before=REFRESH + taken)
    assert f"{library}.so.580.65.06 cannot be mounted" in said
    assert "oci-gpu-hook inventory refresh" in said


CAPABILITIES = "/proc/driver/nvidia/capabilities"


def instance(path: str) -> str:
    """The commands that make a MIG instance's file, with the minor that the kernel has for it."""
    gpu, _, *rest = path.split("/")
    key = "/".join([gpu, *rest])
    return f"""mkdir -p {CAPABILITIES}/{path}
minor=$(sed -n 's,^{key}/access ,,p' /proc/driver/nvidia-caps/mig-minors)
printf 'DeviceFileMinor: %s\\nDeviceFileMode: 292\\nDeviceFileModify: 1\\n' $minor >{CAPABILITIES}/{path}/access
major=$(sed -n 's/ nvidia-caps$//p' /proc/devices)
test -e /dev/nvidia-caps/nvidia-cap$minor || mknod -m 444 /dev/nvidia-caps/nvidia-cap$minor c $major $minor
"""


CREATED = instance("gpu1/mig/gi14") + instance("gpu1/mig/gi14/ci0")
DESTROYED = f"rm -r {CAPABILITIES}/gpu1/mig/gi13\n"
OTHERS = DESTROYED + instance("gpu1/mig/gi6") + instance("gpu1/mig/gi6/ci0")
INSTANCES = {"gi1/ci0", "gi5/ci0", "gi5/ci1", "gi13/ci0"}
REPARTITIONS = {
    "created": (CREATED, INSTANCES | {"gi14/ci0"}),
    "destroyed": (DESTROYED, INSTANCES - {"gi13/ci0"}),
    "one compute instance destroyed": (
        f"rm -r {CAPABILITIES}/gpu1/mig/gi5/ci1",
        INSTANCES - {"gi5/ci1"},
    ),
    "divided otherwise": (OTHERS, INSTANCES - {"gi13/ci0"} | {"gi6/ci0"}),
    "all destroyed": (f"rm -r {CAPABILITIES}/gpu1/mig/gi*", set()),
}


@pytest.mark.parametrize(("change", "instances"), REPARTITIONS.values(), ids=REPARTITIONS)
def test_mig_devices_are_those_of_now(
    installed: Installed, bundle: Maker, change: str, instances: set[str]
) -> None:
    made = bundle("busybox").asks("all")
    seen = inside.look(
        installed, made, refresh=False, before=REFRESH + change, description="h100mig"
    )
    wanted = {f"gpu1/mig/{name}/access" for name in instances}
    wanted |= {f"gpu1/mig/{name.partition('/')[0]}/access" for name in instances}
    caps = seen.capability_nodes(*wanted)
    seen.has_exactly(*inside.COMPUTE, "/dev/nvidia0", "/dev/nvidia1", *caps)


GONE = "MIG-4e905ac7-d1f8-5b23-b60e-97a8c3f4d210"
KEPT = "MIG-f3b0a917-58c2-5d6e-9a41-0e7c2db86f15"


@pytest.mark.parametrize("selector", [GONE, KEPT, "0:3", "0:0"])
@pytest.mark.parametrize("change", [DESTROYED, OTHERS], ids=["destroyed", "divided otherwise"])
def test_a_mig_devices_names_are_never_those_of_before(
    installed: Installed, bundle: Maker, change: str, selector: str
) -> None:
    """Only NVML knows whose they are now, and a start does not ask it: one sentence, and no other tenant's device."""
    said = inside.refused(
        installed,
        bundle("busybox").asks(selector),
        refresh=False,
        before=REFRESH + change,
        description="h100mig",
    )
    assert "inventory refresh" in said, said


def test_twenty_starts_at_once_all_get_the_truth_while_it_is_made_anew(
    installed: Installed, bundle: Maker
) -> None:
    """With a lie that is stale, and somebody who asks NVML in between: what that says is what stays."""
    made = [
        bundle("busybox").asks("0").runs("/bin/sh", "-c", "echo /dev/nvidia[0-9]*")
        for _ in range(20)
    ]
    starts = " & ".join(start("runc", each, f"one-of-{n}") for n, each in enumerate(made))
    script = f"""{REFRESH}{LIES}ldconfig -X
{starts} & oci-gpu-hook inventory refresh >/dev/null &
wait
ls -A {FOLDER} {NO_ANSWERS}
oci-gpu-hook inventory show --format json | grep -c '"compute_capability": "9.0"'
! {HAS_LIED}
"""
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    assert done.out.split() == [TRUE] * 20 + ["inventory", "8"], done.out + done.err


def test_watch_brings_back_what_only_nvml_knows(installed: Installed, bundle: Maker) -> None:
    """A start that found no file has saved its own, which is true and knows less."""
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", "echo /dev/nvidia[0-9]*")
    script = f"""until_asked() {{
    for i in $(seq 300); do ! {ASKED_NVML} || return 0; sleep 0.1; done
    return 1
}}
oci-gpu-hook inventory watch --interval 0.2 >/tmp/told 2>&1 & watch=$!
trap 'kill -CONT $watch; kill $watch' EXIT
until_asked
kill -STOP $watch
rm {FILE}
{start("runc", made)}
{ASKED_NVML} && exit 3
kill -CONT $watch
until_asked
sleep 1
kill $watch
wait $watch
trap - EXIT
grep -c '^saved' /tmp/told
"""
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    assert done.out.split() == [TRUE, "2"]
