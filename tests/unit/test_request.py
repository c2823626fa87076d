# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES: NVIDIA's own grammar.  The other ways: test_sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook import request, sources
from oci_gpu_hook.config import Config
from oci_gpu_hook.errors import RequestError

UUID = "GPU-11111111-2222-3333-4444-5555555555aa"


def parse(devices: str, capabilities: str | None = None) -> request.Request | None:
    environment = {"NVIDIA_VISIBLE_DEVICES": devices}
    if capabilities is not None:
        environment["NVIDIA_DRIVER_CAPABILITIES"] = capabilities
    return request.parse(sources.Inputs(environment), Config())[0]


def devices(value: str) -> tuple[str, ...]:
    found = parse(value)
    assert found is not None
    return found.devices


@pytest.mark.parametrize(
    "value", ["", " ", ",", " , ,", "void", "VOID", "0,void", "all,void", "none, void"]
)
def test_these_ask_for_nothing(value: str) -> None:
    assert parse(value) is None


def test_an_unset_variable_asks_for_nothing() -> None:
    assert request.parse(sources.Inputs({"NVIDIA_DRIVER_CAPABILITIES": "all"}), Config()) == (
        None,
        (),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("all", ("all",)),
        ("ALL", ("all",)),
        ("none", ("none",)),
        ("0,all", ("all",)),
        ("none,all", ("none",)),
        ("all,none", ("all",)),
        ("0", ("0",)),
        ("007", ("7",)),
        (" 1 , 5 ,", ("1", "5")),
        ("1,1,5", ("1", "5")),
        (UUID, (UUID,)),
        (UUID.upper(), (UUID,)),
        ("0000:07:00.0", ("00000000:07:00.0",)),
        ("00000000:07:00.0", ("00000000:07:00.0",)),
        ("0:7:0.0", ("00000000:07:00.0",)),
        ("0000:C1:00.0", ("00000000:c1:00.0",)),
        (f"0,{UUID}", ("0", UUID)),
    ],
)
def test_devices_become_canonical_selectors(value: str, expected: tuple[str, ...]) -> None:
    assert devices(value) == expected


@pytest.mark.parametrize(
    "value",
    ["x", "-1", "1.5", "0x1", "GPU-", "GPU-1234", UUID[:-1], UUID + "0", "gpu", "0000:07:00", "0000:07:00.00",
     "000000000:07:00.0", "١", "1234567890", "all0", "a" * 1000, "0\n", "GPU-11111111-2222-3333-4444-5555555555zz"],
)  # fmt: skip
def test_any_other_device_is_refused_by_name(value: str) -> None:
    if value == "0\n":
        assert devices(value) == ("0",)
        return
    with pytest.raises(RequestError) as caught:
        parse(value)
    assert "unknown device" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ("utility", "compute")),
        ("", ("utility", "compute")),
        (" ,", ("utility", "compute")),
        ("utility", ("utility",)),
        ("compute", ("compute",)),
        ("compute, utility", ("utility", "compute")),
        ("all", request.CAPABILITIES),
        ("utility,all", request.CAPABILITIES),
        ("video", ("video",)),
        ("ngx, compat32,display,graphics", ("graphics", "display", "ngx", "compat32")),
    ],
)
def test_capabilities(value: str | None, expected: tuple[str, ...]) -> None:
    found = parse("all", value)
    assert found is not None
    assert found.capabilities == expected


@pytest.mark.parametrize("value", ["none", "Utility", "utility;compute", "x"])
def test_an_unknown_capability_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match="unknown capability"):
        parse("all", value)


@given(st.text(), st.text())
def test_parsing_is_total_and_refusals_are_one_short_line(visible: str, capabilities: str) -> None:
    try:
        parse(visible, capabilities)
    except RequestError as err:
        assert "\n" not in str(err)
        assert str(err).isprintable()
        assert len(str(err)) < 600


def test_ten_thousand_entries_are_read() -> None:
    assert len(devices(",".join(str(number) for number in range(10_000)))) == 10_000
