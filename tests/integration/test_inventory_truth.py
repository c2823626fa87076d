# SPDX-License-Identifier: Apache-2.0
"""Every way in which a host can change behind its saved inventory: the container gets what the host has now.

The file itself is the subject of test_inventory_file.py.
"""

from __future__ import annotations

import pytest

from tests.integration import inside, migdevices
from tests.integration.conftest import Maker
from tests.integration.engines import in_turn, on_node, start, watched
from tests.integration.inside import REFRESH, sentence
from tests.integration.migdevices import CAPABILITIES, FIRST, FIRST_ANEW, KEEP, MADE_ANEW, RESTORE, SECOND_ANEW
from tests.integration.test_inventory_file import ASKED_NVML, FILE, FOLDER, LIE, LIES, SECOND, TRUE, shows_gpus

GPUS = "/proc/driver/nvidia/gpus"
FIRST_GPU, SECOND_GPU = f"{GPUS}/0000:1b:00.0", f"{GPUS}/0000:43:00.0"
BOOT = "/proc/sys/kernel/random/boot_id"
REBOOT = f"cat /proc/sys/kernel/random/uuid >/tmp/boot; mount --bind /tmp/boot {BOOT}\n"
SWAP = f"""sed -i 's/^Device Minor:.*/Device Minor: 0/' {FIRST_GPU}/information
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
    "nothing": ("true", LIE),
    "nothing, and the file is of the future": (f"touch -d 2099-01-01 {FILE}", LIE),
    "another boot": (REBOOT, TRUE),
    "minors that another boot gave": (REBOOT + SWAP, SECOND),
    "GPUs that were bound again in another order": (REBIND, SECOND),
    "a GPU that is gone": (f"rm -r {FIRST_GPU}", SECOND),
    "a GPU that is gone, back in the file's own past": (
        f"rm -r {FIRST_GPU}; touch -d 2001-01-01 {FILE} {FOLDER}",
        SECOND,
    ),
    "a GPU that is gone, and a file of the future": (f"rm -r {FIRST_GPU}; touch -d 2099-01-01 {FILE} {FOLDER}", SECOND),
    "a GPU that has come": (
        f"mkdir {GPUS}/0000:01:00.0; sed -e 's/0000:1b:00.0/0000:01:00.0/' -e 's/a1f20c3e/b1f20c3e/' "
        f"-e 's/^Device Minor:.*/Device Minor: 0/' {FIRST_GPU}/information >{GPUS}/0000:01:00.0/information",
        SECOND,
    ),
    "a GPU in another slot": (f"mv {FIRST_GPU} {GPUS}/0000:ff:00.0", SECOND),
    "ldconfig has run": ("ldconfig -X", TRUE),
    "ldconfig has run while the clock was wrong": ("touch -d 2001-01-01 /etc/ld.so.cache", TRUE),
    "an older ld.so.cache was put back": ("cp -p /etc/ld.so.cache /etc/old; mv /etc/old /etc/ld.so.cache", TRUE),
    "another driver root": (
        "mkdir -p /run/nvidia; ln -s / /run/nvidia/driver; echo 'driver-root = /run/nvidia/driver' "
        ">>/etc/oci-gpu-hook.conf",
        TRUE,
    ),
}


def test_the_next_container_gets_what_the_host_has_now(bundle: Maker) -> None:
    """What was saved is not believed; what is saved then is true."""
    made = shows_gpus(bundle("busybox"))
    case = f"""umount {BOOT} 2>/dev/null || :
rm -rf {GPUS} /etc/oci-gpu-hook.conf {FOLDER}/*; cp -a /run/gpus {GPUS}
{LIES}{start("runc", made)}
{{change}}
{start("runc", made)}
cp {FILE} /run/saved; rm {FOLDER}/*
{start("runc", made)}
cmp {FILE} /run/saved >/dev/null || echo other
"""
    scripts = {name: case.format(change=change) for name, (change, _) in CHANGES.items()}
    found = in_turn(scripts, f"{BOUND}cp -a {GPUS} /run/gpus\n")
    for name, (_, gpu) in CHANGES.items():
        true = [LIE, LIE, TRUE, "other"] if gpu == LIE else [LIE, gpu, gpu]
        assert found[name] == true, (name, found[name])


def test_the_uuid_of_a_gpu_counts_from_its_first_use(bundle: Maker) -> None:
    """The kernel has question marks for it until then, and a survey may have been saved."""
    uuid = inside.gpus()[0]["uuid"]
    made, other = shows_gpus(bundle("busybox"), uuid), shows_gpus(bundle("busybox"))
    script = f"""cp {FIRST_GPU}/information /tmp/known
sed -i 's/^GPU UUID:.*/GPU UUID: \t GPU-????????-????-????-????-????????????/' {FIRST_GPU}/information
{start("runc", other)}
test -e {FILE}
{start("runc", made)} && exit 3
cp /tmp/known {FIRST_GPU}/information
{start("runc", made)}
"""
    done = on_node(script)
    assert (done.code, done.out.split()) == (0, [TRUE, TRUE]), done.out + done.err
    assert f"unknown device '{uuid}': this host has 8 GPUs, and none has this UUID" in sentence(done.err)


# The kernel module's next release and its libraries, as an upgrade leaves them.
NEXT_MODULE = "sed -i 's/580.65.06/580.65.09/' /proc/driver/nvidia/version\n"
UPGRADE = f"""{NEXT_MODULE}
folder=$(dirname $(find /usr/lib /usr/lib64 -maxdepth 2 -name libcuda.so.580.65.06 | head -n 1))
for old in $(find $folder -name '*.so.580.65.06'); do
    sed 's/580.65.06/580.65.09/g' $old >${{old%06}}09
    rm $old
done
"""
# A driver that was installed once more: the path is saved, the file is looked up.
AGAIN = """cuda=$(find /usr/lib /usr/lib64 -maxdepth 2 -name libcuda.so.580.65.06 | head -n 1)
cp $cuda /tmp/cuda
echo installed-once-more >>/tmp/cuda
mv /tmp/cuda $cuda
"""


@pytest.mark.parametrize("cached", ["ldconfig -X\n", ""], ids=["ldconfig", "no ldconfig"])
def test_the_driver_is_the_one_of_now(bundle: Maker, cached: str) -> None:
    library = "$(find /usr/local/nvidia/lib64 -name 'libcuda.so.580.*')"
    tell = f"busybox basename {library}; grep -c installed-once-more {library}; true"
    made = bundle("debian").asks("0").runs("/bin/sh", "-c", tell)
    each = f"{start('runc', made)}\n"
    out = on_node(f"{REFRESH}{each}{AGAIN}{cached}{each}{UPGRADE}{cached}{each}").printed()
    before, again, upgraded = ["580.65.06", "0"], ["580.65.06", "1"], ["580.65.09", "1"]
    wanted = [(f"libcuda.so.{it[0]}", it[1]) for it in (before, again, upgraded)]
    lines = out.split()
    assert list(zip(lines[::2], lines[1::2])) == wanted


def test_a_driver_that_is_half_there_is_one_sentence(bundle: Maker) -> None:
    """Of libraries that were taken away by hand no start knows before they are to be mounted."""
    made = bundle("debian").asks("0", "compute,utility,video").runs("/bin/sh", "-c", "echo started")
    take = "find /usr/lib /usr/lib64 -maxdepth 2 -name '{}.so.580.65.06' -delete"
    scripts = {name: take.format(name) for name in ("libnvidia-opticalflow", "libcuda")}
    scripts["upgraded"] = NEXT_MODULE
    starts = {name: f"{it}\n{start('runc', made)} 2>&1 || :" for name, it in scripts.items()}
    found = {name: "\n".join(it) for name, it in in_turn(starts, REFRESH).items()}
    assert not [name for name, text in found.items() if "started" in text]
    for library in ("libnvidia-opticalflow", "libcuda"):
        said = sentence(found[library])
        assert "cannot mount " in said and f"{library}.so.580.65.06" in said
        assert "oci-gpu-hook inventory refresh" in said
    said = sentence(found["upgraded"])
    assert "580.65.06" in said and "580.65.09" in said, said


CREATED = migdevices.instance("gpu1/mig/gi14") + migdevices.instance("gpu1/mig/gi14/ci0")
DESTROYED = f"rm -r {CAPABILITIES}/gpu1/mig/gi13\n"
OTHERS = DESTROYED + migdevices.instance("gpu1/mig/gi6") + migdevices.instance("gpu1/mig/gi6/ci0")
INSTANCES = {"gi1/ci0", "gi5/ci0", "gi5/ci1", "gi13/ci0"}
REPARTITIONS = {
    "created": (CREATED, INSTANCES | {"gi14/ci0"}),
    "destroyed": (DESTROYED, INSTANCES - {"gi13/ci0"}),
    "one compute instance destroyed": (f"rm -r {CAPABILITIES}/gpu1/mig/gi5/ci1", INSTANCES - {"gi5/ci1"}),
    "divided otherwise": (OTHERS, INSTANCES - {"gi13/ci0"} | {"gi6/ci0"}),
    "all destroyed": (f"rm -r {CAPABILITIES}/gpu1/mig/gi*", set()),
}
DIVIDE = f"rm -rf {FOLDER}/*\n{RESTORE}{REFRESH}"
# In the container: its instances, and its nodes; on the node: the nodes that those must be.
SHOW = """echo $(cd /proc/driver/nvidia/capabilities 2>/dev/null && echo gpu1/mig/*/ci*) has:
echo $(ls /dev/nvidia-caps 2>/dev/null) has:"""
NODES = f"""cd {CAPABILITIES}/gpu1/mig
echo $(for file in $(find gi* -name access); do sed -n 's/^DeviceFileMinor: /nvidia-cap/p' $file; done) has:"""


def test_mig_devices_are_those_of_the_next_start(bundle: Maker) -> None:
    made = bundle("busybox").asks("all").runs("/bin/sh", "-c", SHOW)
    each = f"{start('runc', made)}\n{NODES}\n"
    scripts = {name: f"{DIVIDE}{each}{change}\n{each}" for name, (change, _) in REPARTITIONS.items()}
    found = in_turn(scripts, KEEP, description="h100mig")
    for name, (_, instances) in REPARTITIONS.items():
        lines = [{word for word in line.split()[:-1] if "*" not in word} for line in found[name]]
        assert len(lines) == 6, found[name]
        for at, names in ((0, INSTANCES), (3, instances)):
            assert lines[at] == {f"gpu1/mig/{it}" for it in names}, name
            assert lines[at + 1] == lines[at + 2], name
        assert len(lines[1]) == 7


GONE = "MIG-4e905ac7-d1f8-5b23-b60e-97a8c3f4d210"
KEPT = "MIG-f3b0a917-58c2-5d6e-9a41-0e7c2db86f15"


def test_a_mig_devices_names_are_never_those_of_before(bundle: Maker) -> None:
    """Only NVML knows whose they are now, and a start does not ask it: one sentence, and no other tenant's device."""
    made = [shows_gpus(bundle("busybox"), selector) for selector in (GONE, KEPT, "0:3", "0:0")]
    starts = "\n".join(f"{start('runc', each)} 2>&1 || echo stopped" for each in made)
    scripts = {
        name: f"{DIVIDE}{change}\n{starts}"
        for name, change in {"destroyed": DESTROYED, "divided otherwise": OTHERS}.items()
    }
    for name, lines in in_turn(scripts, KEEP, description="h100mig").items():
        assert lines.count("stopped") == len(made), (name, lines)
        assert len([line for line in lines if "inventory refresh" in line]) == len(made), name


WANTED = f"{FOLDER}/refresh-wanted"
NUMBER = "0:1"
# Which compute instance a container has.
TELL = "cd /proc/driver/nvidia/capabilities/gpu1/mig && echo gi*/ci*"


def test_a_mig_device_made_anew_is_not_given_by_its_old_name(bundle: Maker) -> None:
    """No name in /proc or /dev changes.  Not from the saved inventory; NVML's names, once asked."""
    by_name = [bundle("busybox").asks(selector).runs("/bin/sh", "-c", TELL) for selector in (FIRST, NUMBER, FIRST_ANEW)]
    by_all = bundle("busybox").asks("all").runs("/bin/sh", "-c", TELL)
    each = "\n".join(f"{start('runc', made)} 2>&1 || echo stopped" for made in by_name)
    script = f"""{KEEP}{REFRESH}{each}
{MADE_ANEW}echo == made
[ ! -e {WANTED} ]
{each}
{start("runc", by_all)}
ls {WANTED}; rm {WANTED}
{REFRESH}echo == asked
{each}
oci-gpu-hook info --saved | grep -o '1c.2g.20gb.me' | sort -u
[ ! -e {WANTED} ]
"""
    out = on_node(script, description="h100mig").printed()
    before, made, asked = [part.splitlines() for part in out.split("== ")]
    assert [line for line in before if "unknown" not in line and "hint" not in line][:2] == ["gi5/ci0", "gi5/ci0"]
    assert made.count("stopped") == 3
    assert len([line for line in made if "inventory refresh" in line]) == 3, made
    assert made[-2:] == ["gi1/ci0 gi13/ci0 gi5/ci0 gi5/ci1", WANTED]
    assert [line for line in asked if line.startswith("gi5/")] == ["gi5/ci1", "gi5/ci0"]
    assert len([line for line in asked if f"unknown MIG device '{FIRST}'" in line]) == 1
    assert asked[-1] == "1c.2g.20gb+me"


def test_a_folder_shown_once_more_has_no_name_until_nvml_was_asked(bundle: Maker) -> None:
    """It may be another's now, with the same inode number.  A request by what the kernel shows is served."""
    gpu = next(it["uuid"] for it in inside.gpus("h100mig") if it["minor"] == 1)
    by_name, by_number, by_all, by_place = [
        bundle("busybox").asks(selector).runs("/bin/sh", "-c", TELL)
        for selector in (FIRST, NUMBER, "all", f"MIG-{gpu}/5/0")
    ]
    script = f"""{REFRESH}{start("runc", by_all)}
[ ! -e {WANTED} ]
{migdevices.SHOWN_ONCE_MORE}{start("runc", by_name)} 2>&1 || echo stopped
ls {WANTED}
{start("runc", by_number)} 2>&1 || echo stopped
{start("runc", by_all)}
{start("runc", by_place)}
rm {WANTED}
oci-gpu-hook info --saved | grep -c 'whether MIG devices were created again since NVML named them'
{REFRESH}{start("runc", by_name)}
{start("runc", by_number)}
[ ! -e {WANTED} ]
"""
    lines = on_node(script, description="h100mig").printed().splitlines()
    assert len([line for line in lines if "cannot be told from the others" in line]) == 2, lines
    every = "gi1/ci0 gi13/ci0 gi5/ci0 gi5/ci1"
    kept = [line for line in lines if line in {every, "gi5/ci0", "stopped", WANTED, "1"}]
    after = ["gi5/ci0", "gi5/ci0"]
    assert kept == [every, "stopped", WANTED, "stopped", every, "gi5/ci0", "1", *after], lines


def test_a_driver_that_was_half_there_is_seen_whole(bundle: Maker) -> None:
    """Its folder may be mounted after the boot's refresh, and no time that is compared tells of that."""
    made = shows_gpus(bundle("busybox"))
    script = f"""library=$(find /usr/lib /usr/lib64 -maxdepth 2 -name 'libcuda.so.*.*' | head -n 1)
mv $library /tmp/away
{REFRESH}{start("runc", made)} && exit 3
mv /tmp/away $library
{start("runc", made)}
"""
    done = on_node(script)
    assert done.printed().split() == [TRUE] and "but libcuda " in done.err, done


def test_watch_asks_nvml_again_for_mig_devices(bundle: Maker) -> None:
    """After they were made again, and where the kernel leaves a doubt; the CDI spec has the new names."""
    made = bundle("busybox").asks(FIRST_ANEW).runs("/bin/sh", "-c", TELL)
    steps = f"""
until_said '^saved '
{migdevices.SHOWN_ONCE_MORE}until_said '^saved ' 2
{MADE_ANEW}until_said '^saved ' 3
until grep -q {SECOND_ANEW} /run/gpu.yaml; do sleep 0.1; done
{start("runc", made)}
for name in {FIRST} {FIRST_ANEW} {SECOND_ANEW}; do grep -c "name.: .$name" /run/gpu.yaml || :; done
"""
    out = watched(steps, "--cdi-spec /run/gpu.yaml", description="h100mig")
    assert out.partition("ended")[0].split() == ["gi5/ci0", "0", "1", "1"]


def test_watch_brings_back_what_only_nvml_knows(bundle: Maker) -> None:
    """A start that found no file has saved its own, which is true and knows less."""
    made = shows_gpus(bundle("busybox"))
    steps = f"""until_asked() {{ until {ASKED_NVML}; do sleep 0.1; done 2>/dev/null; }}
until_asked
kill -STOP $watch
rm {FILE}
{start("runc", made)}
{ASKED_NVML} && exit 3
kill -CONT $watch
until_asked
until_said '^saved .*/inventory: ' 2
# Once more would be too often.
sleep 1
"""
    out = watched(steps)
    assert (out.split()[0], out.count("/inventory: ")) == (TRUE, 2)


# What changes between two starts, what the container prints, and what that was before and is after.
SERVICES = ["/run/nvidia-persistenced", "/var/run/nvidia-persistenced"]
LATER = [
    ("chmod 640 /dev/nvidia2", "stat -c %a /dev/nvidia2", "666", "640"),
    ("mkdir -p /tmp/nvidia-mps", "[ -d /tmp/nvidia-mps ]; echo $?", "1", "0"),
    (f"rm -rf {' '.join(SERVICES)}", f"[ -S {SERVICES[1]}/socket ]; echo $?", "0", "1"),
]


def test_what_is_looked_up_at_each_start_still_is(bundle: Maker) -> None:
    """Nodes and services come and go while the driver stays."""
    tell = "\n".join(row[1] for row in LATER)
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", tell)
    changes = "\n".join(row[0] for row in LATER)
    script = f"rm -rf /tmp/nvidia-mps\n{REFRESH}{start('runc', made)}\n{changes}\n{start('runc', made)}"
    out = on_node(script).printed()
    assert out.split() == [*[row[2] for row in LATER], *[row[3] for row in LATER]]
