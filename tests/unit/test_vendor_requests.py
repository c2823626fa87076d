# SPDX-License-Identifier: Apache-2.0
"""What a container asks of other vendors: variables, annotations, swarm resources; and what is allowed."""

from __future__ import annotations

import pytest

from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.request import cdirequest, sources, vendorrequest
from oci_gpu_hook.request.parse import Request, parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs
from oci_gpu_hook.request.vendorrequest import KnownVendor
from tests.unit.asking import VISIBLE, annotated

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
    [
        ("all", ("all",)),
        ("ALL", ("all",)),
        ("0,all", ("all",)),
        ("none", ("none",)),
        ("1, 0 ,1", ("1", "0")),
        ("0000:03:00.0", ("0000:03:00.0",)),
        ("renderD128,mlx5_0", ("renderD128", "mlx5_0")),
    ],
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
    for inputs in (Inputs({"PATH": "/bin", VISIBLE: "all"}), annotated({}, annotations)):
        assert not sources.may_name_vendor(inputs, Settings())


def test_cdi_annotations_of_a_files_kind_ask() -> None:
    text = "amd.com/gpu=1,openfabrics.org/hca=mlx5_0,intel.com/gpu=0"
    inputs = annotated({}, {"cdi.k8s.io/x": text})
    assert vendorrequest.asks(inputs, KNOWN)
    found = asked(inputs)
    assert found[0] == amd("1", source="annotations")
    assert [item.devices for item in found] == [("1",), ("mlx5_0",)]
    # What a spec of ours has served is not served again.
    assert asked(annotated({"OCI_AMD": "void"}, {"cdi.k8s.io/x": "amd.com/gpu=1"})) == ()


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
