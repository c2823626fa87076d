# SPDX-License-Identifier: Apache-2.0
"""Where devices are named beside the environment: volume mounts, swarm resources, annotations; and which goes first.

The rows follow the project's reference to NVIDIA's stack, section 1.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, inputs_of, may_ask
from oci_gpu_hook.request.words import CAPABILITIES, LONGEST_VALUE
from tests import crio
from tests.unit.asking import (
    LIST,
    MIG,
    MOUNTS,
    OTHER,
    SWARM,
    UUID,
    VISIBLE,
    annotated,
    left_out,
    listed,
    refusal,
    request_of,
)

# nvidia-docker 1's volume, and nodes.

VOLUME = "/var/lib/docker/volumes/nvidia_driver_375.66/_data"
NODES = [
    {"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255},
    {"path": "/dev/nvidia-uvm", "type": "c", "major": 511, "minor": 0},
    {"path": "/dev/other", "type": "c", "major": 195, "minor": 3},
]


def old(source: str = VOLUME, target: str = "/usr/local/nvidia", nodes: object = NODES, **env: str) -> Inputs:
    document: dict[str, Any] = {
        "process": {"env": [f"{name}={value}" for name, value in env.items()]},
        "mounts": [{"source": source, "destination": target, "type": "bind"}],
        "linux": {"devices": nodes},
    }
    return inputs_of(Bundle("/b", document), {})


@pytest.mark.parametrize(
    "asks", [old(), old(target="/usr/local/nvidia/"), old("/x/nvidia_driver_/y"), old(f"/{'a' * 10_000}{VOLUME}")]
)
def test_the_words_of_nvidia_docker_1_ask_for_the_gpus_whose_nodes_are_given(asks: Inputs) -> None:
    """By their numbers; and for all that its volume had."""
    found = request_of(asks)
    assert may_ask(asks)
    assert (found.source, found.nodes, found.capabilities) == ("devices", ("/dev/nvidia3",), CAPABILITIES)


@pytest.mark.parametrize(
    "silent",
    [
        old(NVIDIA_VISIBLE_DEVICES="void"),
        old(NVIDIA_VISIBLE_DEVICES=""),
        old(nodes=NODES[:2]),
        old("/srv/nvidia"),
        old("nvidia_driver_375.66"),
        old(target="/usr/local/nvidia/lib64"),
        old(target="/opt/nvidia"),
    ],
)
def test_another_volume_or_one_without_gpus_asks_for_nothing(silent: Inputs) -> None:
    assert not may_ask(silent)
    assert parse_request(silent, Settings()) == (None, ())


def test_beside_the_words_of_nvidia_docker_1_a_variable_counts() -> None:
    found = request_of(old(NVIDIA_VISIBLE_DEVICES="1", NVIDIA_DRIVER_CAPABILITIES="utility"))
    assert (found.source, found.devices, found.capabilities) == ("env", ("1",), ("utility",))
    assert request_of(old(NVIDIA_DRIVER_CAPABILITIES="utility")).capabilities == ("utility",)


# Device lists as volume mounts.


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("0", "all"), ("all",)),
        ((UUID, OTHER, f"{UUID}-2"), (UUID, OTHER)),
        (("cdi/nvidia.com/gpu/0", "cdi/nvidia.com/gpu=1"), ("0", "1")),
        (("1", f"cdi/runtime.nvidia.com/gpu/{UUID}"), ("1", UUID)),
        (("cdi/nvidia.com/gds/all",), ("none",)),
        (("imex/3",), ("none",)),
    ],
)
def test_mounts(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    found = request_of(Inputs({}, listed(*names)), MOUNTS)
    assert (found.source, found.devices) == ("mounts", expected)


def test_a_mount_can_name_imex_channels_and_features() -> None:
    names = ("imex/3", "cdi/nvidia.com/imex-channel/7", "cdi/nvidia.com/gdrcopy/all", "0")
    found = request_of(Inputs({}, listed(*names)), MOUNTS)
    assert (found.devices, found.imex_channels, found.features) == (("0",), ("3", "7"), ("gdrcopy",))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "unknown device ''"),
        ("0/", "unknown device"),
        ("../../etc/shadow", "unknown device"),
        ("cdi/nvidia.com", "unknown device"),
        ("cdi/nvidia.com/gpu", "unknown device"),
        ("cdi/nvidia.com/gpu/", "unknown device"),
        ("cdi/nvidia.com/gpu/0/1", "unknown CDI kind"),
        ("imex/", "not an IMEX channel"),
        ("imex/1048576", f"in the mounts in {LIST} is not an IMEX channel"),
        ("x" * 4096, "unknown device"),
        ("\n\x1b[2J", "unknown device"),
    ],
)
def test_a_mount_that_names_nothing_is_refused(name: str, words: str) -> None:
    assert words in refusal(Inputs({}, listed(name)), MOUNTS)


def test_other_mounts_stand_before_a_list_and_in_it() -> None:
    mounts = (("/data", "/data"), *listed("0"), ("/tmp", "/tmp"), *listed("1"))
    assert request_of(Inputs({}, mounts), MOUNTS).devices == ("0", "1")


@pytest.mark.parametrize("source", ["", "/dev/null/", "/dev/../dev/null"])
def test_only_mounts_of_dev_null_name_a_device(source: str) -> None:
    assert "is not of /dev/null" in left_out(Inputs({}, ((source, f"{LIST}/0"),)), MOUNTS)


@pytest.mark.parametrize("destination", [LIST, f"{LIST}x/0", "/var/run/nvidia-container-device/0"])
def test_mounts_elsewhere_name_nothing(destination: str) -> None:
    assert parse_request(Inputs({}, (("/dev/null", destination),)), MOUNTS) == (None, ())


def test_accepted_mounts_go_before_annotations_and_those_before_the_environment() -> None:
    everywhere = Inputs({VISIBLE: "2"}, listed("0"), ("nvidia.com/gpu=1",))
    assert request_of(everywhere, MOUNTS).devices == ("0",)
    assert request_of(everywhere).devices == ("1",)
    assert request_of(everywhere._replace(cdi=())).devices == ("2",)


@pytest.mark.parametrize("value", ["void", "", LIST])
def test_accepted_mounts_stand_whatever_the_variable_says(value: str) -> None:
    assert request_of(Inputs({VISIBLE: value}, listed("1")), MOUNTS).devices == ("1",)


def test_a_variable_that_points_to_a_list_that_is_not_there_asks_for_nothing() -> None:
    assert left_out(Inputs({VISIBLE: LIST}), MOUNTS) == (
        f"{VISIBLE} says that the devices are listed in volume mounts, and none are"
    )


@pytest.mark.parametrize("name", ["0", "rubbish", "cdi/example.com/gpu/0", "imex/-1"])
def test_mounts_that_are_not_accepted_are_not_read(name: str) -> None:
    assert "volume mounts is not accepted" in left_out(Inputs({}, listed(name)), Settings())


def test_a_variable_that_points_to_mounts_that_are_not_accepted_is_refused() -> None:
    assert "which are not accepted" in refusal(Inputs({VISIBLE: LIST}, listed("0")))


# Swarm resources.


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DOCKER_RESOURCE_GPU": f"{UUID}-2,{UUID}-3,{OTHER}-2"}, (UUID, OTHER)),
        ({"DOCKER_RESOURCE_GPU": f"{OTHER}-0", "MY_GPUS": "1, 0"}, (OTHER, "1", "0")),
        # No count: Swarm gives one number alone, and only in a variable of its own.
        ({"DOCKER_RESOURCE_GPU": "0,1"}, ("0", "1")),
        ({"MY_GPUS": "2"}, ("2",)),
        # They stand in the variable's place, so what it says does not count.
        ({"MY_GPUS": "all", VISIBLE: "void"}, ("all",)),
        ({"MY_GPUS": "nvidia.com/gpu=1", VISIBLE: "rubbish"}, ("1",)),
    ],
)
def test_swarm_resources(environment: dict[str, str], expected: tuple[str, ...]) -> None:
    found = request_of(Inputs(environment), SWARM)
    assert (found.source, found.devices) == ("swarm", expected)


@pytest.mark.parametrize("value", ["", "1,void"])
def test_a_swarm_resource_replaces_the_variable_also_where_it_is_empty(value: str) -> None:
    inputs = Inputs({"DOCKER_RESOURCE_GPU": value, VISIBLE: "all", "CUDA_VERSION": "12.4"})
    assert parse_request(inputs, SWARM) == (None, ())


def test_a_swarm_resource_that_is_not_there_replaces_nothing() -> None:
    assert request_of(Inputs({VISIBLE: "1"}), SWARM).source == "env"
    assert parse_request(Inputs({"DOCKER_RESOURCE_GPU": "1"}), Settings()) == (None, ())


@pytest.mark.parametrize("count", ["0", "2", " 2 ", "02", "12345678901234567890"])
@pytest.mark.parametrize("beside", [{}, {"MY_GPUS": UUID}, {VISIBLE: "2"}])
def test_a_number_from_swarm_is_a_count_and_no_index(count: str, beside: dict[str, str]) -> None:
    sentence = refusal(Inputs({"DOCKER_RESOURCE_GPU": count, **beside}), SWARM)
    assert sentence.startswith(f"DOCKER_RESOURCE_GPU is '{count.strip()}', a number of devices")
    assert "'oci-gpu-hook configure docker --swarm' does" in sentence


@pytest.mark.parametrize("words", [["\u0661"], ["x"], ["1", "2"], []])
def test_what_is_no_number_from_swarm_is_no_count(words: list[str]) -> None:
    sources._refuse_counts("DOCKER_RESOURCE_GPU,MY_GPUS", {"DOCKER_RESOURCE_GPU": ",".join(words), "MY_GPUS": "1"})


def test_a_bad_swarm_resource_is_named() -> None:
    environment = {"DOCKER_RESOURCE_GPU": UUID, "MY_GPUS": "x"}
    assert "'x' in DOCKER_RESOURCE_GPU,MY_GPUS" in refusal(Inputs(environment), SWARM)


# Annotations.


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"cdi.k8s.io/": "nvidia.com/gpu=all"}, ("all",)),
        ({"cdi.k8s.io/a": f"nvidia.com/gpu={UUID}, nvidia.com/gpu={MIG}"}, (UUID, MIG)),
        ({"cdi.k8s.io/a": "nvidia.com/gpu=0", "cdi.k8s.io/b": "nvidia.com/gpu=0:1"}, ("0", "0:1")),
        ({"cdi.k8s.io/a": "example.com/nic=0,nvidia.com/gpu=0"}, ("0",)),
        ({"cdi.k8s.io/a": "nvidia.com/gds=all"}, ("none",)),
    ],
)
def test_annotations(annotations: dict[str, str], expected: tuple[str, ...]) -> None:
    found = request_of(annotated({}, annotations))
    assert (found.source, found.devices) == ("annotations", expected)


@pytest.mark.parametrize(
    "annotations",
    [
        {"cdi.k8s.io/a": "example.com/gpu=0"},
        {"cdi.k8s.io/a": " , "},
        {"cdi.k8s.io": "nvidia.com/gpu=0"},
        {"CDI.k8s.io/a": "nvidia.com/gpu=0"},
        {"nvidia.com/gpu": "all"},
    ],
)
def test_other_annotations_ask_for_nothing(annotations: dict[str, str]) -> None:
    assert parse_request(annotated({}, annotations), Settings()) == (None, ())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nvidia.com/gpu=x", "unknown device 'x' in the annotations cdi.k8s.io/*"),
        ("nvidia.com/gpu", "unknown device 'nvidia.com/gpu'"),
        ("nvidia.com/tpu=1", "unknown CDI kind"),
        ("nvidia.com/gpu=0,nvidia.com/gpu", "are mixed with others"),
        ("nvidia.com/imex-channel=x", "'x' in the annotations cdi.k8s.io/* is not an IMEX channel"),
    ],
)
def test_bad_annotations_are_refused(value: str, words: str) -> None:
    assert words in refusal(annotated({}, {"cdi.k8s.io/a": value}))


def test_annotations_are_as_long_as_any_value() -> None:
    longest = "nvidia.com/gpu=" + "0" * (LONGEST_VALUE - 15)
    assert "unknown device" in refusal(annotated({}, {"cdi.k8s.io/a": longest}))
    with pytest.raises(RequestError, match="longer than 128 KiB"):
        annotated({}, {"cdi.k8s.io/a": longest, "cdi.k8s.io/b": "0"})


def test_where_the_engine_has_carried_out_a_spec_its_annotations_are_met() -> None:
    inputs = annotated({VISIBLE: "void"}, {"cdi.k8s.io/a": "nvidia.com/gpu=0"})
    assert parse_request(inputs, Settings()) == (None, ())


POD = {"cdi.k8s.io/pod": "nvidia.com/gpu=all"}
OWN = {"cdi.k8s.io/nvidia-device-plugin_x": "nvidia.com/gpu=1", "io.kubernetes.container.hash": "a"}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (crio.container(POD, {}), ()),
        (crio.container(POD, None), ()),
        (crio.container(POD, {"io.kubernetes.container.hash": "a"}), ()),
        (crio.container(POD, OWN), ("1",)),
        (crio.container({}, OWN), ("1",)),
        (crio.container({**OWN, "cdi.k8s.io/a": "nvidia.com/gpu=3"}, OWN), ("1",)),
        (crio.container(dict.fromkeys(OWN, "nvidia.com/gpu=3"), OWN), ("1",)),
        (crio.container({"io.kubernetes.cri-o.Annotations": json.dumps(POD)}, {}), ()),
        (crio.sandbox(POD), ()),
        (POD, ("all",)),
    ],
)
def test_of_a_pods_annotations_only_the_containers_own_ask(
    annotations: dict[str, str], expected: tuple[str, ...]
) -> None:
    """CRI-O hands hooks the pod's at each of its containers; who tells nothing apart means the container's."""
    inputs = annotated({}, annotations)
    found, notes = parse_request(inputs, Settings())
    assert (found.devices if found else (), notes) == (expected, ())
    # Also no mistake in the settings may stop one that does not ask itself.
    assert may_ask(inputs) == bool(expected)


@pytest.mark.parametrize("text", ["", "{", "[]", '"cdi.k8s.io/x"', "[" * 100_000], ids=range(5))
def test_where_it_cannot_be_told_whose_an_annotation_is_it_is_refused(text: str) -> None:
    broken = {"io.kubernetes.cri-o.Annotations": text}
    with pytest.raises(RequestError, match=r"cri-o\.Annotations is not a JSON object"):
        parse_request(annotated({}, {**POD, **broken}), Settings())
    if "cdi" not in text:
        assert parse_request(annotated({}, broken), Settings()) == (None, ())


PLUGINS = f"k8s.device-plugin.nvidia.com/gpu={UUID}"
SET = "(the administrator must set DEVICE_LIST_STRATEGY to envvar or volume-mounts in NVIDIA's device plugin)"
OPERATORS, PLAIN = ({f"{prefix}nvidia-device-plugin_x": PLUGINS} for prefix in ("nvidia.cdi.k8s.io/", "cdi.k8s.io/"))


@pytest.mark.parametrize("settings", [Settings(), Settings(accept_environment="privileged")])
@pytest.mark.parametrize("environment", [{}, {VISIBLE: "all"}, {VISIBLE: MIG}])
@pytest.mark.parametrize(
    "annotations",
    [
        crio.container({}, OPERATORS),
        crio.container(OPERATORS, {**OPERATORS, **PLAIN}),
        OPERATORS,
        PLAIN,
        {**PLAIN, "cdi.k8s.io/other": "example.com/nic=0,nvidia.com/gpu=0"},
        {**PLAIN, "cdi.k8s.io/a": f"{PLUGINS}," * 1000},
    ],
)
def test_the_device_plugins_own_kind_is_refused(
    annotations: dict[str, str], environment: dict[str, str], settings: Settings
) -> None:
    """Also where an image asks for all GPUs: the plugin has counted one."""
    inputs = annotated(environment, annotations)
    assert may_ask(inputs)
    said = refusal(inputs, settings)
    assert said.startswith(f"the device plugin names '{UUID}' by k8s.device-plugin.nvidia.com/gpu")
    assert said.endswith(SET)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        # An engine that has carried out the plugin's spec sets the variable.
        (annotated({VISIBLE: "void"}, PLAIN), ()),
        # It can be told to name devices in two ways.
        (annotated({VISIBLE: UUID}, crio.container({}, OPERATORS)), (UUID,)),
        (annotated({VISIBLE: "all"}, crio.container({}, OPERATORS))._replace(mounts=listed(UUID)), (UUID,)),
        # What a pod's author has written asks for nothing, nor does what is for another program.
        (annotated({}, crio.container(OPERATORS, {})), ()),
        (annotated({}, crio.sandbox(OPERATORS)), ()),
        (annotated({}, {"nvidia.cdi.k8s.io/container.a": "management.nvidia.com/gpu=all"}), ()),
    ],
)
def test_where_the_device_plugins_own_kind_is_no_request(inputs: Inputs, expected: tuple[str, ...]) -> None:
    found, notes = parse_request(inputs, Settings(accept_volume_mounts=True))
    assert (found.devices if found else (), notes) == (expected, ())


def test_10000_names_of_the_device_plugin_are_refused_in_one_sentence() -> None:
    for prefix in ("nvidia.cdi.k8s.io/", "cdi.k8s.io/"):
        named = {f"{prefix}{number}": PLUGINS for number in range(10_000)}
        with pytest.raises(RequestError, match="are longer than 128 KiB"):
            annotated({}, crio.container({}, named))


def test_the_device_plugins_own_kind_in_the_variable_or_the_mounts_is_refused() -> None:
    assert refusal(Inputs({VISIBLE: PLUGINS})).endswith(SET)
    folder = f"cdi/k8s.device-plugin.nvidia.com/gpu/{UUID}"
    assert refusal(Inputs({}, listed(folder)), Settings(accept_volume_mounts=True)).endswith(SET)


def test_a_list_of_10000_mounts_is_one_request_and_of_two_kinds_one_sentence() -> None:
    """What a plugin lists, the node may lack: that is `planning.selection`'s."""
    accepts = Settings(accept_volume_mounts=True)
    names = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(10_000)]
    found = request_of(Inputs({}, listed(*names)), accepts)
    assert (found.source, found.devices) == ("mounts", tuple(names))
    kinds = ("cdi/nvidia.com/gpu/", "cdi/k8s.device-plugin.nvidia.com/gpu/")
    mixed = [f"{kinds[number % 2]}{name}" for number, name in enumerate(names)]
    assert refusal(Inputs({}, listed(*mixed)), accepts).endswith(SET)
    in_annotations = crio.container({}, {"cdi.k8s.io/a": f"nvidia.com/gpu=0,{PLUGINS}"})
    assert refusal(annotated({}, in_annotations)).endswith(SET)


OLD = {"CUDA_VERSION": "9.0"}


def given(*devices: dict[str, object], environment: dict[str, str] = OLD, **more: object) -> Inputs:
    """A container that was given devices by ``linux.devices``."""
    env = [f"{name}={value}" for name, value in environment.items()]
    document = {"process": {"env": env}, "linux": {"devices": [*devices]}, **more}
    return inputs_of(Bundle("/b", document), {})


def nvidia(minor: int, name: str = "") -> dict[str, object]:
    return {"path": f"/dev/nvidia{name or minor}", "type": "c", "major": 195, "minor": minor}


CONTROL = (nvidia(255, "ctl"), {"path": "/dev/nvidia-uvm", "type": "c", "major": 511, "minor": 0})
CAP = {"path": "/dev/nvidia-caps/nvidia-cap21", "type": "c", "major": 508, "minor": 21}
BOUND: dict[str, Any] = {"mounts": [{"type": "bind", "source": "/dev/nvidia2", "destination": "/dev/nvidia2"}]}


@pytest.mark.parametrize(
    ("inputs", "source", "expected"),
    [
        (given(*CONTROL, nvidia(1)), "devices", ("/dev/nvidia1",)),
        (given(nvidia(3), nvidia(1), nvidia(3)), "devices", ("/dev/nvidia3", "/dev/nvidia1")),
        # Named again: --device /dev/nvidia3:/dev/nvidia0.
        (given(nvidia(3, "0")), "devices", ("/dev/nvidia3",)),
        (given(CAP, nvidia(0)), "devices", ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21")),
        (given(**BOUND), "devices", ("/dev/nvidia2",)),
        (given(*CONTROL), "env", ("all",)),
        (given({"path": "/dev/dri/card0"}), "env", ("all",)),
        (given(nvidia(1), environment={**OLD, VISIBLE: "2"}), "env", ("2",)),
    ],
    ids=range(8),
)
def test_devices_that_were_given_go_before_an_old_images_default(
    inputs: Inputs, source: str, expected: tuple[str, ...]
) -> None:
    found = request_of(inputs)
    assert (found.source, found.words()) == (source, expected)
    assert found.capabilities == (CAPABILITIES if VISIBLE not in inputs.environment else found.capabilities)


@pytest.mark.parametrize(
    "environment",
    [{}, {**OLD, VISIBLE: "void"}, {**OLD, VISIBLE: ""}, {**OLD, "NVIDIA_REQUIRE_CUDA": "cuda>=9"}],
    ids=range(4),
)
def test_devices_that_were_given_ask_for_nothing_themselves(environment: dict[str, str]) -> None:
    inputs = given(nvidia(1), environment=environment)
    assert parse_request(inputs, Settings()) == (None, ())
    assert inputs.given == () and not may_ask(inputs)


def test_of_a_container_that_asks_otherwise_no_device_is_read() -> None:
    """So no mistake in them stops one that does not ask."""
    assert inputs_of(Bundle("/b", {"linux": {"devices": "nonsense"}}), {}) == Inputs({})


@pytest.mark.parametrize("word", ["void", "VOID", "Void"])
def test_void_asks_for_nothing_in_any_case_of_letters(word: str) -> None:
    for value in (word, f"0,{word}"):
        for accepted in ("always", "privileged"):
            assert parse_request(Inputs({VISIBLE: value}), Settings(accept_environment=accepted)) == (None, ())
