# SPDX-License-Identifier: Apache-2.0
"""Who may ask, and by which way: device lists as mounts, swarm resources, NVIDIA_REQUIRE_*, under real runc.

What the administrator allows stands in the node's own /etc/oci-gpu-hook.conf.
"""

from __future__ import annotations

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, on_node, start
from tests.integration.inside import COMPUTE, asks, attempt, look, refused
from tests.integration.test_vocabulary import gpu

LIST_FOLDER = "/var/run/nvidia-container-devices"
LISTS_ONLY = "accept-environment = privileged\naccept-volume-mounts = yes\n"
SWARM = "swarm-resources = DOCKER_RESOURCE_GPU\n"


def node(index: int) -> str:
    """The device node of a GPU of the eight-GPU node."""
    return f"/dev/nvidia{gpu('h100x8', index)['minor']}"


def lists(bundle: Bundle, *names: str, source: str = "/dev/null") -> Bundle:
    """The bundle with a device list as volume mounts, as Kubernetes' device plugin makes one."""
    bundle.config["mounts"] += [
        {
            "destination": f"{LIST_FOLDER}/{name}",
            "type": "bind",
            "source": source,
            "options": ["bind"],
        }
        for name in names
    ]
    return bundle


def privileged(bundle: Bundle) -> Bundle:
    """The bundle with the capability that makes a container privileged."""
    bundle.config["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
    return bundle


@pytest.mark.parametrize("beside", [None, "all", "5", LIST_FOLDER])
@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_a_list_of_mounts_is_served_while_the_environment_is_not_asked(
    installed: Installed, bundle: Maker, cgroup: str, beside: str | None
) -> None:
    first, second = gpu("h100x8", 2)["uuid"], gpu("h100x8", 6)["uuid"]
    environment = {} if beside is None else {"NVIDIA_VISIBLE_DEVICES": beside}
    made = lists(asks(bundle("busybox"), **environment), first, second)
    look(installed, made, settings=LISTS_ONLY, cgroup=cgroup).has_exactly(
        *COMPUTE, node(2), node(6)
    )


@pytest.mark.parametrize("asked", ["0", "all", gpu("h100x8", 3)["uuid"]])
def test_where_lists_alone_are_accepted_the_environment_brings_nothing(
    installed: Installed, bundle: Maker, asked: str
) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES=asked, NVIDIA_IMEX_CHANNELS="1")
    look(installed, made, settings=LISTS_ONLY).has_exactly()
    told = plan(installed, made, LISTS_ONLY)
    assert "NVIDIA_VISIBLE_DEVICES is not accepted from a container without CAP_SYS_ADMIN" in told
    assert "/etc/oci-gpu-hook.conf" in told


def test_an_accepted_list_opens_no_other_door_to_the_environment(
    installed: Installed, bundle: Maker
) -> None:
    features = ("NVIDIA_NVSWITCH", "NVIDIA_MOFED", "NVIDIA_GDS", "NVIDIA_GDRCOPY")
    made = lists(asks(bundle("busybox"), **dict.fromkeys(features, "enabled")), "2")
    look(installed, made, settings=LISTS_ONLY).has_exactly(*COMPUTE, node(2))
    told = plan(installed, made, LISTS_ONLY)
    for variable in features:
        assert f"{variable} is not accepted from a container without CAP_SYS_ADMIN" in told


def test_a_privileged_container_may_ask_by_its_environment_all_the_same(
    installed: Installed, bundle: Maker
) -> None:
    made = privileged(asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="4"))
    look(installed, made, settings=LISTS_ONLY).has_exactly(*COMPUTE, node(4))


def test_a_list_that_is_not_accepted_brings_nothing_and_hides_nothing(
    installed: Installed, bundle: Maker
) -> None:
    """As it is without any settings."""
    made = lists(asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="1"), gpu("h100x8", 2)["uuid"])
    look(installed, made).has_exactly(*COMPUTE, node(1))
    assert "the device list in volume mounts is not accepted" in plan(installed, made, "")
    made = lists(asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES=LIST_FOLDER), "0")
    assert "which are not accepted" in refused(installed, made)


def test_a_mount_of_anything_but_dev_null_names_no_device(
    installed: Installed, bundle: Maker
) -> None:
    """A volume of the user's own choosing must not name a device that the cluster has not given him."""
    made = lists(asks(bundle("busybox")), "0", source="/dev/zero")
    look(installed, made, settings=LISTS_ONLY).has_exactly()


def test_a_list_may_name_cdi_devices_and_imex_channels(installed: Installed, bundle: Maker) -> None:
    made = lists(asks(bundle("busybox")), "cdi/nvidia.com/gpu=3", "imex/2")
    seen = look(installed, made, settings=LISTS_ONLY)
    seen.has_exactly(*COMPUTE, node(3), "/dev/nvidia-caps-imex-channels/channel2")


def test_a_rule_for_a_namespace_holds_in_that_namespace_only(
    installed: Installed, bundle: Maker
) -> None:
    settings = "accept-environment = privileged\n[namespace trusted]\naccept-environment = always\n"
    for namespace, nodes in (("trusted", (*COMPUTE, node(0))), ("other", ())):
        made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="0")
        made.config["annotations"] = {"io.kubernetes.cri-o.Namespace": namespace}
        look(installed, made, settings=settings).has_exactly(*nodes)


def test_the_capabilities_that_the_administrator_allows_are_all_there_is(
    installed: Installed, bundle: Maker
) -> None:
    made = asks(bundle("busybox"), "utility,compute", NVIDIA_VISIBLE_DEVICES="0")
    seen = look(installed, made, settings="allowed-capabilities = utility\n")
    seen.has_exactly("/dev/nvidiactl", node(0))
    assert not [path for path in seen.mounts if "libcuda" in path]
    assert [path for path in seen.mounts if "/libnvidia-ml.so." in path]


@pytest.mark.parametrize("share", ["", "-0", "-2", "-3"])
def test_a_share_of_a_swarm_resource_is_the_gpu_itself(
    installed: Installed, bundle: Maker, share: str
) -> None:
    """Three notebooks share a GPU this way: the swarm manager counts names, all of which mean one GPU."""
    made = asks(
        bundle("busybox"),
        DOCKER_RESOURCE_GPU=gpu("h100x8", 5)["uuid"] + share,
        NVIDIA_VISIBLE_DEVICES="all",
    )
    seen = look(installed, made, "nvidia-smi -L", settings=SWARM)
    seen.has_exactly(*COMPUTE, node(5))
    assert gpu("h100x8", 5)["uuid"] in seen.told


def test_three_shares_of_one_gpu_at_once(installed: Installed, bundle: Maker) -> None:
    uuid = gpu("h100x8", 5)["uuid"]
    lines = []
    for share in ("", "-2", "-3"):
        made = asks(bundle("busybox"), DOCKER_RESOURCE_GPU=f"{uuid}{share}")
        lines.append(f"{start('runc', made.runs('nvidia-smi', '-L'))} &")
    done = on_node(installed, "\n".join([*lines, "wait"]), settings=SWARM)
    assert done.out.count(f"UUID: {uuid}") == 3, done.out + done.err


def test_a_swarm_resource_that_nobody_named_asks_for_nothing(
    installed: Installed, bundle: Maker
) -> None:
    made = asks(bundle("busybox"), DOCKER_RESOURCE_GPU=gpu("h100x8", 5)["uuid"])
    look(installed, made).has_exactly()
    made = asks(bundle("busybox"), DOCKER_RESOURCE_GPU="GPU-00000000-0000-0000-0000-000000000000-2")
    assert "unknown device" in refused(installed, made, settings=SWARM)


UNMET = "cuda>=99.0 brand=tesla,driver>=999,driver<1000 arch>=12.0"


def test_an_unmet_requirement_is_told_for_every_alternative(
    installed: Installed, bundle: Maker
) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="0", NVIDIA_REQUIRE_CUDA=UNMET)
    said = refused(installed, made)
    assert (
        "the image requires 'cuda>=99.0' or 'brand=tesla,driver>=999,driver<1000' or 'arch>=12.0'"
        " (here cuda is 13.0, brand is Nvidia, driver is 580.65.06, arch is 9.0)"
    ) in said


@pytest.mark.parametrize(
    "required",
    [
        {"NVIDIA_REQUIRE_CUDA": f"{UNMET} brand=nvidia,driver>=580,driver<581"},
        {"NVIDIA_REQUIRE_CUDA": f"arch=9.0 {UNMET}"},
        {"NVIDIA_REQUIRE_CUDA": "cuda>=12.4", "NVIDIA_REQUIRE_ARCH": "arch>=9,arch<10"},
        {"NVIDIA_REQUIRE_CUDA": UNMET, "NVIDIA_DISABLE_REQUIRE": "true"},
        {"CUDA_VERSION": "12.4.1"},
    ],
)
def test_a_met_requirement_with_alternatives(
    installed: Installed, bundle: Maker, required: dict[str, str]
) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="0", **required)
    look(installed, made).has_exactly(*COMPUTE, node(0))


def test_all_variables_of_requirements_must_hold(installed: Installed, bundle: Maker) -> None:
    wanted = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.4", "NVIDIA_REQUIRE_DRIVER": "driver<580"}
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="0", **wanted)
    assert "requires 'driver<580' (here driver is 580.65.06)" in refused(installed, made)
    settings = "disable-requirements = yes\n"
    look(installed, made, settings=settings).has_exactly(*COMPUTE, node(0))


def test_what_only_nvml_knows_fulfils_nothing_until_it_was_asked(
    installed: Installed, bundle: Maker
) -> None:
    """CUDA's version has the driver's branch as its lower bound; compute capability and brand have none."""
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="0", NVIDIA_REQUIRE_CUDA="arch>=9.0")
    said = refused(installed, made, refresh=False)
    assert "'arch>=9.0' (here arch is unknown)" in said
    assert "inventory refresh" in said
    look(installed, made).has_exactly(*COMPUTE, node(0))
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="0", NVIDIA_REQUIRE_CUDA="cuda>=12.4")
    look(installed, made, refresh=False).has_exactly(*COMPUTE, node(0))


def test_settings_that_cannot_be_read_stop_only_those_who_ask(
    installed: Installed, bundle: Maker
) -> None:
    wrong = "accept-enviroment = privileged\n"
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="0")
    said = refused(installed, made, settings=wrong, refresh=False)
    assert "/etc/oci-gpu-hook.conf:1: unknown key" in said
    assert "accept-environment" in said
    done = attempt(installed, asks(bundle("busybox")), settings=wrong, refresh=False)
    assert done.code == 0, done.err


def plan(installed: Installed, bundle: Bundle, settings: str) -> str:
    """What ``plan`` says of the bundle on a node with these settings: runc keeps a successful hook's words."""
    done = on_node(installed, f"oci-gpu-hook plan --bundle {bundle.path}", settings=settings)
    assert done.code == 0, done.err
    return done.out + done.err
