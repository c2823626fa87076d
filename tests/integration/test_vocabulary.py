# SPDX-License-Identifier: Apache-2.0
"""Everything that a container can ask for beside whole GPUs, under real runtimes: MIG, IMEX, NVIDIA's other devices.

Each test looks from inside the container at what it has and tries to open what it did not ask for.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, RUNTIMES, Installed
from tests.integration.inside import COMPUTE, CONTROL, asks, look, refused


def gpu(description: str, index: int) -> dict[str, Any]:
    """A GPU of a simulated node by NVML's index."""
    path = REPOSITORY / f"tests/gpunode/descriptions/{description}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["gpus"]
    return sorted(found, key=lambda item: str(item["bus_id"]))[index]


MIG = gpu("h100mig", 0)
DIVIDED, WHOLE = f"/dev/nvidia{MIG['minor']}", f"/dev/nvidia{gpu('h100mig', 1)['minor']}"
FOLDER = f"gpu{MIG['minor']}/mig"
SECOND, THIRD = (device["uuid"] for device in MIG["mig"][1:3])


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_a_mig_device_by_its_uuid_is_given_alone(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str
) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES=SECOND)
    how = {"runtime": runtime, "cgroup": cgroup, "description": "h100mig"}
    seen = look(installed, made, "nvidia-smi -L", **how)
    instances = f"{FOLDER}/gi5/access", f"{FOLDER}/gi5/ci0/access"
    seen.has_exactly(*COMPUTE, DIVIDED, *seen.capability_nodes(*instances))
    assert {path for path in seen.shown("capabilities") if path.endswith("access")} == {*instances}
    assert {path.partition("/")[0] for path in seen.shown("gpus")} == {MIG["bus_id"]}
    assert SECOND in seen.told
    assert seen.told.count("MIG-") == 1, seen.told


@pytest.mark.parametrize(
    ("selector", "instances"),
    [
        ("0:0", ["gi1", "gi1/ci0"]),
        ("0:3", ["gi13", "gi13/ci0"]),
        (f"MIG-{MIG['uuid']}/5/1", ["gi5", "gi5/ci1"]),
        (THIRD.upper().replace("MIG-", "MIG-", 1), ["gi5", "gi5/ci1"]),
        ("0:1,0:2", ["gi5", "gi5/ci0", "gi5/ci1"]),
    ],
)
def test_mig_devices_by_their_other_names(
    installed: Installed, bundle: Maker, selector: str, instances: list[str]
) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES=selector)
    seen = look(installed, made, description="h100mig")
    paths = [f"{FOLDER}/{name}/access" for name in instances]
    seen.has_exactly(*COMPUTE, DIVIDED, *seen.capability_nodes(*paths))
    assert {path for path in seen.shown("capabilities") if path.endswith("access")} == {*paths}


def test_a_whole_gpu_brings_no_mig_device_and_all_brings_every_one(
    installed: Installed, bundle: Maker
) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES=gpu("h100mig", 1)["uuid"])
    look(installed, made, description="h100mig").has_exactly(*COMPUTE, WHOLE)
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="all")
    seen = look(installed, made, description="h100mig")
    paths = [path for path in seen.capabilities if path.startswith(FOLDER)]
    seen.has_exactly(*COMPUTE, DIVIDED, WHOLE, *seen.capability_nodes(*paths))
    assert seen.capability_nodes("mig/config", "mig/monitor") <= seen.denied


def test_without_nvml_a_mig_device_is_never_guessed(installed: Installed, bundle: Maker) -> None:
    """The form that names instances needs no NVML; the two others say who can tell."""
    how: dict[str, Any] = {"description": "h100mig", "refresh": False}
    for selector in (SECOND, "0:1"):
        made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES=selector)
        said = refused(installed, made, **how)
        assert f"MIG device '{selector}' cannot be told from the others" in said
        assert "inventory refresh" in said
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES=f"MIG-{MIG['uuid']}/5/0")
    seen = look(installed, made, **how)
    paths = f"{FOLDER}/gi5/access", f"{FOLDER}/gi5/ci0/access"
    seen.has_exactly(*COMPUTE, DIVIDED, *seen.capability_nodes(*paths))


@pytest.mark.parametrize("selector", ["0:4", "1:0", "MIG-00000000-0000-0000-0000-000000000000"])
def test_a_mig_device_that_is_not_there_is_refused(
    installed: Installed, bundle: Maker, selector: str
) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES=selector)
    said = refused(installed, made, description="h100mig")
    assert f"unknown MIG device '{selector}'" in said


@pytest.mark.parametrize(
    ("variable", "path"),
    [
        ("NVIDIA_MIG_CONFIG_DEVICES", "mig/config"),
        ("NVIDIA_MIG_MONITOR_DEVICES", "mig/monitor"),
    ],
)
def test_mig_itself_is_managed_by_privileged_containers_only(
    installed: Installed, bundle: Maker, variable: str, path: str
) -> None:
    wanted = {"NVIDIA_VISIBLE_DEVICES": "1", variable: "all"}
    said = refused(installed, asks(bundle("busybox"), **wanted), description="h100mig")
    assert f"{variable} is for containers with CAP_SYS_ADMIN only" in said
    made = asks(bundle("busybox"), **wanted)
    made.config["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
    seen = look(installed, made, description="h100mig")
    seen.has_exactly(*COMPUTE, WHOLE, *seen.capability_nodes(path))
    assert set(seen.capabilities) <= seen.shown("capabilities")


@pytest.mark.parametrize("channels", ["1,3", "channel3,1,1"])
@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_two_imex_channels(installed: Installed, bundle: Maker, cgroup: str, channels: str) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="2", NVIDIA_IMEX_CHANNELS=channels)
    node = f"/dev/nvidia{gpu('h100x8', 2)['minor']}"
    folder = "/dev/nvidia-caps-imex-channels"
    seen = look(installed, made, cgroup=cgroup)
    seen.has_exactly(*COMPUTE, node, f"{folder}/channel1", f"{folder}/channel3")
    assert {f"{folder}/channel0", f"{folder}/channel2"} <= seen.denied


FEATURES = {
    "NVIDIA_GDS": [f"/dev/nvidia-fs{number}" for number in range(4)],
    "NVIDIA_GDRCOPY": ["/dev/gdrdrv"],
    "NVIDIA_MOFED": [f"/dev/infiniband/{name}" for name in ("uverbs0", "uverbs1", "rdma_cm")],
    "NVIDIA_NVSWITCH": [f"/dev/nvidia-nvswitch{name}" for name in ("ctl", 0, 1, 2, 3)],
}


@pytest.mark.parametrize("variable", FEATURES)
def test_the_devices_of_other_drivers_come_one_family_at_a_time(
    installed: Installed, bundle: Maker, variable: str
) -> None:
    others = {name: "disabled" for name in FEATURES if name != variable}
    made = asks(
        bundle("busybox"),
        "utility",
        NVIDIA_VISIBLE_DEVICES="none",
        **{variable: "enabled"},
        **others,
    )
    seen = look(installed, made, "cat /etc/cufile.json; ls /run/udev/data; true")
    seen.has_exactly(CONTROL, *FEATURES[variable])
    storage = {"/etc/cufile.json", "/run/udev"}
    assert (storage <= set(seen.mounts)) == (variable == "NVIDIA_GDS")
    if variable == "NVIDIA_GDS":
        assert '"logging"' in seen.told
        assert "+module:nvidia_fs" in seen.told
        assert all("ro" in seen.mounts[path] for path in storage)


def test_all_families_beside_a_gpu_at_once(installed: Installed, bundle: Maker) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="7", **dict.fromkeys(FEATURES, "enabled"))
    node = f"/dev/nvidia{gpu('h100x8', 7)['minor']}"
    every = [path for paths in FEATURES.values() for path in paths]
    look(installed, made).has_exactly(*COMPUTE, node, *every)
