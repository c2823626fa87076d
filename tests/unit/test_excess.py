# SPDX-License-Identifier: Apache-2.0
"""Inputs with more than is read: a container with a sign of a request is refused, any other starts without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import hook
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.request import state as state_of
from tests.unit import starts

MANY = {f"key{number}": "v" for number in range(200_000)}
LONG = {"long": "x" * (8 << 20)}


def outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], config: dict[str, Any], *words: str
) -> int:
    """How the hook ends for this state and config.json."""
    bundle = tmp_path / "bundle"
    bundle.mkdir(exist_ok=True)
    (bundle / "config.json").write_text(json.dumps(config))
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
def test_a_container_without_a_sign_of_a_request_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, annotations: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    for config, code in ((NOTHING, 0), (ASKS, 3)):
        config = {**config, "annotations": annotations}
        assert outcome(tmp_path, monkeypatch, {}, config) == code
    config = {**NOTHING, "annotations": annotations}
    asks = {"annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=0"}}
    assert outcome(tmp_path, monkeypatch, asks, config) == 3
    assert outcome(tmp_path, monkeypatch, {"annotations": {**asks["annotations"], **annotations}}, NOTHING) == 3
    # What a CDI spec of ours has started the hook for has asked.
    assert outcome(tmp_path, monkeypatch, {}, config, "--cdi", "compute") == 3
    capfd.readouterr()
    assert outcome(tmp_path, monkeypatch, {"annotations": annotations}, NOTHING) == 0
    said = capfd.readouterr().err
    assert "whether the container asks for a GPU is not known, and it gets none: the state on stdin" in said


def test_nor_is_one_with_more_variables_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(tmp_path, monkeypatch, {}, VARIABLES) == 0
    asks = {"process": {"env": [*VARIABLES["process"]["env"], *ASKS["process"]["env"]]}}
    assert outcome(tmp_path, monkeypatch, {}, asks) == 3


def test_variables_that_the_settings_name_are_signs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"process": {"env": ["DOCKER_RESOURCE_GPU=GPU-0"]}, "annotations": MANY}
    assert outcome(tmp_path, monkeypatch, {}, config) == 0
    (tmp_path / "hook.conf").write_text("swarm-resources = DOCKER_RESOURCE_GPU\n")
    assert outcome(tmp_path, monkeypatch, {}, config) == 3


def test_the_words_are_those_of_the_scripts() -> None:
    """A source of requests that only one of them knew would be passed over, or be refused when it is long."""
    text = (starts.ROOT / "hooks.d/asking.bash").read_text()
    for word in state_of._ASKING:
        assert f"*{word.decode().lstrip(chr(34))}*" in text
