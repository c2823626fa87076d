# SPDX-License-Identifier: Apache-2.0
"""Everything that a container can ask for beside whole GPUs, under runc: MIG, IMEX, NVIDIA's other devices.

What each name means is shown with values in tests/unit/test_selection.py.
"""

from __future__ import annotations

from typing import Any

from tests.integration.conftest import Maker
from tests.integration.inside import COMPUTE, CONTROL, attempt, gpus, node

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
    assert '"logging"' in found[0].printed
    assert "+module:nvidia_fs" in found[0].printed
    assert all("ro" in found[0].mounts[path] for path in storage)
    every.has_exactly(*COMPUTE, node(7), *[path for paths in FEATURES.values() for path in paths])
    folder = "/dev/nvidia-caps-imex-channels"
    imex.has_exactly(*COMPUTE, node(2), f"{folder}/channel1", f"{folder}/channel3")
