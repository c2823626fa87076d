# SPDX-License-Identifier: Apache-2.0
"""Which devices a request means on a host: GPU 0 in MIG mode with one MIG device, GPU 1 without any."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.errors import DriverError, RequestError
from oci_gpu_hook.operations import Device
from oci_gpu_hook.planning import nodegroups, provision, selection
from oci_gpu_hook.planning.plan import Provision
from oci_gpu_hook.planning.selection import Selection
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.cdirequest import of_nodes
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from tests.unit import hosts
from tests.unit.asking import by_environment
from tests.unit.bounded import is_linear
from tests.vocabulary.host import MIG_UUID, UUID, everything

PLAIN = hosts.uuid(0)
STRANGER = hosts.uuid(9)
CAPS = "/dev/nvidia-caps/nvidia-cap"


def selected(devices: str, inventory: DriverInventory | None = None) -> Selection:
    return selection.select(by_environment(devices), inventory or everything())


def indices(devices: str) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The GPUs, and the MIG devices, by number."""
    found = selected(devices)
    gpus = [gpu.nvml_index for gpu, _ in found.gpus]
    return gpus, [(device.gpu, device.gi, device.ci) for device, _ in found.mig_devices]


def paths(request: Request, inventory: DriverInventory | None = None) -> list[str]:
    """The nodes that a request brings."""
    inventory = inventory or everything()
    found = selection.nodes(request, selection.select(request, inventory), inventory)
    return [node.path for node, _ in found]


def refusal(devices: str, host: DriverInventory | None = None) -> str:
    with pytest.raises((RequestError, DriverError)) as caught:
        selected(devices, host)
    sentence = str(caught.value)
    assert sentence.isascii() and sentence.isprintable() and len(sentence) < 400
    return sentence


@pytest.mark.parametrize(
    ("devices", "gpus", "mig"),
    [("none", [], []), ("all", [0, 1], [(0, 1, 0)]), ("1,0", [0, 1], []), (PLAIN, [1], [])]
    + [(f"{UUID}-2,{UUID}-3,0,0000:07:00.0", [0], []), (f"0:0,{MIG_UUID},MIG-{UUID}/1/0", [0], [(0, 1, 0)])]
    + [("1,0:0", [0, 1], [(0, 1, 0)])],
)
def test_what_a_request_means(devices: str, gpus: list[int], mig: list[tuple[int, int, int]]) -> None:
    assert indices(devices) == (gpus, mig)


@pytest.mark.parametrize("devices", ["0:0,0", "0,0:0", f"MIG-{UUID}/1/0,0"])
def test_a_gpu_that_is_requested_beside_its_mig_device_is_whole(devices: str) -> None:
    """Only a whole GPU has DRM nodes; which of the two stands first in the list means nothing."""
    ((gpu, selector),) = selected(devices).gpus
    assert (gpu.nvml_index, selector) == (0, "0")
    assert [path for path in paths(by_environment(devices, "graphics")) if "/dri/" in path] == [
        "/dev/dri/card2",
        "/dev/dri/renderD129",
    ]


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("2", "unknown device '2': this host has indices 0, 1 "),
        (STRANGER, "2 GPUs, and none has this UUID (the container's author must ask for one that exists; "),
        (STRANGER, "; if a device plugin assigned it, the node's administrator must restart that plugin)"),
        ("1:0", "unknown MIG device '1:0': GPU 1 has no MIG device"),
        ("0:1", "unknown MIG device '0:1': GPU 0 has 1 MIG device "),
        (f"MIG-{PLAIN}/1/0", "this host has 1 MIG device "),
        (f"MIG-{UUID}/1/1", "this host has 1 MIG device "),
        (f"MIG-{UUID[4:]}", "this host has 1 MIG device "),
        ("0,1,2", "3 GPUs are asked for (0 to 2), and this host has 2"),
        ("1,0,2", "unknown device '2'"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(devices: str, words: str) -> None:
    assert words in refusal(devices)


@pytest.mark.parametrize("devices", ["0:0", MIG_UUID])
def test_a_mig_device_that_only_nvml_can_name_is_never_guessed(devices: str) -> None:
    (device,) = everything().mig_devices
    host = everything()._replace(mig_devices=(device._replace(number=None, uuid=None),))
    assert "only NVML knows their names" in refusal(devices, host)
    assert "inventory refresh" in refusal(devices, host)
    assert "a rootless engine asks for MIG-GPU-UUID/gi/ci" in refusal(devices, host)
    # What the kernel itself tells is no guess, and of another GPU nothing is unknown.
    assert selected(f"MIG-{UUID}/1/0", host).mig_devices
    assert "GPU 1 has no MIG device" in refusal("1:0", host)


@pytest.mark.parametrize(
    ("devices", "changes", "words"),
    [
        *[(it, {"mig_devices": ()}, "no MIG device") for it in ("0:0", MIG_UUID, f"MIG-{UUID}/1/0")],
        *[(it, {"mig_devices": (), "gpus": ()}, "drives no GPU") for it in ("all", "0", "0:0", MIG_UUID)],
        ("1", {"gpus": everything().gpus[:1]}, "this host has index 0 "),
        # In a privileged container NVML numbers all GPUs, and /proc shows those that it was given.
        ("0", {"gpus": everything().gpus[1:], "mig_devices": ()}, "this host has index 1 "),
    ],
)
def test_of_a_host_that_has_less_that_is_said(devices: str, changes: dict[str, Any], words: str) -> None:
    assert words in refusal(devices, everything()._replace(**changes))
    assert selected("none", everything()._replace(**changes)) == Selection((), ())


def test_compute_instances_of_one_gpu_instance_share_its_node() -> None:
    first, second = [MigDevice(0, ci, None, "", 1, ci, 30, 31 + ci) for ci in (0, 1)]
    nodes = everything().devices
    (node,) = [node for node in nodes if node.path == f"{CAPS}31"]
    more = node._replace(path=f"{CAPS}32", minor=32)
    host = everything()._replace(mig_devices=(first, second), devices=(*nodes, more))
    assert paths(by_environment("0:0,0:1", "utility"), host)[2:] == [f"{CAPS}30", f"{CAPS}31", f"{CAPS}32"]


@pytest.mark.parametrize(
    ("devices", "lacks", "hint"),
    [("0:0", f"{CAPS}31", ""), ("0", "/dev/nvidia-modeset", "modprobe nvidia-modeset")]
    + [("0", "/dev/nvidia-uvm-tools", "modprobe nvidia-uvm")],
)
def test_a_node_that_is_not_there_is_a_driver_error(devices: str, lacks: str, hint: str) -> None:
    host = everything()
    without = tuple([node for node in host.devices if node.path != lacks])
    with pytest.raises(DriverError, match=lacks) as caught:
        paths(by_environment(devices, "all"), host._replace(devices=without))
    assert caught.value.hint.endswith(hint)


@pytest.mark.parametrize("variable", ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"])
def test_mig_cannot_be_managed_where_there_is_none(variable: str) -> None:
    host = everything()._replace(mig_config_minor=None, mig_monitor_minor=None)
    with pytest.raises(RequestError, match=f"{variable} cannot be met: no GPU of this host"):
        paths(by_environment("0", **{variable: "all"}), host)


def test_an_imex_channel_without_its_driver_is_refused_and_all_of_none_is_none() -> None:
    host = everything()
    without = host._replace(devices=tuple([n for n in host.devices if n.family != "imex"]))
    with pytest.raises(RequestError, match="IMEX channel '3' cannot be given"):
        paths(by_environment("0", NVIDIA_IMEX_CHANNELS="3"), without)
    assert not [p for p in paths(by_environment("0", NVIDIA_IMEX_CHANNELS="all"), without) if "imex" in p]
    assert len([p for p in paths(by_environment("0", NVIDIA_IMEX_CHANNELS="3,7")) if "imex" in p]) == 2


def test_features_that_the_host_lacks_are_named() -> None:
    wanted = by_environment("0", NVIDIA_GDS="enabled", NVIDIA_NVSWITCH="enabled")
    assert selection.absent_features(wanted, everything()) == []
    gds, nvswitch = selection.absent_features(wanted, everything()._replace(devices=()))
    assert gds == "NVIDIA_GDS=enabled brings nothing: this host has no /dev/nvidia-fs*"
    assert nvswitch.startswith("NVIDIA_NVSWITCH=enabled brings nothing")
    channels = by_environment("0", NVIDIA_IMEX_CHANNELS="all")
    assert selection.absent_features(channels, everything()) == []
    (sentence,) = selection.absent_features(channels, everything()._replace(devices=()))
    assert sentence == "asking for all IMEX channels brings nothing: this host has none"


@pytest.mark.parametrize("devices", ["all", "1", "0:0", "1,0:0", "0,0:0", "none"])
@pytest.mark.parametrize("capabilities", ["compute", "graphics", "display"])
def test_the_nodes_that_an_engine_injects_mean_the_request_that_brought_them(devices: str, capabilities: str) -> None:
    """The hook behind a CDI spec of ours sees nodes where the other one saw a request; both mean the same."""
    request = by_environment(devices, capabilities)
    first, nodes = selection.select(request, everything()), paths(request)
    again, _ = of_nodes(sources.Inputs({}), Settings(), tuple(nodes), request.capabilities)
    assert again is not None
    found = selection.select(again, everything())
    assert [gpu for gpu, _ in found.gpus] == [gpu for gpu, _ in first.gpus]
    assert [item for item, _ in found.mig_devices] == [item for item, _ in first.mig_devices]
    assert sorted(paths(again)) == sorted(nodes)


SELECTORS = st.one_of(
    st.sampled_from(["0", "1", "2", "0:0", "0:1", "1:0", UUID, PLAIN, STRANGER, MIG_UUID, f"MIG-{UUID}/1/0"]),
    st.builds("{}:{}".format, st.integers(0, 3), st.integers(0, 3)),
)  # fmt: skip


@given(st.lists(SELECTORS, min_size=1, max_size=6))
def test_a_selection_is_in_nvmls_order_and_never_without_a_parent(names: list[str]) -> None:
    try:
        found = selected(",".join(names))
    except (RequestError, DriverError) as err:
        assert "\n" not in str(err)
        return
    order = [gpu.nvml_index for gpu, _ in found.gpus]
    assert order == sorted(set(order)) and order
    assert {device.gpu for device, _ in found.mig_devices} <= set(order)
    assert {reason for _, reason in (*found.gpus, *found.mig_devices)} <= set(names)


def test_time_grows_with_the_request_and_no_faster() -> None:
    host = everything()
    gpu = host.gpus[1]
    wanted = {entries: by_environment("1")._replace(devices=("1", gpu.bus_id) * entries) for entries in (100, 1_000)}
    assert is_linear(lambda entries: selection.select(wanted[entries], host))


@pytest.mark.parametrize(
    ("minors", "mask"), [((0, 5), "0x21"), ((63,), "0x8000000000000000"), ((63, 64), "0x8000000000000000")]
)
def test_the_profile_for_egl_has_a_bit_for_each_of_64_minors(minors: tuple[int, ...], mask: str) -> None:
    gpus = tuple([(everything().gpus[0]._replace(minor=minor), "") for minor in minors])
    drawing = by_environment("all")._replace(capabilities=("graphics",))
    (profile,) = provision._application_profile(drawing, Selection(gpus, ()))
    assert f'"EGLVisibleDGPUDevices", {mask}]' in str(profile)
    alone = Selection(((everything().gpus[0]._replace(minor=64), ""),), ())
    assert provision._application_profile(drawing, alone) == []


@pytest.mark.parametrize(("source", "who"), [("swarm", "docker --swarm GPU"), ("mounts", "the device plugin")])
@pytest.mark.parametrize("device", ["GPU-0", "MIG-0", "7:1"])
def test_a_name_that_the_node_gave_is_the_nodes_to_fix(source: str, who: str, device: str) -> None:
    """Swarm's resources and a device plugin assign what was there when they were started."""
    with pytest.raises(RequestError) as caught:
        selection.select(Request(source, (device,), ()), everything())
    assert "the node's administrator must" in caught.value.hint and who in caught.value.hint
    with pytest.raises(RequestError) as caught:
        selection.select(Request("env", (device,), ()), everything())
    assert "the container's author must" in caught.value.hint


# --- whether a container's user can open the nodes that it gets, and what is done about it

VIDEO = 44


class User(NamedTuple):
    uid: int
    gid: int
    groups: tuple[int, ...]


def node(mode: int = 0o660, uid: int = 0, gid: int = VIDEO, source: str = "", path: str = "/dev/dri/card0") -> Device:
    return Device(path, "c", 226, 0, "rw", mode, uid, gid, source, True, "why")


def opened(devices: tuple[Device, ...], user: User, *, keeps: bool = False, may_change: bool = True) -> Provision:
    """What is given of these nodes to a container's process with these ids."""
    ids = {"uid": user.uid, "gid": user.gid, "additionalGids": list(user.groups)}
    annotations = {"run.oci.keep_original_groups": "1"} if keeps else {}
    bundle = Bundle("/b", {"process": {"user": ids}, "annotations": annotations})
    return nodegroups.opened(Provision("580.1", (), devices, ()), bundle, may_change=may_change)


def given_to(device: Device, user: User, **options: bool) -> tuple[Device, tuple[str, ...]]:
    found = opened((device,), user, **options)
    (given,) = found.operations
    assert isinstance(given, Device)
    return given, found.notes


@pytest.mark.parametrize(
    ("device", "user", "gid"),
    [
        (node(), User(1000, 1000, ()), 1000),
        (node(), User(1000, 0, ()), 0),
        (node(), User(1000, 1000, (4, VIDEO)), VIDEO),
        (node(), User(1000, VIDEO, ()), VIDEO),
        (node(), User(0, 0, ()), VIDEO),
        (node(uid=1000), User(1000, 1000, ()), VIDEO),
        (node(0o666), User(1000, 1000, ()), VIDEO),
        (node(0o444, path="/dev/nvidia-caps/nvidia-cap3"), User(1000, 1000, ()), VIDEO),
        (node(0o444, path="/dev/nvidia-caps/nvidia-cap3", source="/dev"), User(0, 0, ()), VIDEO),
        (node(0o444, path="/dev/nvidia-caps/nvidia-cap3"), User(1000, VIDEO, ()), VIDEO),
    ],
)
def test_a_node_has_the_group_of_a_process_that_could_not_open_it(device: Device, user: User, gid: int) -> None:
    assert given_to(device, user) == (device._replace(gid=gid), ())


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_a_mode_is_never_wider_than_the_hosts(mode: int) -> None:
    found, notes = given_to(node(mode), User(1000, 1000, ()))
    assert found == node(mode)
    (note,) = notes
    assert "user 1000 of the container cannot open it; start it with --group-add 44" in note
    found, notes = given_to(node(), User(1000, 1000, ()), may_change=False)
    assert found == node() and len(notes) == 1


def test_in_a_user_namespace_a_sentence_says_what_helps() -> None:
    bound = node(source="/dev/dri/card0")
    for user in (User(0, 0, ()), User(1000, 1000, (VIDEO,))):
        found, (note,) = given_to(bound, user)
        assert found == bound
        assert "rootless podman: --group-add keep-groups" in note
        assert given_to(bound, user, keeps=True) == (bound, ())
        assert given_to(bound._replace(mode=0o666), user) == (bound._replace(mode=0o666), ())


def test_of_several_nodes_there_is_one_sentence() -> None:
    devices = (node(0o600), node(0o600, path="/dev/dri/card1"), node())
    found = opened(devices, User(7, 8, ()))
    assert found.notes[0].startswith("/dev/dri/card0, /dev/dri/card1 of mode 0600") and len(found.notes) == 1
    assert [it.gid for it in found.operations if isinstance(it, Device)] == [VIDEO, VIDEO, 8]


@given(
    st.builds(node, st.integers(0, 0o777), st.integers(0, 2), st.integers(0, 3), st.sampled_from(["", "/dev/x"])),
    st.builds(User, st.integers(0, 2), st.integers(0, 3), st.tuples(st.integers(0, 3))),
    st.booleans(),
)
def test_nothing_but_the_group_changes_and_only_to_the_processs_own(device: Device, user: User, may: bool) -> None:
    found, _ = given_to(device, user, may_change=may)
    assert found in (device, device._replace(gid=user.gid))
    assert may or found == device


@pytest.mark.parametrize(
    ("said", "user"),
    [
        ({"uid": 7, "gid": 8, "additionalGids": [9, 10]}, User(7, 8, (9, 10))),
        ({}, User(0, 0, ())),
        ({"uid": "video", "gid": None, "additionalGids": "wheel"}, User(0, 0, ())),
        ({"uid": 4294967295, "gid": -1, "additionalGids": ["video", 4294967295, 5]}, User(0, 0, (0, 0, 5))),
        ({"uid": 1, "gid": 1, "additionalGids": list(range(65_536))}, User(1, 1, tuple(range(65_536)))),
    ],
)
def test_who_a_container_runs_as(said: dict[str, object], user: User) -> None:
    assert Bundle("/b", {"process": {"user": said}}).user() == user
