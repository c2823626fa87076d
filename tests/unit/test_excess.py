# SPDX-License-Identifier: Apache-2.0
"""Inputs with more than is read: a container with a sign of a request is refused, any other starts without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pytest

from oci_gpu_hook import hook
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.request import state as state_of
from tests.unit import starts

MANY = {f"key{number}": "v" for number in range(200_000)}
LONG = {"long": "x" * (8 << 20)}


NOTHING: dict[str, Any] = {"process": {"env": ["A=b"]}}
ASKS: dict[str, Any] = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}
VARIABLES = ["A=b"] * 70_000
CDI = {"cdi.k8s.io/a": "nvidia.com/gpu=0"}
Start = Callable[..., int]


@pytest.fixture()
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """How the hook ends for a config.json, and annotations in the state."""
    (tmp_path / "hook.conf").touch()

    def outcome(config: dict[str, Any], annotations: dict[str, str] | None = None, *words: str) -> int:
        (tmp_path / "config.json").write_text(json.dumps(config))
        file = tmp_path / "state"
        file.write_text(json.dumps({"id": "c", "pid": 1, "bundle": str(tmp_path), "annotations": annotations or {}}))
        with file.open() as stdin:
            monkeypatch.setattr(hook, "_STDIN", stdin.fileno())
            # Its time would go on after the test.
            monkeypatch.setattr(alarm, "begin", lambda error: None)
            return hook.main("createRuntime", ["--config", str(tmp_path / "hook.conf"), *words])

    return outcome


@pytest.mark.parametrize("annotations", [MANY, LONG], ids=["many", "long"])
def test_a_container_without_a_sign_of_a_request_is_not_refused(
    outcome: Start, annotations: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    long = {**NOTHING, "annotations": annotations}
    assert (outcome(long), outcome({**ASKS, "annotations": annotations})) == (0, 3)
    assert (outcome(long, CDI), outcome(NOTHING, {**CDI, **annotations})) == (3, 3)
    # What a CDI spec of ours has started the hook for has asked.
    assert outcome(long, None, "--cdi", "compute") == 3
    capfd.readouterr()
    assert outcome(NOTHING, annotations) == 0
    said = capfd.readouterr().err
    assert "whether the container asks for a GPU is not known, and it gets none: the state on stdin" in said


def test_nor_is_one_with_more_variables_than_are_read(outcome: Start) -> None:
    assert outcome({"process": {"env": VARIABLES}}) == 0
    assert outcome({"process": {"env": [*VARIABLES, *ASKS["process"]["env"]]}}) == 3


def test_variables_that_the_settings_name_are_signs_too(outcome: Start, tmp_path: Path) -> None:
    config = {"process": {"env": ["DOCKER_RESOURCE_GPU=GPU-0"]}, "annotations": MANY}
    assert outcome(config) == 0
    (tmp_path / "hook.conf").write_text("swarm-resources = DOCKER_RESOURCE_GPU\n")
    assert outcome(config) == 3


def test_the_words_are_those_of_the_scripts() -> None:
    """A source of requests that only one of them knew would be passed over, or be refused when it is long."""
    text = (starts.ROOT / "hooks.d/asking.bash").read_text()
    for word in state_of._ASKING:
        assert f"*{word.decode().lstrip(chr(34))}*" in text
