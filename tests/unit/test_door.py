# SPDX-License-Identifier: Apache-2.0
"""The door, hooks.d/oci-gpu-hook: it says "no" where Python would, hands over every byte, and never says "no" alone.

The real script in the real bash; only the interpreter that it would start is one that tells what it was given.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oci_gpu_hook import hook, oci, sources
from oci_gpu_hook.errors import HookError

DOOR = Path(__file__).resolve().parents[2] / "hooks.d/oci-gpu-hook"
ASKED = 99

INTERPRETER = f"""#!/bin/sh
printf %s "$OCI_GPU_HOOK_STATE"
cat
exit {ASKED}
"""


class Said(NamedTuple):
    """asked: whether Python was asked; given: the state that it was given."""

    asked: bool
    given: bytes


class Door:
    """The door in a folder of its own, with settings and a bundle there."""

    def __init__(self, folder: Path) -> None:
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        self.settings = folder / "settings.conf"
        self.program = folder / "door"
        interpreter = folder / "python"
        interpreter.write_text(INTERPRETER)
        interpreter.chmod(0o755)
        text = DOOR.read_text().replace("/usr/bin/python3", str(interpreter))
        self.program.write_text(text.replace("/etc/oci-gpu-hook.conf", str(self.settings)))
        self.program.chmod(0o755)

    def config(self, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        (self.bundle / "config.json").write_bytes(data)

    def state(self, **more: object) -> bytes:
        return json.dumps({"id": "c", "pid": 1, "bundle": str(self.bundle), **more}).encode()

    def start(self, state: bytes, *words: str, cwd: Path | None = None, env: Any = ()) -> Said:
        done = subprocess.run(
            [str(self.program), *(words or ["createRuntime"])],
            input=state,
            capture_output=True,
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin", **dict(env)},
            timeout=60,
        )
        assert done.stderr == b""
        assert done.returncode in (0, ASKED)
        return Said(done.returncode == ASKED, done.stdout)


@pytest.fixture()
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def config(*env: str, **more: Any) -> dict[str, Any]:
    return {"ociVersion": "1.0.2", "process": {"env": ["PATH=/bin", *env]}, **more}


def python_says_yes(state: bytes) -> bool:
    """What hook.py would find; a broken input is no "yes"."""
    reading, writing = os.pipe()
    try:
        os.write(writing, state)
        os.close(writing)
        read = oci.read_state(reading)
        return sources.may_ask(hook.inputs_of(oci.read_bundle(read.bundle), read.annotations))
    except HookError:
        return False
    finally:
        os.close(reading)


@pytest.mark.parametrize("indent", [None, 1, "\t"])
def test_a_container_that_asks_for_nothing_needs_no_python(door: Door, indent: Any) -> None:
    """As runc and crun write them: &, < and > as Go does."""
    mounts = [{"destination": "/proc", "type": "proc", "source": "proc"}]
    text = json.dumps(config("A=1 & 2 < 3", "B=\\", mounts=mounts), indent=indent)
    door.config(text.replace("&", r"\u0026").replace("<", r"\u003c") + "\n" * bool(indent))
    state = door.state(annotations={"io.kubernetes.labels": '{"bundle":"/x"}'})
    assert door.start(state) == (False, b"")
    assert door.start(state.replace(b'"bundle": ', b'"bundle":'), "prestart") == (False, b"")
    assert door.start(state, cwd=door.bundle) == (False, b"")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")),
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")).replace("NVIDIA", r"\u004eVIDIA"),
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")).replace("_", r"\u005f"),
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")).replace("_", r"\u005F"),
        json.dumps(config("CUDA_VERSION=12.4")),
        json.dumps(config(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})),
        json.dumps(config(annotations={"cdi.k8s.io/x": "a"})).replace(".", r"\u002e"),
        json.dumps(config(mounts=[{"destination": "/var/run/nvidia-container-devices/all"}])),
        json.dumps(config()) + "\0" + json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")),
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")).encode("utf-16"),
        "",
        "{",
        "[]",
        "no JSON",
    ],
)
def test_every_doubt_in_config_json_is_pythons(door: Door, text: str | bytes) -> None:
    door.config(text)
    assert door.start(door.state()) == (True, door.state())


@pytest.mark.parametrize("asks", ["bundle", "other", "both"])
def test_what_asks_is_the_bundle_wherever_the_runtime_is(
    door: Door, tmp_path: Path, asks: str
) -> None:
    """Runtimes start hooks in the bundle; a config.json of another folder answers for nobody."""
    gpu, none = json.dumps(config("NVIDIA_VISIBLE_DEVICES=0")), json.dumps(config())
    door.config(none if asks == "other" else gpu)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(none if asks == "bundle" else gpu)
    for cwd in (other, door.bundle):
        said = door.start(door.state(), cwd=cwd)
        assert said.asked or asks == "other"
        assert said.given == (door.state() if said.asked else b"")


def test_a_bundle_that_cannot_be_read_is_pythons(door: Door) -> None:
    assert door.start(door.state()).asked
    os.mkfifo(door.bundle / "config.json")  # nor does it hold the door up
    assert door.start(door.state()).asked


@pytest.mark.parametrize("there", [None, "", "{", "\0{}"])
def test_no_other_folder_answers_for_a_bundle_that_says_nothing(
    door: Door, tmp_path: Path, there: str | None
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(config()))
    if there is not None:
        door.config(there)
    assert door.start(door.state(), cwd=tmp_path / "other") == (True, door.state())


def test_no_variable_from_outside_answers(door: Door) -> None:
    """What the door's own are called, and a charset in which bytes are parts of characters."""
    text = json.dumps(config())
    own = {"config": text, "state": text, "bundle": "/", "after": "/", "lines": "", "file": ""}
    for locale in ("C.UTF-8", ""):
        said = door.start(door.state(), cwd=door.bundle, env={"LC_ALL": locale, **own})
        assert said == (True, door.state())
    door.config(json.dumps(config("NVIDIA_VISIBLE_DEVICES=0")))
    assert door.start(door.state(), cwd=door.bundle, env=own) == (True, door.state())


def test_no_time_limit_from_outside_cuts_a_state_short(door: Door) -> None:
    """What bash's `read` would take for one: half a state may ask for nothing."""
    door.config(json.dumps(config()))
    state = door.state(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    before, asks, after = state.partition(b"cdi.k8s.io")
    line = [str(door.program), "createRuntime"]
    environment = {"PATH": "/usr/bin:/bin", "TMOUT": "0.2"}
    with subprocess.Popen(line, stdin=PIPE, stdout=PIPE, env=environment) as started:
        assert started.stdin is not None
        started.stdin.write(before)
        started.stdin.flush()
        time.sleep(0.6)
        assert started.communicate(asks + after, timeout=60)[0] == state
    assert started.returncode == ASKED


@pytest.mark.parametrize(
    "words", [("", "createRuntime"), ("createRuntime", ""), ("create Runtime",)]
)
def test_a_stage_is_the_only_word(door: Door, words: tuple[str, ...]) -> None:
    door.config(json.dumps(config()))
    assert door.start(door.state(), *words).asked


@pytest.mark.parametrize(
    "state",
    [
        '{"id": "c", "bundlePath": "BUNDLE"}',
        '{"annotations": {"bundle": "OTHER"}, "bundle": "BUNDLE"}',
        '{"annotations": {"bundle": "OTHER"}, "bundlePath": "BUNDLE"}',
        '{"bundle" : "BUNDLE", "annotations": {"bundle": "OTHER"}}',
        r'{"bundle": "OTHER", "\u0062undle": "BUNDLE"}',
        '{"bundle": "relative"}',
        r'{"bundle": "\/BUNDLE"}',
        '{"bundle": 1}',
        '{"bundle": "BUNDLE", "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}}',
        "{}",
        "[]",
        "",
        "\xff",
    ],
)
def test_every_doubt_in_the_state_is_pythons(door: Door, tmp_path: Path, state: str) -> None:
    """OTHER asks for nothing."""
    door.config(json.dumps(config()))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(config()))
    data = state.replace("BUNDLE", str(door.bundle)).replace("OTHER", str(tmp_path / "other"))
    assert door.start(data.encode("latin-1")) == (True, data.encode("latin-1"))


@pytest.mark.parametrize("size", [65535, 65536, 65537, 300_000])
def test_a_long_state_is_handed_over_whole(door: Door, size: int) -> None:
    door.config(json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")))
    state = door.state(annotations={"long": ""})
    state = state.replace(b'"long": "', b'"long": "' + b"x" * (size - len(state)))
    assert door.start(state) == (True, state)


@pytest.mark.parametrize(
    "words", [["poststop"], ["createContainer"], ["createRuntime", "--config", "/x"], ["info"]]
)
def test_other_words_are_pythons(door: Door, words: list[str]) -> None:
    door.config(json.dumps(config()))
    assert door.start(door.state(), *words).asked


@pytest.mark.parametrize(
    ("name", "text", "asked"),
    [
        ("settings.conf", "# swarm-resources = A\n#ipc-labels = all\n\naccept-environment = always\n", False),
        ("settings.conf", "swarm-resources = A\n", True),
        ("settings.conf", "# swarm-resources\n[image]\n  ipc-labels = all", True),
        ("settings.conf.d/10-a.conf", "ipc-labels=all\n", True),
        ("settings.conf.d/10-a.conf", "device-cgroup = off\n", False),
    ],
)  # fmt: skip
def test_only_settings_that_concern_all_containers_ask_python(
    door: Door, name: str, text: str, asked: bool
) -> None:
    door.config(json.dumps(config()))
    file = door.settings.parent / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert door.start(door.state()).asked == asked


@pytest.mark.parametrize("name", ["settings.conf", "settings.conf.d/10-a.conf"])
def test_settings_that_are_no_file_do_not_hold_the_door_up(door: Door, name: str) -> None:
    door.config(json.dumps(config()))
    file = door.settings.parent / name
    file.parent.mkdir(exist_ok=True)
    os.mkfifo(file)
    assert door.start(door.state()).asked


WORDS = st.sampled_from(
    ["NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "cdi.k8s.io/a", "bundle", "bundlePath", "void", "all"]
    + ["/var/run/nvidia-container-devices/0", "A", "\\", '"', "é", "\u2028", "\n", "&", "=", ":", ""]
)  # fmt: skip
TEXTS = st.lists(WORDS, max_size=4).map("".join)
VARIABLES = st.builds("{}={}".format, TEXTS, TEXTS)
ANNOTATIONS = st.dictionaries(TEXTS, TEXTS, max_size=3)
MOUNTS = st.lists(st.fixed_dictionaries({"destination": TEXTS, "source": TEXTS}), max_size=2)
CONFIGS = st.fixed_dictionaries(
    {"process": st.fixed_dictionaries({"env": st.lists(VARIABLES, max_size=3)})},
    optional={"annotations": ANNOTATIONS, "mounts": MOUNTS},
)
WRITTEN = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans()},
    optional={"indent": st.sampled_from([1, "\t"]), "separators": st.just((",", ":"))},
)
# Where a text is cut, and which characters of it are escaped: hostile spellings of the same values.
SPELLINGS = st.lists(st.integers(0, 400), max_size=3)


def spelled(text: str, places: list[int]) -> str:
    """The same JSON, or a broken one, with letters written as escapes."""
    letters = list(text)
    for place in places:
        if place < len(letters) and letters[place].isalpha():
            letters[place] = f"\\u{ord(letters[place]):04x}"
    return "".join(letters)


@settings(
    max_examples=1500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    found=CONFIGS,
    annotations=ANNOTATIONS,
    how=WRITTEN,
    places=SPELLINGS,
    in_state=SPELLINGS,
    there=st.booleans(),
)  # fmt: skip
def test_the_door_never_says_no_where_python_says_yes(
    door: Door,
    found: Any,
    annotations: Any,
    how: Any,
    places: list[int],
    in_state: list[int],
    there: bool,
) -> None:
    door.config(spelled(json.dumps(found, **how), places))
    text = json.dumps({"bundle": str(door.bundle), "pid": 1, "annotations": annotations}, **how)
    state = spelled(text, in_state).encode()
    said = door.start(state, cwd=door.bundle if there else None)
    if said.asked:
        assert said.given == state
    else:
        assert not python_says_yes(state)
