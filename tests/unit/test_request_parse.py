# SPDX-License-Identifier: Apache-2.0
"""What a container asks for beside GPUs, IMEX channels, features, MIG itself and vendors' devices; what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.request import cdirequest, sources, vendorrequest
from oci_gpu_hook.request.cdirequest import of_nodes, of_vendor
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.selectors import KnownVendor, Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import NOTHING, Inputs, Names, accepted
from tests.unit.asking import HARDENED, LIST, MIG, MOUNTS, UUID, VISIBLE, env, left_out, listed, refusal, request_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [(" ,", ()), ("0,1048575", ("0", "1048575")), ("channel3, 3, 03", ("3",)), ("3,all", ("all",))],
)
def test_imex_channels(value: str, expected: tuple[str, ...]) -> None:
    assert request_of(env(NVIDIA_IMEX_CHANNELS=value)).imex_channels == expected


@pytest.mark.parametrize("value", ["-1", "1048576", "9" * 100, "channel", "channelchannel1", "channel-1", "ALL", "1 2",
                                   "١", "\x00", "none", "3,x"])  # fmt: skip
def test_what_is_no_imex_channel_is_refused(value: str) -> None:
    assert "in NVIDIA_IMEX_CHANNELS is not an IMEX channel" in refusal(env(NVIDIA_IMEX_CHANNELS=value))


def test_imex_channels_alone_ask_for_no_gpu() -> None:
    assert parse_request(Inputs({"NVIDIA_IMEX_CHANNELS": "0"}), Settings()) == (None, ())


def test_channels_of_a_list_and_of_the_variable_are_joined() -> None:
    inputs = Inputs({"NVIDIA_IMEX_CHANNELS": "3,7"}, listed("0", "imex/1", "imex/3"))
    assert request_of(inputs, MOUNTS).imex_channels == ("1", "3", "7")


by_feature = pytest.mark.parametrize(
    ("feature", "variable"),
    [("gds", "NVIDIA_GDS"), ("mofed", "NVIDIA_MOFED"), ("gdrcopy", "NVIDIA_GDRCOPY"), ("nvswitch", "NVIDIA_NVSWITCH")],
)


@by_feature
def test_each_feature_is_requested_by_one_word(feature: str, variable: str) -> None:
    assert request_of(env(**{variable: "enabled"})).features == (feature,)
    assert parse_request(env(**{variable: ""}), Settings())[1] == ()
    assert request_of(Inputs({VISIBLE: f"nvidia.com/{feature}=all"})).features == (feature,)


@by_feature
@pytest.mark.parametrize("value", ["Enabled", "enabled ", "1", "all", "\x1b[2J", "é"])
def test_any_other_word_is_left_out_with_a_sentence(feature: str, variable: str, value: str) -> None:
    found, (note,) = parse_request(env(**{variable: value}), Settings())
    assert found is not None and found.features == ()
    assert note.startswith(f"{variable} is ") and "only 'enabled' does" in note
    assert note.isascii() and note.isprintable()


MANAGING = ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"]


def test_mig_is_watched_by_those_whom_the_administrator_lets_watch() -> None:
    allowing = Settings(mig_monitor="always")
    configure, watch = [Inputs({VISIBLE: "all", variable: "all"}) for variable in MANAGING]
    found, notes = parse_request(watch, allowing)
    assert found is not None and (found.mig_monitor, found.mig_config, notes) == (True, False, ())
    assert "mig-monitor" in refusal(watch)
    for settings in (allowing, Settings()):
        with pytest.raises(RequestError, match="CAP_SYS_ADMIN") as caught:
            parse_request(configure, settings)
        assert "mig-monitor" not in str(caught.value.hint)


@pytest.mark.parametrize("variable", MANAGING)
@pytest.mark.parametrize(
    ("devices", "value", "words"),
    [("0", value, "only 'all' can be asked for") for value in ("0:0", "none", "all,0", "all\x00")]
    + [(devices, "all", "beside single MIG devices") for devices in ("0:1", f"MIG-{UUID}/1/0", f"0,{MIG}")],
)
def test_mig_management_is_of_all_or_nothing(variable: str, devices: str, value: str, words: str) -> None:
    inputs = Inputs({VISIBLE: devices, variable: value}, privileged=True)
    assert words in refusal(inputs)
    left_empty = request_of(Inputs({VISIBLE: devices, variable: "  "}))
    assert not left_empty.mig_config and not left_empty.mig_monitor


REFUSING: dict[str, Any] = {"unaccepted_requests": "refuse"}
LISTS_ALONE: dict[str, Any] = {"accept_volume_mounts": True, "accept_environment": "privileged"}
BY_WORDS = [
    (Inputs({VISIBLE: "rubbish"}), VISIBLE),
    (Inputs({VISIBLE: "all", "NVIDIA_MIG_CONFIG_DEVICES": "all"}), VISIBLE),
    (Inputs({VISIBLE: LIST}), VISIBLE),
    (Inputs({"CUDA_VERSION": "12..4"}), "CUDA_VERSION"),
    (Inputs({"CUDA_VERSION": "9.0"}, given=("/dev/nvidia0",)), "CUDA_VERSION"),
    (Inputs({}, given=("/dev/nvidia0",)), "the volume at /usr/local/nvidia"),
    (Inputs({"DOCKER_RESOURCE_GPU": "0"}), "DOCKER_RESOURCE_GPU"),
    # An engine may hand a pod's own annotations on, as CRI-O does: its author writes them.
    (Inputs({}, cdi=("nvidia.com/gpu=all",)), "the annotations cdi.k8s.io/*"),
    (Inputs({}, cdi=("nvidia.com/x=0",)), "the annotations cdi.k8s.io/*"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "where"), BY_WORDS)
def test_words_of_an_unprivileged_container_are_left_out_unread_or_refused(inputs: Inputs, where: str) -> None:
    settings = HARDENED._replace(swarm_resources=("DOCKER_RESOURCE_GPU",))
    refusing = settings._replace(**REFUSING)
    for said in (left_out(inputs, settings), refusal(inputs, refusing)):
        assert said.startswith(f"the request in {where} is not accepted from a container without CAP")
        assert "the administrator decides" in said
    # Nothing was asked for, or all of it is accepted.
    assert parse_request(Inputs({VISIBLE: "void"}), refusing) == (None, ())
    for privileged in (Inputs({VISIBLE: "1", "NVIDIA_IMEX_CHANNELS": "3"}), Inputs({}, cdi=("nvidia.com/gpu=1",))):
        assert request_of(privileged._replace(privileged=True), refusing).devices == ("1",)


def test_beside_a_device_plugin_a_pods_author_is_told_the_words_of_a_pod() -> None:
    settings = HARDENED._replace(accept_volume_mounts=True)
    hint = "a pod's author must ask for nvidia.com/gpu in its limits; else the administrator decides"
    assert hint in left_out(Inputs({VISIBLE: "all"}), settings)
    assert hint in refusal(Inputs({VISIBLE: "all"}), settings._replace(unaccepted_requests="refuse"))
    # The lists are of NVIDIA's devices alone.
    notes: list[str] = []
    vendors = Names("env", "OCI_AMD", ("0",))
    assert accepted([vendors], Inputs({}), settings, notes, "OCI_AMD") == NOTHING
    assert hint not in notes[0]


@pytest.mark.parametrize(
    ("inputs", "changes", "words"),
    [
        (Inputs({}, listed("0")), {}, "the device list in volume mounts is not accepted: accept-volume-mounts is no"),
        (Inputs({VISIBLE: "0"}, listed("0")), {}, "the device list in volume mounts"),
        *[
            (Inputs({VISIBLE: "all", name: value}, listed("0")), LISTS_ALONE, f"the request in {name} is not accepted")
            for name, value in (("NVIDIA_IMEX_CHANNELS", "3"), ("NVIDIA_GDS", "enabled"))
        ],
    ],
)
def test_what_is_not_accepted_of_a_list_is_refused(inputs: Inputs, changes: dict[str, Any], words: str) -> None:
    found, (note,) = parse_request(inputs, Settings(**changes))
    assert words in note
    assert found in (None, *[Request(source, ("0",), ("utility", "compute")) for source in ("env", "mounts")])
    assert words in refusal(inputs, Settings(**changes, **REFUSING))


@pytest.mark.parametrize(
    "inputs", [env(NVIDIA_IMEX_CHANNELS="rubbish"), Inputs({VISIBLE: "nvidia.com/gpu=0,nvidia.com/imex-channel=3"})]
)
def test_imex_channels_are_left_out_where_the_administrator_says_so(inputs: Inputs) -> None:
    found, (note,) = parse_request(inputs, Settings(ignore_imex_channels=True))
    assert found is not None and found.imex_channels == ()
    assert note.startswith("IMEX channels are left out")


def test_capabilities_that_are_not_allowed() -> None:
    settings = Settings(allowed_capabilities=("utility", "video"))
    found, notes = parse_request(env(NVIDIA_DRIVER_CAPABILITIES="utility,compute,ngx"), settings)
    assert found is not None and found.capabilities == ("utility",)
    assert [note.partition(":")[0] for note in notes] == ["capability compute, ngx is not allowed"]
    # "all" means all that is allowed, so nothing is left out of it.
    found, notes = parse_request(env(NVIDIA_DRIVER_CAPABILITIES="all"), settings)
    assert found is not None and (found.capabilities, notes) == (("utility", "video"), ())
    assert "none of the capabilities compute, ngx is allowed" in refusal(
        env(NVIDIA_DRIVER_CAPABILITIES="compute,ngx,compute"), settings
    )


def test_the_nodes_that_an_engine_has_injected_are_the_request() -> None:
    own = ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/dri/card0")
    inputs = Inputs({VISIBLE: "void", "NVIDIA_REQUIRE_CUDA": "cuda>=12"})
    nodes = ("/dev/null", *own, "/dev/driver")
    found = of_nodes(inputs, Settings(), nodes, ("compute", "utility", "rubbish"))
    assert found == (Request("cdi", (), ("utility", "compute"), ("cuda>=12",), nodes=own), ())
    off, _ = of_nodes(Inputs({**inputs.environment, "NVIDIA_DISABLE_REQUIRE": "1"}), Settings(), nodes, ("compute",))
    assert off is not None and off.requirements == ()
    # ``none`` has no node of ours on a Jetson.
    assert of_nodes(Inputs({}), Settings(), nodes[:1], ("compute",)) == (Request("cdi", (), ("compute",)), ())


def test_a_cdi_spec_brings_nothing_that_is_forbidden_since_it_was_made() -> None:
    settings = Settings(allowed_capabilities=("utility", "video"), allowed_vendors=("OCI_RDMA",))
    found, notes = of_nodes(Inputs({}), settings, (), ("compute", "utility"))
    assert found.capabilities == ("utility",)
    assert [note.partition(":")[0] for note in notes] == ["capability compute is not allowed"]
    with pytest.raises(RequestError, match="none of the capabilities compute is allowed"):
        of_nodes(Inputs({}), settings, (), ("compute",))
    with pytest.raises(RequestError, match="OCI_AMD is not allowed"):
        of_vendor("OCI_AMD", KNOWN, (), settings)
    assert of_vendor("OCI_RDMA", KNOWN, (), settings)[1] == ()


# --- of other vendors

AMD = KnownVendor("OCI_AMD", "amd.com/gpu", "/v/amd.json")
RDMA = KnownVendor("OCI_RDMA", "openfabrics.org/hca", "/v/rdma.json")
KNOWN = (AMD, RDMA)
DEFAULTS = Settings()


def asked(inputs: Inputs, settings: Settings = DEFAULTS) -> tuple[Request, ...]:
    found, notes = parse_request(inputs, settings, KNOWN)
    assert notes == ()
    return found.vendors if found else ()


def amd(*devices: str, source: str = "env") -> Request:
    named, nodes = ((), devices) if source == "cdi" else (devices, ())
    return Request(source, named, nodes=nodes, flag="OCI_AMD", file="/v/amd.json")


@pytest.mark.parametrize(
    ("value", "devices"),
    [("all", ("all",)), ("ALL", ("all",)), ("0,all", ("all",)), ("none", ("none",)), ("1, 0 ,1", ("1", "0"))]
    + [("0000:03:00.0", ("0000:03:00.0",)), ("renderD128,mlx5_0", ("renderD128", "mlx5_0"))],
)
def test_a_flag_asks_for_devices(value: str, devices: tuple[str, ...]) -> None:
    assert asked(Inputs({"OCI_AMD": value})) == (amd(*devices),)


@pytest.mark.parametrize("value", ["", ",", "void", "all,VOID"])
def test_what_asks_for_nothing(value: str) -> None:
    inputs = Inputs({"OCI_AMD": value})
    assert parse_request(inputs, Settings(), KNOWN) == (None, ())
    assert not vendorrequest.asks(inputs, KNOWN)


@pytest.mark.parametrize("value", ["0/1", "a b", "$(id)", "x" * 101, "\x1b[2J", "../kfd"])
def test_what_no_device_is_called_is_refused(value: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(Inputs({"OCI_AMD": value}), Settings(), KNOWN)
    assert str(caught.value).startswith("unknown device")
    assert str(caught.value).isprintable() and "in OCI_AMD" in str(caught.value)


def test_a_variable_that_no_file_names_is_not_ours() -> None:
    inputs = Inputs({"OCI_CLI_USER": "ocid1.user.oc1..a"})
    assert sources.may_name_vendor(inputs) and not vendorrequest.asks(inputs, KNOWN)
    assert parse_request(inputs, Settings(), KNOWN) == (None, ())


def test_a_container_without_such_a_variable_names_none() -> None:
    annotations = {"cdi.k8s.io/x": "nvidia.com/gpu=0"}
    for inputs in (Inputs({"PATH": "/bin", VISIBLE: "all"}), Inputs({}, cdi=sources.cdi_names(annotations))):
        assert not sources.may_name_vendor(inputs, Settings())


def test_cdi_annotations_of_a_files_kind_ask() -> None:
    text = "amd.com/gpu=1,openfabrics.org/hca=mlx5_0,intel.com/gpu=0"
    inputs = Inputs({}, cdi=sources.cdi_names({"cdi.k8s.io/x": text}))
    assert vendorrequest.asks(inputs, KNOWN)
    found = asked(inputs)
    assert found[0] == amd("1", source="annotations")
    assert [item.devices for item in found] == [("1",), ("mlx5_0",)]
    # What a spec of ours has served is not served again.
    assert asked(Inputs({"OCI_AMD": "void"}, cdi=("amd.com/gpu=1",))) == ()


def test_a_spec_of_ours_names_its_vendor_and_the_engine_the_nodes() -> None:
    nodes = ("/dev/kfd", "/dev/dri/renderD128")
    found, _ = cdirequest.of_vendor("OCI_AMD", KNOWN, nodes, Settings())
    assert found == Request("cdi", (), (), vendors=(amd(*nodes, source="cdi"),))
    with pytest.raises(ConfigError, match="'OCI_X', which no vendor's file has"):
        cdirequest.of_vendor("OCI_X", KNOWN, nodes, Settings())
    with pytest.raises(ConfigError, match="broken"):
        cdirequest.of_vendor("OCI_AMD", (AMD._replace(fault="broken"),), nodes, Settings())


def test_an_environment_that_is_not_accepted_asks_for_nothing() -> None:
    settings = Settings(accept_environment="privileged")
    inputs = Inputs({"OCI_AMD": "0"})
    found, (note,) = parse_request(inputs, settings, KNOWN)
    assert found is None and "OCI_AMD is not accepted from a container without CAP_SYS_ADMIN" in note
    assert asked(inputs._replace(privileged=True), settings) == (amd("0"),)
    with pytest.raises(RequestError):
        parse_request(inputs, settings._replace(unaccepted_requests="refuse"), KNOWN)


def test_a_vendor_that_is_not_allowed_is_left_out() -> None:
    settings = Settings(allowed_vendors=("OCI_RDMA",))
    found, (note,) = parse_request(Inputs({"OCI_AMD": "0", "OCI_RDMA": "all"}), settings, KNOWN)
    assert found is not None and [item.flag for item in found.vendors] == ["OCI_RDMA"]
    assert note.startswith("OCI_AMD is not allowed")
    with pytest.raises(RequestError, match="OCI_AMD is not allowed"):
        parse_request(Inputs({"OCI_AMD": "0"}), settings._replace(unaccepted_requests="refuse"), KNOWN)


SWARM = Settings(swarm_resources=("OCI_AMD=DOCKER_RESOURCE_AMD", "DOCKER_RESOURCE_GPU"))


def test_a_swarm_resource_of_a_vendor_goes_before_its_flag() -> None:
    environment = {"DOCKER_RESOURCE_AMD": "0000:03:00.0", "OCI_AMD": "all"}
    inputs = Inputs(environment)
    assert sources.may_name_vendor(Inputs({}), SWARM)
    assert asked(inputs, SWARM) == (amd("0000:03:00.0", source="swarm"),)
    assert asked(inputs) == (amd("all"),)
    with pytest.raises(RequestError, match="a number of devices"):
        asked(Inputs({"DOCKER_RESOURCE_AMD": "2"}), SWARM)
    # It is none of NVIDIA's, and all of several are read.
    several = Settings(swarm_resources=(*SWARM.swarm_resources, "OCI_AMD=TWO"))
    environment = {"DOCKER_RESOURCE_GPU": "none", "DOCKER_RESOURCE_AMD": "renderD128", "TWO": "1"}
    found, _ = parse_request(Inputs(environment), several, KNOWN)
    assert found is not None and found.devices == ("none",)
    assert found.vendors == (amd("renderD128", "1", source="swarm"),)


def test_no_image_gives_itself_what_swarm_gives() -> None:
    """It can have a variable of any name: where the environment is not accepted none counts, and none is read."""
    settings = SWARM._replace(accept_environment="privileged")
    for value in ("all", "2", "?"):
        inputs = Inputs({"DOCKER_RESOURCE_AMD": value})
        found, (note,) = parse_request(inputs, settings, KNOWN)
        assert found is None
        assert "DOCKER_RESOURCE_AMD is not accepted from a container without CAP_SYS" in note
    accepted = Inputs({"DOCKER_RESOURCE_AMD": "all"}, privileged=True)
    assert asked(accepted, settings) == (amd("all", source="swarm"),)


def test_flags_that_collide_stop_who_asks_for_them_and_nobody_else() -> None:
    fault = "OCI_AMD is the flag of /a/x.json and of /b/y.json"
    known = (AMD._replace(fault=fault), RDMA)
    with pytest.raises(ConfigError, match=r"is the flag of /a/x\.json and of /b/y\.json") as caught:
        parse_request(Inputs({"OCI_AMD": "0"}), Settings(), known)
    assert caught.value.exit_code == 4
    found, notes = parse_request(Inputs({"OCI_RDMA": "0"}), Settings(), known)
    assert found is not None and notes == ()


def test_a_fault_is_not_read_where_the_request_is_not_accepted() -> None:
    known = (AMD._replace(fault="broken"),)
    for settings in (Settings(accept_environment="privileged"), Settings(allowed_vendors=())):
        found, (note,) = parse_request(Inputs({"OCI_AMD": "0"}), settings, known)
        assert found is None and "broken" not in note


def test_a_file_that_cannot_be_understood_is_told_to_who_may_have_meant_it() -> None:
    known = (RDMA, KnownVendor("", "", "", "/v/x.json: line 3: no JSON"))
    found, (note,) = parse_request(Inputs({"OCI_X": "0", "OCI_RDMA": "0"}), Settings(), known)
    assert found is not None and note == "'OCI_X' brings nothing: /v/x.json: line 3: no JSON"
    assert parse_request(Inputs({"OCI_RDMA": "0"}), Settings(), known)[1] == ()
    # It stops nobody who did not: Oracle's tools have variables of such names too.
    strict = Settings(unmatched=("namespace",), unmatched_sections="refuse")
    found, (note,) = parse_request(Inputs({"OCI_CLI_USER": "a"}), strict, known[1:])
    assert found is None and note.startswith("'OCI_CLI_USER' brings nothing")
