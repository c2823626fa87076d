# SPDX-License-Identifier: Apache-2.0
"""What is asked for beside devices: IMEX channels, features, MIG itself; and what each setting refuses."""

from __future__ import annotations

import pytest

from oci_gpu_hook import request
from oci_gpu_hook.config import Config
from oci_gpu_hook.sources import Inputs
from tests.unit.asking import (
    HARDENED,
    LIST,
    MIG,
    MOUNTS,
    UUID,
    VISIBLE,
    asked,
    env,
    left_out,
    listed,
    refusal,
)

# IMEX channels, features, MIG management.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", ()),
        (" ,", ()),
        ("0", ("0",)),
        ("0,1048575", ("0", "1048575")),
        ("channel3, 3, 03", ("3",)),
        ("all", ("all",)),
        ("3,all", ("all",)),
    ],
)
def test_imex_channels(value: str, expected: tuple[str, ...]) -> None:
    assert asked(env(NVIDIA_IMEX_CHANNELS=value)).imex_channels == expected


@pytest.mark.parametrize("value", ["-1", "1048576", "9" * 100, "x", "channel", "channelchannel1", "channel-1", "ALL",
                                   "1.0", "0x1", "1;2", "1 2", "١", "\x00", "none", "void", "3,x"])  # fmt: skip
def test_what_is_no_imex_channel_is_refused(value: str) -> None:
    assert "in NVIDIA_IMEX_CHANNELS is no IMEX channel" in refusal(env(NVIDIA_IMEX_CHANNELS=value))


def test_imex_channels_alone_ask_for_no_gpu() -> None:
    assert request.parse(Inputs({"NVIDIA_IMEX_CHANNELS": "0"}), Config()) == (None, ())


def test_channels_of_a_list_and_of_the_variable_are_joined() -> None:
    inputs = Inputs({"NVIDIA_IMEX_CHANNELS": "3,7"}, listed("0", "imex/1", "imex/3"))
    assert asked(inputs, MOUNTS).imex_channels == ("1", "3", "7")


FEATURES = [
    ("gds", "NVIDIA_GDS"),
    ("mofed", "NVIDIA_MOFED"),
    ("gdrcopy", "NVIDIA_GDRCOPY"),
    ("nvswitch", "NVIDIA_NVSWITCH"),
]


@pytest.mark.parametrize(("feature", "variable"), FEATURES)
def test_each_feature_is_asked_for_by_one_word(feature: str, variable: str) -> None:
    assert asked(env(**{variable: "enabled"})).features == (feature,)
    assert asked(env(**{variable: ""})).features == ()
    assert asked(Inputs({VISIBLE: f"nvidia.com/{feature}=all"})).features == (feature,)


@pytest.mark.parametrize(("feature", "variable"), FEATURES)
@pytest.mark.parametrize(
    "value", ["Enabled", "ENABLED", "enabled ", "1", "true", "all", "disabled", "\x1b[2J", "é"]
)
def test_any_other_word_is_left_out_with_a_sentence(
    feature: str, variable: str, value: str
) -> None:
    found, (note,) = request.parse(env(**{variable: value}), Config())
    assert found is not None and found.features == ()
    assert note.startswith(f"{variable} is ") and "only 'enabled' does" in note
    assert note.isascii() and note.isprintable()


MANAGING = ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"]


@pytest.mark.parametrize("variable", MANAGING)
@pytest.mark.parametrize("devices", ["all", "none", "0", UUID, "0000:07:00.0"])
def test_mig_is_managed_by_privileged_containers(variable: str, devices: str) -> None:
    inputs = Inputs({VISIBLE: devices, variable: "all"}, privileged=True)
    found = asked(inputs)
    assert [found.mig_config, found.mig_monitor] == [variable == name for name in MANAGING]
    assert f"{variable} is for containers with CAP_SYS_ADMIN" in refusal(
        inputs._replace(privileged=False)
    )


@pytest.mark.parametrize("variable", MANAGING)
@pytest.mark.parametrize("privileged", [True, False])
def test_mig_management_left_empty_is_not_asked_for(variable: str, privileged: bool) -> None:
    for value in ("", "  "):
        found = asked(Inputs({VISIBLE: "0", variable: value}, privileged=privileged))
        assert not found.mig_config and not found.mig_monitor


@pytest.mark.parametrize("variable", MANAGING)
@pytest.mark.parametrize("value", ["0", "0:0", "none", "all,0", "void", "1", "\x00", "all\x00", MIG])  # fmt: skip
def test_mig_management_is_of_all_or_nothing(variable: str, value: str) -> None:
    inputs = Inputs({VISIBLE: "0", variable: value}, privileged=True)
    assert "only 'all' can be asked for" in refusal(inputs)


@pytest.mark.parametrize("variable", MANAGING)
@pytest.mark.parametrize("devices", ["0:1", MIG, f"MIG-{UUID}/1/0", f"0,{MIG}"])
def test_mig_is_not_managed_from_single_mig_devices(variable: str, devices: str) -> None:
    inputs = Inputs({VISIBLE: devices, variable: "all"}, privileged=True)
    assert "beside single MIG devices" in refusal(inputs)


# What the administrator refuses.

BY_WORDS = [
    (Inputs({VISIBLE: "0"}), VISIBLE),
    (Inputs({VISIBLE: "rubbish"}), VISIBLE),
    (Inputs({VISIBLE: "all", "NVIDIA_MIG_CONFIG_DEVICES": "all"}), VISIBLE),
    (Inputs({VISIBLE: LIST}), VISIBLE),
    (Inputs({"CUDA_VERSION": "12..4"}), VISIBLE),
    (Inputs({"DOCKER_RESOURCE_GPU": "0"}), "DOCKER_RESOURCE_GPU"),
    # An engine may hand a pod's own annotations on, as CRI-O does: its author writes them.
    (Inputs({}, annotations={"cdi.k8s.io/a": "nvidia.com/gpu=all"}), "the annotations cdi.k8s.io/*"),
    (Inputs({}, annotations={"cdi.k8s.io/a": "nvidia.com/x=0"}), "the annotations cdi.k8s.io/*"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "where"), BY_WORDS)
def test_words_of_an_unprivileged_container_are_left_out_unread(inputs: Inputs, where: str) -> None:
    config = HARDENED._replace(swarm_resources=("DOCKER_RESOURCE_GPU",))
    note = left_out(inputs, config)
    assert note.startswith(f"the request in {where} is not accepted from a container without CAP")
    assert "the administrator decides" in note


def test_what_asks_for_nothing_is_not_told_as_refused() -> None:
    for value in ("", "void", " ,"):
        assert request.parse(Inputs({VISIBLE: value}), HARDENED) == (None, ())


def test_words_of_a_privileged_container_are_accepted() -> None:
    inputs = Inputs({VISIBLE: "0", "NVIDIA_IMEX_CHANNELS": "3"}, privileged=True)
    assert asked(inputs, HARDENED).imex_channels == ("3",)
    annotated = Inputs({}, annotations={"cdi.k8s.io/a": "nvidia.com/gpu=1"}, privileged=True)
    assert asked(annotated, HARDENED).devices == ("1",)


def test_with_mounts_alone_accepted_the_environment_names_nothing() -> None:
    config = HARDENED._replace(accept_volume_mounts=True)
    inputs = Inputs({VISIBLE: "all", "NVIDIA_IMEX_CHANNELS": "3"}, listed("1", "imex/7"))
    found, (note,) = request.parse(inputs, config)
    assert found is not None
    assert (found.devices, found.imex_channels) == (("1",), ("7",))
    assert note.startswith("the request in NVIDIA_IMEX_CHANNELS is not accepted")


@pytest.mark.parametrize(
    "inputs",
    [
        env(NVIDIA_IMEX_CHANNELS="3"),
        env(NVIDIA_IMEX_CHANNELS="rubbish"),
        Inputs({VISIBLE: "nvidia.com/gpu=0,nvidia.com/imex-channel=3"}),
    ],
)
def test_imex_channels_are_left_out_where_the_administrator_says_so(inputs: Inputs) -> None:
    found, (note,) = request.parse(inputs, Config(ignore_imex_channels=True))
    assert found is not None and found.imex_channels == ()
    assert note.startswith("IMEX channels are left out")


@pytest.mark.parametrize(("feature", "variable"), FEATURES)
def test_a_list_of_devices_opens_no_other_door_to_the_environment(
    feature: str, variable: str
) -> None:
    config = HARDENED._replace(accept_volume_mounts=True)
    inputs = Inputs({variable: "enabled"}, listed("0"))
    found, (note,) = request.parse(inputs, config)
    assert found is not None and (found.devices, found.features) == (("0",), ())
    assert note.startswith(f"the request in {variable} is not accepted")
    assert asked(inputs._replace(privileged=True), config).features == (feature,)
    named = inputs._replace(mounts=listed("0", f"cdi/nvidia.com/{feature}/all"))
    assert asked(named, config).features == (feature,)


def test_capabilities_that_are_not_allowed() -> None:
    config = Config(allowed_capabilities=("utility", "video"))
    found, notes = request.parse(env(NVIDIA_DRIVER_CAPABILITIES="utility,compute,ngx"), config)
    assert found is not None and found.capabilities == ("utility",)
    assert [note.partition(":")[0] for note in notes] == ["capability compute, ngx is not allowed"]
    # "all" is all that there is to have, so nothing is left out of it.
    found, notes = request.parse(env(NVIDIA_DRIVER_CAPABILITIES="all"), config)
    assert found is not None and (found.capabilities, notes) == (("utility", "video"), ())
    assert "none of the capabilities compute, ngx is allowed" in refusal(
        env(NVIDIA_DRIVER_CAPABILITIES="compute,ngx,compute"), config
    )


def test_tegra_is_left_out_with_a_sentence() -> None:
    found, (note,) = request.parse(env(NVIDIA_REQUIRE_JETPACK="csv-mounts=all"), Config())
    assert found is not None and found.requirements == ()
    assert "Tegra" in note


# Devices that the engine has given by a spec of ours.


def test_the_nodes_that_an_engine_has_given_are_the_request() -> None:
    nodes = (
        "/dev/null",
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap30",
        "/dev/dri/card0",
        "/dev/driver",
    )
    inputs = Inputs({VISIBLE: "void", "NVIDIA_REQUIRE_CUDA": "cuda>=12"})
    found, notes = request.of_nodes(inputs, Config(), nodes, ("compute", "utility", "rubbish"))
    assert (found, notes) == (
        request.Request(
            "cdi",
            ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/dri/card0"),
            ("utility", "compute"),
            ("cuda>=12",),
        ),
        (),
    )
    # A DRM node may be any vendor's.
    for path in ("/dev/null", "/dev/dri/card0"):
        assert request.of_nodes(inputs, Config(), (path,), ("compute",)) == (None, ())


def test_ten_thousand_requirements_variables_are_one_request() -> None:
    environment = {f"NVIDIA_REQUIRE_{number}": "cuda>=1" for number in range(10_000)}
    assert len(asked(env(**environment)).requirements) == 10_000
