# SPDX-License-Identifier: Apache-2.0
"""The hook's own words: its stages, and the options after them; and what stops no container."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from oci_gpu_hook import asking, hook
from oci_gpu_hook.asking import Options, Spec
from oci_gpu_hook.errors import HookError, UsageError
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request import state as state_of
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.state import State
from tests.unit import hosts, starts
from tests.unit.containers import contained, write_bundle

OPTIONS = ["--config", "--host-root", "--cdi", "--cdi-vendor"]


def test_an_option_takes_the_next_word_or_what_stands_behind_its_equals_sign() -> None:
    words = ["--config", "/c", "--host-root=/h=", "--cdi", "utility,compute", "--cdi-vendor=OCI_A"]
    assert asking.options(words) == Options("/c", "/h=", Spec(("utility", "compute"), "OCI_A"))
    assert asking.options([]) == Options(None, "/", None)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_without_its_value_is_wrong_usage(option: str) -> None:
    """At the end of the line most of all: a hook must not start with settings that were not meant."""
    for words in ([option], [option, ""], [f"{option}="], ["--config", "/c", option]):
        with pytest.raises(UsageError, match=f"^{option} needs a value$"):
            asking.options(words)


@pytest.mark.parametrize("names", ["utility,gpu", "utility,,compute"])
def test_a_spec_that_starts_the_hook_for_no_capability_is_wrong_usage(names: str) -> None:
    with pytest.raises(UsageError, match="which is not a capability"):
        asking.options(["--cdi", names])


def started(*words: str, state: str = "") -> tuple[int, str, str]:
    """The program in a process of its own, as a hook stage ends its process; and what it says."""
    command = [sys.executable, "-m", "oci_gpu_hook", *words]
    ended = subprocess.run(command, input=state, text=True, capture_output=True, check=False)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["createContainer"], 2, "createContainer runs inside the container"),
        (["createRuntime", "--nonsense"], 2, "unknown option '--nonsense'"),
        (["createRuntime", "--cdi", "utility", "--cdi-driver", "1.2"], 2, "write the CDI spec again"),
        # After the start there is nothing to do.
        (["poststart"], 0, ""),
    ],
)
def test_a_start_that_cannot_be_served_is_wrong_usage(words: list[str], code: int, sentence: str) -> None:
    ended, _, said = started(*words)
    assert (ended, said.count("\n")) == (code, bool(sentence))
    assert sentence in said


def at_stages(entry: Path, link: Path, words: list[str]) -> dict[str, Any]:
    """The hooks of a config.json: the link for prestart with these words, and the entry for createRuntime."""
    link.parent.mkdir()
    entry.write_text("")
    link.symlink_to(entry)
    return {
        "prestart": [{"path": "/nowhere"}, {"path": str(link), "args": words}],
        "createRuntime": [{"path": str(entry), "args": ["oci-gpu-hook", "createRuntime"]}],
    }


@pytest.mark.parametrize(
    ("words", "stage", "options", "is_read"),
    [
        (["x", "prestart"], "createRuntime", [], False),
        # The first of the two does the job.
        (["x", "prestart"], "prestart", [], True),
        # What an engine's own injection leaves to do is another request.
        (["x", "prestart"], "createRuntime", ["--cdi", "utility"], True),
        # Both would think that the other has done it.
        (["x", "createRuntime"], "createRuntime", [], True),
        ([], "createRuntime", [], True),
    ],
)
def test_what_has_been_done_for_prestart_is_not_done_again(
    tmp_path: Path, words: list[str], stage: str, options: list[str], is_read: bool
) -> None:
    """As where dockerd starts the hook for --gpus, and a runtime or a registration has added it as well."""
    hooks = at_stages(tmp_path / "oci-gpu-hook", tmp_path / "bin/docker", words)
    linux = {"devices": [{"path": "/dev/nvidia0", "type": "c"}]}
    bundle = write_bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=all", hooks=hooks, linux=linux)
    state = State("c", os.getpid(), str(bundle), {})
    with pytest.raises(HookError) if is_read else contextlib.nullcontext():
        hook.start(Progress(), state, asking.options([*options, "--host-root", "/proc"]), stage)


@pytest.mark.parametrize("is_there", [True, False])
def test_another_program_for_prestart_does_not_do_our_job(tmp_path: Path, is_there: bool) -> None:
    link = tmp_path / "bin/docker"
    hooks = at_stages(tmp_path / "oci-gpu-hook", link, ["x", "prestart"])
    link.unlink()
    if is_there:
        link.write_text("another's")
    assert not asking.is_served(Bundle("/b", {"hooks": hooks}))


def test_labels_that_fail_stop_no_container_that_asks_for_nothing(tmp_path: Path) -> None:
    """Its process is gone; or no policy knows its label."""
    linux = {"mountLabel": "system_u:object_r:of_no_policy_t:s0"}
    bundle = write_bundle(tmp_path, linux=linux)
    hosts.plant(tmp_path, "host/sys/fs/selinux/enforce", "1")
    hosts.plant(tmp_path, "settings.conf", "ipc-labels = all\n")
    words = ["--config", f"{tmp_path}/settings.conf", "--host-root", f"{tmp_path}/host"]
    with contained(bundle / "rootfs") as pid:
        for number, sentence in ((1 << 22, "cannot be looked into"), (pid, "cannot label what is made")):
            state = json.dumps({"id": "c", "pid": number, "bundle": str(bundle)})
            code, _, said = started("createRuntime", *words, state=state)
            assert (code, said.count("\n")) == (0, 1)
            assert sentence in said
        code, _, said = started("createRuntime", *words, "--host-root", str(tmp_path / "nowhere"), state=state)
        assert (code, said.count("\n")) == (0, 1)
        assert "cannot open --host-root" in said


# --- inputs with more than is read: a container with a sign of a request is refused, any other starts without a GPU

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
