# SPDX-License-Identifier: Apache-2.0
"""Where devices are named beside the environment: volume mounts, swarm resources, annotations; and which goes first.

The rows follow the project's reference to NVIDIA's stack, section 1.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, inputs_of, may_ask
from oci_gpu_hook.request.words import CAPABILITIES, LONGEST_VALUE
from tests import crio
from tests.unit.asking import (
    HARDENED,
    LIST,
    MIG,
    MOUNTS,
    UUID,
    VISIBLE,
    annotated,
    left_out,
    listed,
    refusal,
    request_of,
)

PLAIN_SETTINGS, SWARM = Settings(), Settings(swarm_resources=("DOCKER_RESOURCE_GPU", "MY_GPUS"))
OTHER = "GPU-99999999-2222-3333-4444-5555555555aa"
# nvidia-docker 1's volume, and nodes.
VOLUME = "/var/lib/docker/volumes/nvidia_driver_375.66/_data"
NODES = [
    {"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255},
    {"path": "/dev/nvidia-uvm", "type": "c", "major": 511, "minor": 0},
    {"path": "/dev/other", "type": "c", "major": 195, "minor": 3},
]
OLD = {"CUDA_VERSION": "9.0"}


def of_config(environment: dict[str, str], **document: Any) -> Inputs:
    env = [f"{name}={value}" for name, value in environment.items()]
    return inputs_of(Bundle("/b", {"process": {"env": env}, **document}), {})


def old(source: str = VOLUME, target: str = "/usr/local/nvidia", nodes: object = NODES, **env: str) -> Inputs:
    mounts = [{"source": source, "destination": target, "type": "bind"}]
    return of_config(env, mounts=mounts, linux={"devices": nodes})


def given(*devices: dict[str, object], environment: dict[str, str] = OLD, **more: object) -> Inputs:
    """A container that was given devices by ``linux.devices``."""
    return of_config(environment, linux={"devices": [*devices]}, **more)


def nvidia(minor: int, name: str = "") -> dict[str, object]:
    return {"path": f"/dev/nvidia{name or minor}", "type": "c", "major": 195, "minor": minor}


def by_cdi(value: str) -> Inputs:
    return annotated({}, {"cdi.k8s.io/a": value})


CONTROL = (nvidia(255, "ctl"), {"path": "/dev/nvidia-uvm", "type": "c", "major": 511, "minor": 0})
CAP = {"path": "/dev/nvidia-caps/nvidia-cap21", "type": "c", "major": 508, "minor": 21}
BOUND: dict[str, Any] = {"mounts": [{"type": "bind", "source": "/dev/nvidia2", "destination": "/dev/nvidia2"}]}
EVERYWHERE = Inputs({VISIBLE: "2"}, listed("0"), ("nvidia.com/gpu=1",))
IN_MOUNTS = (("/data", "/data"), *listed("0"), ("/tmp", "/tmp"), *listed("1"))

# The inputs of a container, the settings, and the place and the devices of its request.
ASKS: list[tuple[Inputs, Settings, str, tuple[str, ...]]] = [
    # The words of nvidia-docker 1 ask for the GPUs whose nodes are given, by their numbers.
    *[
        (inputs, PLAIN_SETTINGS, "devices", ("/dev/nvidia3",))
        for inputs in (old(), old(target="/usr/local/nvidia/"), old("/x/nvidia_driver_/y"))
    ],
    (old(NVIDIA_VISIBLE_DEVICES="1"), PLAIN_SETTINGS, "env", ("1",)),
    # So do an old image's, whose devices were named again (--device /dev/nvidia3:/dev/nvidia0), or bound.
    (given(*CONTROL, nvidia(1)), PLAIN_SETTINGS, "devices", ("/dev/nvidia1",)),
    (given(nvidia(3), nvidia(1), nvidia(3)), PLAIN_SETTINGS, "devices", ("/dev/nvidia3", "/dev/nvidia1")),
    (given(nvidia(3, "0")), PLAIN_SETTINGS, "devices", ("/dev/nvidia3",)),
    (given(CAP, nvidia(0)), PLAIN_SETTINGS, "devices", ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21")),
    (given(**BOUND), PLAIN_SETTINGS, "devices", ("/dev/nvidia2",)),
    (given(*CONTROL), PLAIN_SETTINGS, "env", ("all",)),
    (given({"path": "/dev/dri/card0"}), PLAIN_SETTINGS, "env", ("all",)),
    # Device lists as volume mounts, among others.
    *[
        (Inputs({}, listed(*names)), MOUNTS, "mounts", expected)
        for names, expected in (
            (("0", "all"), ("all",)),
            ((UUID, OTHER, f"{UUID}-2"), (UUID, OTHER)),
            (("cdi/nvidia.com/gpu/0", "cdi/nvidia.com/gpu=1"), ("0", "1")),
            (("1", f"cdi/runtime.nvidia.com/gpu/{UUID}"), ("1", UUID)),
            (("cdi/nvidia.com/gds/all",), ("none",)),
            (("imex/3",), ("none",)),
        )
    ],
    (Inputs({}, IN_MOUNTS), MOUNTS, "mounts", ("0", "1")),
    # They stand whatever the variable says, and go before annotations, and those before the environment.
    *[(Inputs({VISIBLE: value}, listed("1")), MOUNTS, "mounts", ("1",)) for value in ("void", "", LIST)],
    (EVERYWHERE, MOUNTS, "mounts", ("0",)),
    (EVERYWHERE, PLAIN_SETTINGS, "annotations", ("1",)),
    (EVERYWHERE._replace(cdi=()), PLAIN_SETTINGS, "env", ("2",)),
    # Swarm gives one number alone as a count, and only in a variable of its own.
    *[
        (Inputs(environment), SWARM, "swarm", expected)
        for environment, expected in (
            ({"DOCKER_RESOURCE_GPU": f"{UUID}-2,{UUID}-3,{OTHER}-2"}, (UUID, OTHER)),
            ({"DOCKER_RESOURCE_GPU": f"{OTHER}-0", "MY_GPUS": "1, 0"}, (OTHER, "1", "0")),
            ({"DOCKER_RESOURCE_GPU": "0,1"}, ("0", "1")),
            ({"MY_GPUS": "2"}, ("2",)),
            # They stand in the variable's place, so what it says does not count.
            ({"MY_GPUS": "all", VISIBLE: "void"}, ("all",)),
            ({"MY_GPUS": "nvidia.com/gpu=1", VISIBLE: "rubbish"}, ("1",)),
        )
    ],
    (Inputs({VISIBLE: "1"}), SWARM, "env", ("1",)),
    # As Isaac ROS 3.2 asks on a Jetson.
    (Inputs({VISIBLE: "nvidia.com/gpu=all,nvidia.com/pva=all"}), PLAIN_SETTINGS, "env", ("all",)),
    *[
        (annotated({}, annotations), PLAIN_SETTINGS, "annotations", expected)
        for annotations, expected in (
            ({"cdi.k8s.io/": "nvidia.com/gpu=all"}, ("all",)),
            ({"cdi.k8s.io/a": f"nvidia.com/gpu={UUID}, nvidia.com/gpu={MIG}"}, (UUID, MIG)),
            ({"cdi.k8s.io/a": "nvidia.com/gpu=0", "cdi.k8s.io/b": "nvidia.com/gpu=0:1"}, ("0", "0:1")),
            ({"cdi.k8s.io/a": "example.com/nic=0,nvidia.com/gpu=0"}, ("0",)),
            ({"cdi.k8s.io/a": "nvidia.com/gds=all"}, ("none",)),
        )
    ],
]


@pytest.mark.parametrize(("inputs", "settings", "source", "expected"), ASKS, ids=range(len(ASKS)))
def test_a_place_that_names_devices(inputs: Inputs, settings: Settings, source: str, expected: tuple[str, ...]) -> None:
    found = request_of(inputs, settings)
    assert (found.source, found.words()) == (source, expected)


def test_a_container_that_was_given_nodes_has_all_capabilities_unless_it_says_which() -> None:
    """As nvidia-docker 1's volume had all."""
    assert request_of(old()).capabilities == request_of(given(nvidia(1))).capabilities == CAPABILITIES
    assert request_of(old(NVIDIA_DRIVER_CAPABILITIES="utility")).capabilities == ("utility",)


def test_a_mount_can_name_imex_channels_and_features() -> None:
    names = ("imex/3", "cdi/nvidia.com/imex-channel/7", "cdi/nvidia.com/gdrcopy/all", "0")
    found = request_of(Inputs({}, listed(*names)), MOUNTS)
    assert (found.devices, found.imex_channels, found.features) == (("0",), ("3", "7"), ("gdrcopy",))


# The same, of a container that asks for nothing.
SILENT: list[tuple[Inputs, Settings]] = [
    (old(NVIDIA_VISIBLE_DEVICES="void"), PLAIN_SETTINGS),
    (old(NVIDIA_VISIBLE_DEVICES=""), PLAIN_SETTINGS),
    (old(nodes=NODES[:2]), PLAIN_SETTINGS),
    (old("/srv/nvidia"), PLAIN_SETTINGS),
    (old(target="/usr/local/nvidia/lib64"), PLAIN_SETTINGS),
    *[
        (given(nvidia(1), environment=env), PLAIN_SETTINGS)
        for env in ({}, {**OLD, VISIBLE: "void"}, {**OLD, VISIBLE: ""}, {**OLD, "NVIDIA_REQUIRE_CUDA": "cuda>=9"})
    ],
    *[
        (Inputs({}, (("/dev/null", destination),)), MOUNTS)
        for destination in (LIST, f"{LIST}x/0", "/var/run/nvidia-container-device/0")
    ],
    *[
        (Inputs({"DOCKER_RESOURCE_GPU": value, VISIBLE: "all", "CUDA_VERSION": "12.4"}), SWARM)
        for value in ("", "1,void")
    ],
    (Inputs({"DOCKER_RESOURCE_GPU": "1"}), PLAIN_SETTINGS),
    *[
        (annotated({}, annotations), PLAIN_SETTINGS)
        for annotations in (
            {"cdi.k8s.io/a": "example.com/gpu=0"},
            {"cdi.k8s.io/a": " , "},
            {"cdi.k8s.io": "nvidia.com/gpu=0"},
            {"nvidia.com/gpu": "all"},
        )
    ],
    # The engine has carried out a spec.
    (annotated({VISIBLE: "void"}, {"cdi.k8s.io/a": "nvidia.com/gpu=0"}), PLAIN_SETTINGS),
    *[
        (Inputs({VISIBLE: value}), settings)
        for word in ("void", "VOID", "Void")
        for value in (word, f"0,{word}")
        for settings in (PLAIN_SETTINGS, HARDENED)
    ],
]


@pytest.mark.parametrize(("inputs", "settings"), SILENT, ids=range(len(SILENT)))
def test_a_place_that_names_none(inputs: Inputs, settings: Settings) -> None:
    assert parse_request(inputs, settings) == (None, ())


def test_of_a_container_that_asks_otherwise_no_device_is_read() -> None:
    """So no mistake in them stops one that does not ask."""
    assert inputs_of(Bundle("/b", {"linux": {"devices": "nonsense"}}), {}) == Inputs({})
    for silent in (given(nvidia(1), environment={}), old(target="/opt/nvidia")):
        assert silent.given == () and not may_ask(silent)


PLUGINS = f"k8s.device-plugin.nvidia.com/gpu={UUID}"
SET = "(the administrator must set DEVICE_LIST_STRATEGY to envvar or volume-mounts in NVIDIA's device plugin)"

REFUSED: list[tuple[Inputs, Settings, str]] = [
    *[
        (Inputs({}, listed(name)), MOUNTS, words)
        for name, words in (
            ("", "unknown device ''"),
            ("../../etc/shadow", "unknown device"),
            ("cdi/nvidia.com", "unknown device"),
            ("cdi/all", "unknown device"),
            ("cdi/nvidia.com/gpu/", "unknown device"),
            ("cdi/nvidia.com/gpu/0/1", "unknown CDI kind"),
            ("imex/", "not an IMEX channel"),
            ("imex/1048576", f"in the mounts in {LIST} is not an IMEX channel"),
            ("\n\x1b[2J", "unknown device"),
            (f"cdi/k8s.device-plugin.nvidia.com/gpu/{UUID}", SET),
        )
    ],
    (Inputs({VISIBLE: LIST}, listed("0")), PLAIN_SETTINGS, "which are not accepted"),
    (Inputs({"DOCKER_RESOURCE_GPU": UUID, "MY_GPUS": "x"}), SWARM, "'x' in DOCKER_RESOURCE_GPU,MY_GPUS"),
    *[
        (by_cdi(value), PLAIN_SETTINGS, words)
        for value, words in (
            ("nvidia.com/gpu=x", "unknown device 'x' in the annotations cdi.k8s.io/*"),
            ("nvidia.com/gpu", "unknown device 'nvidia.com/gpu'"),
            ("nvidia.com/tpu=1", "unknown CDI kind"),
            ("nvidia.com/gpu=0,nvidia.com/gpu", "are mixed with others"),
            ("nvidia.com/pva=all", "unknown CDI kind in 'nvidia.com/pva=all'"),
            ("nvidia.com/imex-channel=x", "'x' in the annotations cdi.k8s.io/* is not an IMEX channel"),
            # As long as any value may be.
            ("nvidia.com/gpu=" + "0" * (LONGEST_VALUE - 15), "unknown device"),
        )
    ],
    (Inputs({VISIBLE: PLUGINS}), PLAIN_SETTINGS, SET),
]


@pytest.mark.parametrize(("inputs", "settings", "words"), REFUSED, ids=range(len(REFUSED)))
def test_a_place_that_names_what_is_no_device_is_refused(inputs: Inputs, settings: Settings, words: str) -> None:
    assert words in refusal(inputs, settings)


@pytest.mark.parametrize(
    ("inputs", "settings", "words"),
    [
        *[
            (Inputs({}, ((source, f"{LIST}/0"),)), MOUNTS, "is not of /dev/null")
            for source in ("", "/dev/null/", "/dev/../dev/null")
        ],
        (Inputs({VISIBLE: LIST}), MOUNTS, f"{VISIBLE} says that the devices are listed in volume mounts, and none are"),
        # What is not accepted is not read.
        *[
            (Inputs({}, listed(name)), PLAIN_SETTINGS, "volume mounts is not accepted")
            for name in ("0", "rubbish", "cdi/example.com/gpu/0", "imex/-1")
        ],
    ],
)
def test_a_list_that_is_left_out_is_told(inputs: Inputs, settings: Settings, words: str) -> None:
    assert words in left_out(inputs, settings)


@pytest.mark.parametrize("count", ["0", "2", " 2 ", "02", "12345678901234567890"])
@pytest.mark.parametrize("beside", [{}, {"MY_GPUS": UUID}, {VISIBLE: "2"}])
def test_a_number_from_swarm_is_a_count_and_no_index(count: str, beside: dict[str, str]) -> None:
    sentence = refusal(Inputs({"DOCKER_RESOURCE_GPU": count, **beside}), SWARM)
    assert sentence.startswith(f"DOCKER_RESOURCE_GPU is '{count.strip()}', a number of devices")
    assert "'oci-gpu-hook configure docker --swarm' does" in sentence


POD = {"cdi.k8s.io/pod": "nvidia.com/gpu=all"}
OWN = {"cdi.k8s.io/nvidia-device-plugin_x": "nvidia.com/gpu=1", "io.kubernetes.container.hash": "a"}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (crio.container(POD, {}), ()),
        (crio.container(POD, {"io.kubernetes.container.hash": "a"}), ()),
        (crio.container(POD, OWN), ("1",)),
        (crio.container({**POD, "io.kubernetes.cri.container-type": "sandbox"}, OWN), ("1",)),
        (crio.container({**OWN, "cdi.k8s.io/a": "nvidia.com/gpu=3"}, OWN), ("1",)),
        (crio.container(dict.fromkeys(OWN, "nvidia.com/gpu=3"), OWN), ("1",)),
        (crio.container({"io.kubernetes.cri-o.Annotations": json.dumps(POD)}, {}), ()),
        (crio.sandbox(POD), ()),
        ({**POD, "io.kubernetes.cri.container-type": "sandbox"}, ()),
        ({**POD, "io.kubernetes.cri.container-type": "container"}, ("all",)),
        (POD, ("all",)),
    ],
)
def test_of_a_pods_annotations_the_containers_own_ask(annotations: dict[str, str], expected: tuple[str, ...]) -> None:
    """CRI-O hands hooks the pod's at each of its containers; who tells nothing apart means the container's."""
    inputs = annotated({}, annotations)
    found, notes = parse_request(inputs, PLAIN_SETTINGS)
    assert (found.devices if found else (), notes) == (expected, ())
    # Also no mistake in the settings may stop one that does not ask itself.
    assert may_ask(inputs) == bool(expected)


@pytest.mark.parametrize("text", ["", "{", "[]", '"cdi.k8s.io/x"', "[" * 100_000], ids=range(5))
def test_where_it_cannot_be_told_whose_an_annotation_is_it_is_refused(text: str) -> None:
    broken = {"io.kubernetes.cri-o.Annotations": text}
    with pytest.raises(RequestError, match=r"cri-o\.Annotations is not a JSON object"):
        annotated({}, {**POD, **broken})
    if "cdi" not in text:
        assert parse_request(annotated({}, broken), PLAIN_SETTINGS) == (None, ())


OPERATORS, PLAIN = ({f"{prefix}nvidia-device-plugin_x": PLUGINS} for prefix in ("nvidia.cdi.k8s.io/", "cdi.k8s.io/"))


@pytest.mark.parametrize("settings", [PLAIN_SETTINGS, HARDENED])
@pytest.mark.parametrize("environment", [{}, {VISIBLE: "all"}, {VISIBLE: MIG}])
@pytest.mark.parametrize(
    "annotations",
    [
        crio.container({}, OPERATORS),
        crio.container(OPERATORS, {**OPERATORS, **PLAIN}),
        crio.container({}, {"cdi.k8s.io/a": f"{PLUGINS},nvidia.com/gpu=0"}),
        OPERATORS,
        PLAIN,
        {**PLAIN, "cdi.k8s.io/other": "example.com/nic=0,nvidia.com/gpu=0"},
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
    found, notes = parse_request(inputs, MOUNTS)
    assert (found.devices if found else (), notes) == (expected, ())


def test_of_10000_names_there_is_one_request_or_one_sentence() -> None:
    """What a plugin lists, the node may lack: that is `planning.selection`'s."""
    for prefix in ("nvidia.cdi.k8s.io/", "cdi.k8s.io/"):
        with pytest.raises(RequestError, match="are longer than 128 KiB"):
            annotated({}, crio.container({}, {f"{prefix}{number}": PLUGINS for number in range(10_000)}))
    names = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(10_000)]
    assert request_of(Inputs({}, listed(*names)), MOUNTS).devices == tuple(names)
    kinds = ("cdi/nvidia.com/gpu/", "cdi/k8s.device-plugin.nvidia.com/gpu/")
    mixed = [f"{kinds[number % 2]}{name}" for number, name in enumerate(names)]
    assert refusal(Inputs({}, listed(*mixed)), MOUNTS).endswith(SET)
