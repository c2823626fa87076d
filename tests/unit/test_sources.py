# SPDX-License-Identifier: Apache-2.0
"""Where devices are named: the environment, volume mounts, swarm resources, annotations; and which goes before which.

The rows follow the project's reference to NVIDIA's stack, section 1.
"""

from __future__ import annotations

import pytest

from oci_gpu_hook import request
from oci_gpu_hook.config import Config
from oci_gpu_hook.sources import Inputs
from tests.unit.asking import (
    LIST,
    MIG,
    MOUNTS,
    OTHER,
    SWARM,
    UUID,
    VISIBLE,
    asked,
    left_out,
    listed,
    refusal,
)

# MIG devices and CDI names in the environment.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0:1", ("0:1",)),
        ("00:01", ("0:1",)),
        (MIG, (MIG,)),
        (MIG.upper(), (MIG,)),
        (MIG.lower(), (MIG,)),
        (f"MIG-{UUID}/1/0", (f"MIG-{UUID}/1/0",)),
        (f"mig-{UUID.lower()}/01/00", (f"MIG-{UUID}/1/0",)),
        (f"0,0:1,{MIG},0:1", ("0", "0:1", MIG)),
        (f"{UUID}-2", (UUID,)),
        (f"{UUID}-2,{UUID}-3,{UUID}", (UUID,)),
        ("nvidia.com/gpu=0", ("0",)),
        ("runtime.nvidia.com/gpu=all", ("all",)),
        ("management.nvidia.com/gpu=0:1", ("0:1",)),
        (f"nvidia.com/gpu={UUID},nvidia.com/gpu=1", (UUID, "1")),
        (f"nvidia.com/gpu={MIG}", (MIG,)),
        ("nvidia.com/gpu=none", ("none",)),
    ],
)
def test_environment(value: str, expected: tuple[str, ...]) -> None:
    found = asked(Inputs({VISIBLE: value}))
    assert (found.source, found.devices) == ("env", expected)


@pytest.mark.parametrize(
    "value",
    [
        "0:",
        ":1",
        ":",
        "0:1:",
        "0:-1",
        "0:x",
        "0:1234567890",
        "1:٢",
        "MIG-",
        "MIG-1",
        MIG + "/1/0",
        f"MIG-{UUID}",
        f"MIG-{UUID}/1",
        f"MIG-{UUID}/1/0/0",
        f"MIG-{UUID}/1/",
        f"MIG-{UUID}/a/0",
        f"MIG-{UUID}//0",
        f"MIG-{UUID}/1/0\x00",
        f"MIG {UUID}",
        f"{UUID}-",
        f"{UUID}-x",
        f"{UUID}-1-2",
        f"{UUID}--2",
        f"{UUID}-1234567890",
        f"{MIG}-2",
        "0-1",
        "0;1",
        "0 1",
        "*",
        "\x00",
        "0\x00",
        "\x1b[2J",
        "\udcff",
        "GPU-" + "z" * 1000,
        "../0",
        "/dev/nvidia0",
        f"{LIST}/0",
        "nvidia0",
        "All!",
        "²",
        "1e3",
        "+1",
        "0:0:0:0.0",
    ],
)
def test_what_names_no_device_is_refused(value: str) -> None:
    assert "unknown device" in refusal(Inputs({VISIBLE: f"1, {value}"}))
    assert "unknown device" in refusal(Inputs({}, listed(value)), MOUNTS)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nvidia.com/gpu=", "unknown device ''"),
        ("nvidia.com/gpu=x", "unknown device 'x'"),
        ("nvidia.com/gpu=0=1", "unknown device '0=1'"),
        ("nvidia.com/gpu=0,0", "stand beside others"),
        ("nvidia.com/gpu=0,all", "stand beside others"),
        ("nvidia.com/tpu=0", "unknown CDI kind"),
        ("example.com/gpu=0", "unknown CDI kind"),
        ("NVIDIA.com/gpu=0", "unknown CDI kind"),
        ("=", "unknown CDI kind"),
        ("=0", "unknown CDI kind"),
        ("nvidia.com/=0", "unknown CDI kind"),
        ("nvidia.com/gpu/0=1", "unknown CDI kind"),
    ],
)
def test_cdi_names_that_cannot_be_served_are_refused(value: str, words: str) -> None:
    assert words in refusal(Inputs({VISIBLE: value}))


@pytest.mark.parametrize("value", ["void,nvidia.com/gpu=0", "nvidia.com/gpu=0,VOID", "void,rubbish"])  # fmt: skip
def test_void_anywhere_turns_all_off(value: str) -> None:
    assert request.parse(Inputs({VISIBLE: value}), Config()) == (None, ())


@pytest.mark.parametrize("value", ["all,0,5", "all,rubbish", f"ALL,{UUID},0:1,none", "0,all", "all,all"])  # fmt: skip
def test_all_stands_for_what_is_beside_it(value: str) -> None:
    assert asked(Inputs({VISIBLE: value})).devices == ("all",)


# Device lists as volume mounts.


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("0",), ("0",)),
        (("all",), ("all",)),
        (("none",), ("none",)),
        ((UUID, OTHER), (UUID, OTHER)),
        ((f"{UUID}-2", f"{UUID}-3"), (UUID,)),
        ((MIG, "0:1", f"MIG-{UUID}/1/0"), (MIG, "0:1", f"MIG-{UUID}/1/0")),
        (("0000:07:00.0",), ("00000000:07:00.0",)),
        (("cdi/nvidia.com/gpu/0", "cdi/nvidia.com/gpu=1"), ("0", "1")),
        (("1", f"cdi/runtime.nvidia.com/gpu/{UUID}"), ("1", UUID)),
        (("cdi/nvidia.com/gds/all",), ("none",)),
        (("imex/3",), ("none",)),
    ],
)
def test_mounts(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    found = asked(Inputs({}, listed(*names)), MOUNTS)
    assert (found.source, found.devices) == ("mounts", expected)


def test_a_mount_can_name_imex_channels_and_features() -> None:
    names = ("imex/3", "cdi/nvidia.com/imex-channel/7", "cdi/nvidia.com/gdrcopy/all", "0")
    found = asked(Inputs({}, listed(*names)), MOUNTS)
    assert found.devices == ("0",)
    assert found.imex_channels == ("3", "7")
    assert found.features == ("gdrcopy",)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "unknown device ''"),
        ("0/", "unknown device"),
        ("../../etc/shadow", "unknown device"),
        ("cdi/", "unknown device"),
        ("cdi/nvidia.com", "unknown device"),
        ("cdi/nvidia.com/gpu", "unknown device"),
        ("cdi/nvidia.com/gpu/", "unknown device"),
        ("cdi/nvidia.com/gpu/0/1", "unknown CDI kind"),
        ("cdi/example.com/gpu/0", "unknown CDI kind"),
        ("imex/", "no IMEX channel"),
        ("imex/-1", "no IMEX channel"),
        ("imex/1048576", f"in the mounts in {LIST} is no IMEX channel"),
        ("x" * 4096, "unknown device"),
        ("\n\x1b[2J", "unknown device"),
    ],
)
def test_a_mount_that_names_nothing_is_refused(name: str, words: str) -> None:
    assert words in refusal(Inputs({}, listed(name)), MOUNTS)


@pytest.mark.parametrize("source", ["", "/dev/zero", "/dev/null/", "/dev/../dev/null", "tmpfs", "/"])  # fmt: skip
def test_only_mounts_of_dev_null_name_a_device(source: str) -> None:
    assert "is not of /dev/null" in left_out(Inputs({}, ((source, f"{LIST}/0"),)), MOUNTS)


@pytest.mark.parametrize(
    "destination", [LIST, f"{LIST}x/0", "/var/run/nvidia-container-device/0", "0", "", "//"]
)
def test_mounts_elsewhere_name_nothing(destination: str) -> None:
    assert request.parse(Inputs({}, (("/dev/null", destination),)), MOUNTS) == (None, ())


def test_accepted_mounts_go_before_annotations_and_those_before_the_environment() -> None:
    everywhere = Inputs({VISIBLE: "2"}, listed("0"), {"cdi.k8s.io/x": "nvidia.com/gpu=1"})
    assert asked(everywhere, MOUNTS).devices == ("0",)
    assert asked(everywhere).devices == ("1",)
    assert asked(everywhere._replace(annotations={})).devices == ("2",)


@pytest.mark.parametrize("value", ["void", "", "all", LIST])
def test_accepted_mounts_stand_whatever_the_variable_says(value: str) -> None:
    assert asked(Inputs({VISIBLE: value}, listed("1")), MOUNTS).devices == ("1",)


def test_a_variable_that_points_to_a_list_that_is_not_there_asks_for_nothing() -> None:
    assert left_out(Inputs({VISIBLE: LIST}), MOUNTS) == (
        f"{VISIBLE} says that the devices are listed in volume mounts, and none are"
    )


@pytest.mark.parametrize(
    "name", ["0", "rubbish", "cdi/example.com/gpu/0", "cdi/nvidia.com/gpu", "imex/-1", ""]
)
def test_mounts_that_are_not_accepted_are_not_read(name: str) -> None:
    assert "volume mounts is not accepted" in left_out(Inputs({}, listed(name)), Config())


def test_a_variable_that_points_to_mounts_that_are_not_accepted_is_refused() -> None:
    assert "which are not accepted" in refusal(Inputs({VISIBLE: LIST}, listed("0")))


# Swarm resources.


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DOCKER_RESOURCE_GPU": "1"}, ("1",)),
        ({"DOCKER_RESOURCE_GPU": f"{UUID}-2"}, (UUID,)),
        ({"DOCKER_RESOURCE_GPU": f"{UUID}-2,{UUID}-3,{OTHER}-2"}, (UUID, OTHER)),
        ({"DOCKER_RESOURCE_GPU": "1", "MY_GPUS": "0, 1"}, ("1", "0")),
        ({"MY_GPUS": "all"}, ("all",)),
        ({"MY_GPUS": "1", VISIBLE: "all"}, ("1",)),
        # They stand in the variable's place, so what it says does not count.
        ({"MY_GPUS": "1", VISIBLE: "void"}, ("1",)),
        ({"MY_GPUS": "1", VISIBLE: "rubbish"}, ("1",)),
        ({"MY_GPUS": "nvidia.com/gpu=1"}, ("1",)),
    ],
)
def test_swarm_resources(environment: dict[str, str], expected: tuple[str, ...]) -> None:
    found = asked(Inputs(environment), SWARM)
    assert (found.source, found.devices) == ("swarm", expected)


@pytest.mark.parametrize("value", ["", " ,", "void", "1,void"])
def test_a_swarm_resource_replaces_the_variable_also_where_it_is_empty(value: str) -> None:
    inputs = Inputs({"DOCKER_RESOURCE_GPU": value, VISIBLE: "all", "CUDA_VERSION": "12.4"})
    assert request.parse(inputs, SWARM) == (None, ())


def test_a_swarm_resource_that_is_not_there_replaces_nothing() -> None:
    assert asked(Inputs({VISIBLE: "1"}), SWARM).source == "env"
    assert request.parse(Inputs({"DOCKER_RESOURCE_GPU": "1"}), Config()) == (None, ())


def test_a_bad_swarm_resource_is_named() -> None:
    environment = {"DOCKER_RESOURCE_GPU": "1", "MY_GPUS": "x"}
    assert "'x' in DOCKER_RESOURCE_GPU,MY_GPUS" in refusal(Inputs(environment), SWARM)


# Annotations.


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"cdi.k8s.io/a": "nvidia.com/gpu=0"}, ("0",)),
        ({"cdi.k8s.io/": "nvidia.com/gpu=all"}, ("all",)),
        ({"cdi.k8s.io/a": f"nvidia.com/gpu={UUID}, nvidia.com/gpu={MIG}"}, (UUID, MIG)),
        ({"cdi.k8s.io/a": "nvidia.com/gpu=0", "cdi.k8s.io/b": "nvidia.com/gpu=0:1"}, ("0", "0:1")),
        ({"cdi.k8s.io/a": "example.com/nic=0,nvidia.com/gpu=0"}, ("0",)),
        ({"cdi.k8s.io/a": "nvidia.com/gds=all"}, ("none",)),
    ],
)
def test_annotations(annotations: dict[str, str], expected: tuple[str, ...]) -> None:
    found = asked(Inputs({}, annotations=annotations))
    assert (found.source, found.devices) == ("annotations", expected)


@pytest.mark.parametrize(
    "annotations",
    [
        {"cdi.k8s.io/a": "example.com/gpu=0"},
        {"cdi.k8s.io/a": ""},
        {"cdi.k8s.io/a": " , "},
        {"cdi.k8s.io/a": "\x00"},
        {"cdi.k8s.io": "nvidia.com/gpu=0"},
        {"CDI.k8s.io/a": "nvidia.com/gpu=0"},
        {"nvidia.com/gpu": "all"},
    ],
)
def test_other_annotations_ask_for_nothing(annotations: dict[str, str]) -> None:
    assert request.parse(Inputs({}, annotations=annotations), Config()) == (None, ())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nvidia.com/gpu=x", "unknown device 'x' in the annotations cdi.k8s.io/*"),
        ("nvidia.com/gpu", "unknown device 'nvidia.com/gpu'"),
        ("nvidia.com", "unknown device 'nvidia.com'"),
        ("nvidia.com/tpu=1", "unknown CDI kind"),
        ("nvidia.com/gpu=0,nvidia.com/gpu", "stand beside others"),
        ("nvidia.com/imex-channel=x", "'x' in the annotations cdi.k8s.io/* is no IMEX channel"),
    ],
)
def test_bad_annotations_are_refused(value: str, words: str) -> None:
    assert words in refusal(Inputs({}, annotations={"cdi.k8s.io/a": value}))


def test_where_the_engine_has_carried_out_a_spec_its_annotations_are_met() -> None:
    inputs = Inputs({VISIBLE: "void"}, annotations={"cdi.k8s.io/a": "nvidia.com/gpu=0"})
    assert request.parse(inputs, Config()) == (None, ())
