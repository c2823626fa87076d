# SPDX-License-Identifier: Apache-2.0
"""Inputs with more than is read: a container that asks for nothing starts, whoever may ask is refused as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook import hook
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.request import mentions
from tests.unit import starts
from tests.unit.bounded import MIB, peak
from tests.unit.linear import is_linear

WORDS = mentions.words_of("/dev/null")


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA_VISIBLE_DEVICES=all",
        "x/nvidia-container-devices/0",
        "/v/nvidia_driver_375.66/_data",
        "CUDA_VERSION=12",
        "cdi.k8s.io/a",
        '["OCI_AMD=0"]',
        r"\u004eVIDIA_VISIBLE_DEVICES",
        r"NVIDIA\u005FVISIBLE",
        r"\u0027",
        r"\u003d",
        r"\u00",
        r"\u002",
    ],
)
@pytest.mark.parametrize("size", [1, 3, 7, 1 << 16])
def test_what_may_ask_is_found_wherever_it_is_cut(text: str, size: int) -> None:
    for before in range(9):
        data = b"x" * before + text.encode() + b"y" * (before % 3)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert mentions.are_in(pieces, WORDS), (before, size)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1 << 16])
def test_what_cannot_ask_is_none(size: int) -> None:
    data = rb'{"a":"1 \u0026 2 \u003c 3 \u003E nvidia_ OCI_AMD=0 \u2028","b":["NVIDI","A_X"]}'
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert not mentions.are_in(pieces, WORDS)


@given(st.lists(st.sampled_from([b"NVI", b"DIA_", b"\\u00", b"\\u", b"26", b"4e", b"x", b'"OC', b"I_"])))
def test_cuts_change_nothing_but_towards_asking(pieces: list[bytes]) -> None:
    if mentions.are_in([b"".join(pieces)], WORDS):
        assert mentions.are_in(pieces, WORDS)


def test_settings_name_more_words(tmp_path: Path) -> None:
    file = tmp_path / "hook.conf"
    file.write_text("swarm-resources = MY_GPUS, OCI_AMD=MY-CARDS\n")
    words = mentions.words_of(str(file))
    for text, found in (('"MY_GPUS=0"', True), ('"MY-CARDS=0"', True), ('"X_MY_GPUS=0"', False)):
        assert mentions.are_in([text.encode()], words) is found
    # What JSON can spell in other ways is in every text.
    file.write_text("swarm-resources = M\u00dcNZEN\n")
    assert mentions.are_in([b'"A=1"'], mentions.words_of(str(file)))
    file.write_text("nonsense")
    assert mentions.words_of(str(file)) == WORDS


MANY = {f"key{number}": "v" for number in range(200_000)}
LONG = {"long": "x" * (8 << 20)}


def outcome(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: dict[str, Any],
    config: dict[str, Any],
    *words: str,
    cwd: bool = True,
) -> int:
    """How the hook ends for this state and config.json."""
    bundle = tmp_path / "bundle"
    bundle.mkdir(exist_ok=True)
    (bundle / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(bundle if cwd else "/")
    file = tmp_path / "state"
    file.write_text(json.dumps({"id": "c", "pid": 1, "bundle": str(bundle), **state}))
    settings = tmp_path / "hook.conf"
    settings.touch()
    with file.open() as stdin:
        monkeypatch.setattr(hook, "_STDIN", stdin.fileno())
        # Its time would go on after the test.
        monkeypatch.setattr(alarm, "begin", lambda error: None)
        return hook.main("createRuntime", ["--config", str(settings), *words])


NOTHING: dict[str, Any] = {"process": {"env": ["A=b"]}}
ASKS: dict[str, Any] = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}
VARIABLES: dict[str, Any] = {"process": {"env": ["A=b"] * 70_000}}


@pytest.mark.parametrize("annotations", [MANY, LONG], ids=["many", "long"])
@pytest.mark.parametrize("place", ["config", "both"])
def test_a_container_that_asks_for_nothing_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, annotations: dict[str, str], place: str
) -> None:
    state = {"annotations": annotations} if place == "both" else {}
    for config, code in ((NOTHING, 0), (ASKS, 3)):
        config = {**config, "annotations": annotations}
        assert outcome(tmp_path, monkeypatch, state, config) == code
    asks = {"annotations": {**annotations, "cdi.k8s.io/a": "nvidia.com/gpu=0"}}
    config = {**NOTHING, "annotations": annotations}
    assert outcome(tmp_path, monkeypatch, asks, config) == 3
    # Whom a CDI spec of ours has started for has asked.
    assert outcome(tmp_path, monkeypatch, state, config, "--cdi", "compute") == 3


def test_nor_is_one_with_more_variables_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(tmp_path, monkeypatch, {}, VARIABLES) == 0
    asks = {"process": {"env": [*VARIABLES["process"]["env"], *ASKS["process"]["env"]]}}
    assert outcome(tmp_path, monkeypatch, {}, asks) == 3


def test_a_bundle_that_is_not_known_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a state that is not read the working folder alone can be the bundle."""
    state = {"annotations": MANY}
    assert outcome(tmp_path, monkeypatch, state, NOTHING) == 0
    assert outcome(tmp_path, monkeypatch, state, NOTHING, cwd=False) == 3
    (tmp_path / "other").mkdir()
    forged = {"id": "c", "pid": 1, "bundle": str(tmp_path / "other"), "annotations": MANY}
    assert outcome(tmp_path, monkeypatch, forged, NOTHING) == 3


def test_it_takes_no_memory_and_linear_time() -> None:
    def act(count: int) -> None:
        assert not mentions.are_in([b"x" * 65_000 + b"\\u0026"] * count, WORDS)

    assert peak(lambda: act(500)) < MIB
    assert is_linear(act)


def test_the_words_are_those_of_the_scripts() -> None:
    """A source of requests that only one of them knew would be passed over, or be refused when it is long."""
    text = (starts.ROOT / "hooks.d/asking.bash").read_text()
    for word in mentions._WORDS:
        assert f"*{word.decode().lstrip(chr(34))}*" in text
