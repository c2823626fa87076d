# SPDX-License-Identifier: Apache-2.0
"""What a container can ask for beside whole GPUs, under runc, who may ask, and by which way: lists, swarm, old words.

What the administrator allows stands in the node's own /etc/oci-gpu-hook.conf.  What each name and word means is shown
with values in tests/unit: test_selection.py, test_sources.py, test_request_parse.py and test_requirements.py.
"""

from __future__ import annotations

from typing import Any

from tests import manual
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, on_node, start
from tests.integration.inside import COMPUTE, CONTROL, attempt, gpus, node, plan

MIG = gpus("h100mig")[0]
DIVIDED, WHOLE = node(0, "h100mig"), node(1, "h100mig")
FOLDER = f"gpu{MIG['minor']}/mig"
SECOND, THIRD = (device["uuid"] for device in MIG["mig"][1:3])


def test_mig_devices_by_each_of_their_names(bundle: Maker) -> None:
    instances = {
        SECOND: {"gi5", "gi5/ci0"},
        THIRD.upper().replace("MIG-", "MIG-", 1): {"gi5", "gi5/ci1"},
        f"MIG-{MIG['uuid']}/5/1": {"gi5", "gi5/ci1"},
        "0:0": {"gi1", "gi1/ci0"},
        "0:1,0:2": {"gi5", "gi5/ci0", "gi5/ci1"},
        "all": {f"gi{it['gi']}" for it in MIG["mig"]} | {f"gi{it['gi']}/ci{it['ci']}" for it in MIG["mig"]},
        gpus("h100mig")[1]["uuid"]: set(),
    }
    made = [bundle("busybox").asks(selector) for selector in (*instances, "0:4")]
    *started, unknown = attempt(*made, commands="nvidia-smi -L", description="h100mig")
    found = [each.seen() for each in started]
    for names, seen, selector in zip(instances.values(), found, instances):
        paths = {f"{FOLDER}/{name}/access" for name in names}
        whole = {"all": {DIVIDED, WHOLE}}.get(selector, {DIVIDED} if names else {WHOLE})
        seen.has_exactly(*COMPUTE, *whole, *seen.capability_nodes(*paths))
        assert seen.capability_nodes("mig/config", "mig/monitor") <= seen.denied
        if selector != "all":
            shown = {path for path in seen.shown("capabilities") if path.endswith("access")}
            assert shown == paths, selector
    assert {path.partition("/")[0] for path in found[0].shown("gpus")} == {MIG["bus_id"]}
    assert SECOND in found[0].printed and found[0].printed.count("MIG-") == 1
    assert "unknown MIG device '0:4'" in unknown.refusal()


def test_mig_is_managed_by_privileged_containers(bundle: Maker) -> None:
    managed = {"NVIDIA_MIG_CONFIG_DEVICES": "mig/config", "NVIDIA_MIG_MONITOR_DEVICES": "mig/monitor"}
    plain = [bundle("busybox").asks("1", **{variable: "all"}) for variable in managed]
    made = [bundle("busybox").asks("1", **{variable: "all"}).privileged() for variable in managed]
    found = attempt(*plain, *made, description="h100mig")
    for variable, each in zip(managed, found[:2]):
        assert f"{variable} is for containers with CAP_SYS_ADMIN only" in each.refusal()
    for path, each in zip(managed.values(), found[2:]):
        seen = each.seen()
        seen.has_exactly(*COMPUTE, WHOLE, *seen.capability_nodes(path))
        assert set(seen.capabilities) <= seen.shown("capabilities")


FEATURES = {
    "NVIDIA_GDS": [f"/dev/nvidia-fs{number}" for number in range(4)],
    "NVIDIA_GDRCOPY": ["/dev/gdrdrv"],
    "NVIDIA_MOFED": [f"/dev/infiniband/{name}" for name in ("uverbs0", "uverbs1", "rdma_cm")],
    "NVIDIA_NVSWITCH": [f"/dev/nvidia-nvswitch{name}" for name in ("ctl", 0, 1, 2, 3)],
}


def test_other_drivers_devices_come_by_family(bundle: Maker) -> None:
    words: list[dict[str, Any]] = [
        {name: "enabled" if name == variable else "disabled" for name in FEATURES} for variable in FEATURES
    ]
    made = [bundle("busybox").asks("none", "utility", **each) for each in words]
    made.append(bundle("busybox").asks("7", **dict.fromkeys(FEATURES, "enabled")))
    made.append(bundle("busybox").asks("2", NVIDIA_IMEX_CHANNELS="channel3,1,1"))
    read = "cat /etc/cufile.json; ls /run/udev/data; true"
    *found, every, imex = (each.seen() for each in attempt(*made, commands=read))
    storage = {"/usr/local/nvidia/etc/cufile.json", "/run/udev"}
    for nodes, seen in zip(FEATURES.values(), found):
        seen.has_exactly(CONTROL, *nodes)
        assert (storage <= set(seen.mounts)) == (seen is found[0])
        assert [path for path in seen.mounts if path.endswith("/libnvidia-ml.so.580.65.06")]
        assert not [path for path in seen.mounts if "libcuda" in path]
    assert '"logging"' in found[0].printed
    assert "+module:nvidia_fs" in found[0].printed
    assert all("ro" in found[0].mounts[path] for path in storage)
    every.has_exactly(*COMPUTE, node(7), *[path for paths in FEATURES.values() for path in paths])
    folder = "/dev/nvidia-caps-imex-channels"
    imex.has_exactly(*COMPUTE, node(2), f"{folder}/channel1", f"{folder}/channel3")


LIST_FOLDER = "/var/run/nvidia-container-devices"
LISTS_ONLY = "accept-environment = privileged\naccept-volume-mounts = yes\n"
SWARM = "swarm-resources = DOCKER_RESOURCE_GPU\n"


def lists(bundle: Bundle, *names: str, source: str = "/dev/null") -> Bundle:
    """The bundle with a device list as volume mounts, as Kubernetes' device plugin makes one."""
    for name in names:
        bundle.mounts(source, f"{LIST_FOLDER}/{name}")
    return bundle


def test_where_lists_alone_are_accepted(bundle: Maker) -> None:
    first, second = gpus()[2]["uuid"], gpus()[6]["uuid"]
    features = ("NVIDIA_NVSWITCH", "NVIDIA_MOFED", "NVIDIA_GDS", "NVIDIA_GDRCOPY")
    both, third = {*COMPUTE, node(2), node(6)}, "/dev/nvidia-caps-imex-channels/channel2"
    with_features = lists(bundle("busybox").asks(None, **dict.fromkeys(features, "enabled")), "2")
    by_environment = bundle("busybox").asks("all", NVIDIA_IMEX_CHANNELS="1")
    rows: list[tuple[Bundle, set[str]]] = [
        *[(lists(bundle("busybox").asks(beside), first, second), both) for beside in (None, "all", LIST_FOLDER)],
        (with_features, {*COMPUTE, node(2)}),
        (by_environment, set()),
        (bundle("busybox").asks("4").privileged(), {*COMPUTE, node(4)}),
        # A volume of the user's own choosing must not name a device that the cluster has not given.
        (lists(bundle("busybox"), "0", source="/dev/zero"), set()),
        (lists(bundle("busybox"), "cdi/nvidia.com/gpu=3", "imex/2"), {*COMPUTE, node(3), third}),
    ]
    made = [row[0] for row in rows]
    for (_, nodes), each in zip(rows, attempt(*made, settings=LISTS_ONLY)):
        each.seen().has_exactly(*nodes)
    notes = plan(by_environment, settings=LISTS_ONLY)
    sentence = "{} is not accepted from a container without CAP_SYS_ADMIN"
    assert sentence.format("NVIDIA_VISIBLE_DEVICES") in notes
    assert "/etc/oci-gpu-hook.conf" in notes
    notes = plan(with_features, settings=LISTS_ONLY)
    assert all(sentence.format(variable) in notes for variable in features)


def test_a_share_of_a_swarm_resource_is_the_gpu_itself(bundle: Maker) -> None:
    """Notebooks share a GPU this way: the swarm manager counts names, all of which mean one GPU."""
    uuid = gpus()[5]["uuid"]
    shares = [f"{uuid}{share}" for share in ("", "-0", "-3")]
    made = [bundle("busybox").asks("all", DOCKER_RESOURCE_GPU=share) for share in shares]
    unknown = "GPU-00000000-0000-0000-0000-000000000000-2"
    made.append(bundle("busybox").asks(None, DOCKER_RESOURCE_GPU=unknown))
    made.append(bundle("busybox").asks("0", DOCKER_RESOURCE_GPU="2"))
    *found, stranger, counted = attempt(*made, commands="nvidia-smi -L", settings=SWARM)
    for each in found:
        each.seen().has_exactly(*COMPUTE, node(5))
        assert uuid in each.seen().printed
    assert "unknown device" in stranger.refusal()
    assert "DOCKER_RESOURCE_GPU is '2', a number of devices" in counted.refusal()


OLD = "/usr/local/nvidia"


def test_the_words_of_nvidia_docker_1_are_a_request(bundle: Maker) -> None:
    """A volume that dockerd has made, empty, and devices, and no variable: the image finds the driver there."""
    words = manual.blocks("oci-gpu-hook-images.7", "IMAGES OF NVIDIA-DOCKER 1'S TIME")[0].split()
    name, *where = words[words.index("--volume") + 1].split(":")
    devices = [path for option, path in zip(words, words[1:]) if option == "--device"]
    assert (where, devices) == ([OLD, "ro"], [CONTROL, "/dev/nvidia0"])
    made = bundle("debian").asks(None, LD_LIBRARY_PATH=f"{OLD}/lib64:{OLD}/lib")
    volume = made.path / f"volumes/{name}/_data"
    volume.mkdir(parents=True)
    made.mounts(volume, *where)
    made.mounts("/proc/driver/gpunode", "/driver", "ro")
    numbers = {CONTROL: 255, node(5): gpus()[5]["minor"]}
    made.config["linux"]["devices"] = [
        {"path": path, "type": "c", "major": 195, "minor": minor, "fileMode": 0o666} for path, minor in numbers.items()
    ]
    made.config["linux"]["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rw"} for minor in numbers.values()
    ]
    look = f"{OLD}/bin/nvidia-smi; ls /dev/nvidia*; ls {OLD}/lib64/ {OLD}/lib/; echo x >{OLD}/new"
    script = start("runc", made.runs("/bin/sh", "-c", look))
    refuse = "printf 'accept-environment = privileged\nunaccepted-requests = refuse\n' >/etc/oci-gpu-hook.conf\n"
    seen = on_node(f"{script} 2>&1 || :\n{refuse}{script} 2>&1 || :").printed().splitlines()
    for path in (CONTROL, node(5)):
        assert any(line.split()[:2] == [path, "allowed"] for line in seen), seen
    assert {path for path in seen if path.startswith("/dev/nvidia")} >= {*COMPUTE, node(5)}
    # Of 64 and of 32 bits: nvidia-docker 1 gave all.
    assert seen.count("libcuda.so.1") == 2 and seen.count("libEGL_nvidia.so.0") == 2, seen
    assert any(f"{OLD}/new: Read-only file system" in line for line in seen)
    assert f"the request in the volume at {OLD} is not accepted" in seen[-1]
    assert [*volume.iterdir()] == []
