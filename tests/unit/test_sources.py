# SPDX-License-Identifier: Apache-2.0
"""Where devices are named beside the environment: volume mounts, swarm resources, annotations; and which goes first.

The rows follow the project's reference to NVIDIA's stack, section 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, inputs_of, may_ask
from oci_gpu_hook.request.words import CAPABILITIES, LONGEST_VALUE
from tests import crio
from tests.unit.asking import HARDENED, MIG, MOUNTS, UUID, VISIBLE, annotated, left_out, listed, refusal, request_of

PLAIN_SETTINGS, SWARM = Settings(), Settings(swarm_resources=("DOCKER_RESOURCE_GPU", "MY_GPUS"))
ROWS = (Path(__file__).parents[1] / "data/sources.txt").read_text().strip().split("\n\n")[1:]
VOLUME = "mount /var/lib/docker/volumes/nvidia_driver_375.66/_data /usr/local/nvidia"
NODE = "node /dev/other 195 1"


def container(*lines: str) -> tuple[Inputs, Settings]:
    """What a container says in the lines of a row."""
    said: dict[str, list[str]] = {"setting": [], "env": [], "mount": [], "node": [], "annotation": []}
    for line in lines:
        kind, _, text = line.encode().decode("unicode_escape").partition(" ")
        said[kind].append(text)
    mounts, annotations = [[it.partition(" ") for it in said[kind]] for kind in ("mount", "annotation")]
    nodes = [[path, *map(int, numbers)] for path, *numbers in map(str.split, said["node"])]
    document: dict[str, Any] = {
        "process": {"env": said["env"]},
        "mounts": [{"source": source, "destination": path, "type": "bind"} for source, _, path in mounts],
        "linux": {"devices": [dict(zip(("path", "major", "minor"), node)) for node in nodes]},
    }
    inputs = inputs_of(Bundle("/b", document), {key: value for key, _, value in annotations})
    settings = settingsfile.parse_text("\n".join(said["setting"]), "x")
    return inputs, Settings(**settingsfile.fields(settings, None, Settings()._asdict()))


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_place_names_devices_or_none_or_is_refused(row: str) -> None:
    expected, *lines = [line for line in row.split("\n") if not line.startswith("#")]
    kind, _, words = expected.partition(" ")
    asked = container(*lines)
    if kind == "refused":
        assert words in refusal(*asked)
    elif kind == "left-out":
        assert words in left_out(*asked)
    elif kind == "nothing":
        assert parse_request(*asked) == (None, ())
    else:
        found = request_of(*asked)
        assert (found.source, found.words()) == (kind, tuple(words.split(",")))


@pytest.mark.parametrize("settings", [PLAIN_SETTINGS, HARDENED])
@pytest.mark.parametrize("value", ["void", "VOID", "Void", "0,void", "0,VOID", "0,Void"])
def test_void_asks_for_nothing(value: str, settings: Settings) -> None:
    assert parse_request(Inputs({VISIBLE: value}), settings) == (None, ())


def test_a_container_that_was_given_nodes_has_all_capabilities_unless_it_says_which() -> None:
    """As nvidia-docker 1's volume had all."""
    for said in (VOLUME, "env CUDA_VERSION=9.0"):
        assert request_of(*container(said, NODE)).capabilities == CAPABILITIES
    found = request_of(*container(VOLUME, NODE, "env NVIDIA_DRIVER_CAPABILITIES=utility"))
    assert found.capabilities == ("utility",)


def test_a_mount_can_name_imex_channels_and_features() -> None:
    names = ("imex/3", "cdi/nvidia.com/imex-channel/7", "cdi/nvidia.com/gdrcopy/all", "0")
    found = request_of(Inputs({}, listed(*names)), MOUNTS)
    assert (found.devices, found.imex_channels, found.features) == (("0",), ("3", "7"), ("gdrcopy",))


def test_of_a_container_that_asks_otherwise_no_device_is_read() -> None:
    """So no mistake in them stops one that does not ask."""
    assert inputs_of(Bundle("/b", {"linux": {"devices": "nonsense"}}), {}) == Inputs({})
    for said in ([NODE], [NODE, VOLUME.replace("/usr/local", "/opt")]):
        silent, _ = container(*said)
        assert silent.given == () and not may_ask(silent)


PLUGINS = f"k8s.device-plugin.nvidia.com/gpu={UUID}"
SET = "(the administrator must set DEVICE_LIST_STRATEGY to envvar or volume-mounts in NVIDIA's device plugin)"


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
    longest = annotated({}, {"cdi.k8s.io/a": "nvidia.com/gpu=" + "0" * (LONGEST_VALUE - 15)})
    assert "unknown device" in refusal(longest)
    for prefix in ("nvidia.cdi.k8s.io/", "cdi.k8s.io/"):
        with pytest.raises(RequestError, match="are longer than 128 KiB"):
            annotated({}, crio.container({}, {f"{prefix}{number}": PLUGINS for number in range(10_000)}))
    names = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(10_000)]
    assert request_of(Inputs({}, listed(*names)), MOUNTS).devices == tuple(names)
    kinds = ("cdi/nvidia.com/gpu/", "cdi/k8s.device-plugin.nvidia.com/gpu/")
    mixed = [f"{kinds[number % 2]}{name}" for number, name in enumerate(names)]
    assert refusal(Inputs({}, listed(*mixed)), MOUNTS).endswith(SET)
