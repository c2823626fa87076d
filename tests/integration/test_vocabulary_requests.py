# SPDX-License-Identifier: Apache-2.0
"""Who may ask, and by which way: device lists as mounts, swarm resources, NVIDIA_REQUIRE_*, under real runc.

What the administrator allows stands in the node's own /etc/oci-gpu-hook.conf.  What each word means is shown with
values in tests/unit/test_sources.py, test_request_parse.py and test_requirements.py.
"""

from __future__ import annotations

from tests.integration.conftest import Maker
from tests.integration.engines import Bundle
from tests.integration.inside import COMPUTE, attempt, gpus, node, plan

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
