# SPDX-License-Identifier: Apache-2.0
"""The names of devices and capabilities in the environment, in NVIDIA's grammar; test_sources has the other places."""

from __future__ import annotations

import pytest

from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs
from oci_gpu_hook.request.words import CAPABILITIES
from tests.unit.asking import MIG, MOUNTS, UUID, VISIBLE, by_environment, listed, refusal, request_of


@pytest.mark.parametrize("value", ["", " , ,,", "VOID", "0,void", "void,nvidia.com/gpu=0", "void,rubbish"])  # fmt: skip
def test_an_empty_list_or_void_anywhere_asks_for_nothing(value: str) -> None:
    assert parse_request(Inputs({VISIBLE: value, "NVIDIA_DRIVER_CAPABILITIES": "all"}), Settings()) == (None, ())


@pytest.mark.parametrize(
    ("value", "expected"),
    # Of "all" and "none" the first stands for the whole list.
    [("0,all,rubbish", ("all",)), ("none,ALL", ("none",)), ("all,none", ("all",)), (" 1 , 5 ,,1", ("1", "5"))]
    + [("007", ("7",)), ("0\n", ("0",)), (f"0,{UUID.upper()}", ("0", UUID)), (f"{UUID}-2,{UUID}-3,{UUID}", (UUID,))]
    + [("0000:C1:00.0", ("00000000:c1:00.0",)), ("0:7:0.0", ("00000000:07:00.0",)), ("00:01", ("0:1",))]
    + [(MIG.lower(), (MIG,)), (f"mig-{UUID.lower()}/01/00", (f"MIG-{UUID}/1/0",))]
    + [(f"0,0:1,{MIG},0:1", ("0", "0:1", MIG)), (f"nvidia.com/gpu={UUID},nvidia.com/gpu=1", (UUID, "1"))]
    + [("runtime.nvidia.com/gpu=all", ("all",)), ("management.nvidia.com/gpu=0:1", ("0:1",))],
)
def test_devices_become_canonical_selectors(value: str, expected: tuple[str, ...]) -> None:
    found = request_of(Inputs({VISIBLE: value}))
    assert (found.source, found.devices) == ("env", expected)


@pytest.mark.parametrize(
    "value",
    ["-1", "1.5", "0x1", "1234567890", "²", "0 1", "0;1", "all0", "/dev/nvidia0", "../0", "a" * 1000]
    + ["0:", ":1", "0:x", "0:1:", "0:1234567890", "1:٢", "0\x00", "\x1b[2J", "\udcff"]
    + ["GPU-", "GPU-1234", UUID[:-1], UUID + "0", UUID[:-1] + "z", f"{UUID}-", f"{UUID}-x", f"{UUID}-1-2"]
    + ["MIG-1", f"MIG {UUID}", f"{MIG}-2", f"{MIG}/1/0", f"MIG-{UUID}"]
    + [f"MIG-{UUID}/{rest}" for rest in ("1", "1/0/0", "1/", "1/a", "1/0\x00")]
    + ["0000:07:00", "0000:07:00.00", "000000000:07:00.0", "0:007:0.0", "0:0:000.0", ":07:00.0", "0:0:0.g"],
)  # fmt: skip
def test_what_names_no_device_is_refused(value: str) -> None:
    assert "unknown device" in refusal(Inputs({VISIBLE: f"1, {value}"}))
    assert "unknown device" in refusal(Inputs({}, listed(value)), MOUNTS)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nvidia.com/gpu=", "unknown device ''"),
        ("nvidia.com/gpu=0=1", "unknown device '0=1'"),
        ("nvidia.com/gpu=0,0", "are mixed with others"),
        ("nvidia.com/tpu=0", "unknown CDI kind"),
        ("example.com/gpu=0", "unknown CDI kind"),
        ("NVIDIA.com/gpu=0", "unknown CDI kind"),
        ("=0", "unknown CDI kind"),
        ("nvidia.com/gpu/0=1", "unknown CDI kind"),
    ],
)
def test_a_cdi_name_that_cannot_be_served_is_refused(value: str, words: str) -> None:
    assert words in refusal(Inputs({VISIBLE: value}))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (" ,", ("utility", "compute")),
        ("compute, utility", ("utility", "compute")),
        ("utility,all", CAPABILITIES),
        ("video", ("video",)),
        ("ngx, compat32,display,graphics", ("graphics", "display", "ngx", "compat32")),
    ],
)
def test_capabilities(value: str, expected: tuple[str, ...]) -> None:
    assert by_environment("0", value).capabilities == expected
