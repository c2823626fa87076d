# SPDX-License-Identifier: Apache-2.0
"""The entry script, hooks.d/oci-gpu-hook: it answers only where Python would find no request, and else starts Python.

The real script runs in the real bash.  The interpreter that it starts is a script that tells what it was given.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any, Callable, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from oci_gpu_hook.errors import HookError
from oci_gpu_hook.request import sources, vendorrequest
from oci_gpu_hook.request.bundle import read_bundle
from oci_gpu_hook.request.selectors import KnownVendor
from oci_gpu_hook.request.state import read_state
from tests.unit import starts
from tests.unit.examples import examples
from tests.unit.starts import AMD

ASKED = 99

KNOWN = (KnownVendor("OCI_AMD", "", "amd.json"),)

INTERPRETER = f"""#!/bin/sh
printf %s "$OCI_GPU_HOOK_STATE"
cat
exit {ASKED}
"""


class Said(NamedTuple):
    """asked: whether Python was asked; given: the state that it was given."""

    asked: bool
    given: bytes


class Script(starts.Script):
    def config(self, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        (self.bundle / "config.json").write_bytes(data)

    def state(self, **more: object) -> bytes:
        return json.dumps({"id": "c", "pid": 1, "bundle": str(self.bundle), **more}).encode()

    def start(self, state: bytes, *words: str, cwd: Any = None, env: Any = (), before: tuple[str, ...] = ()) -> Said:
        done = subprocess.run(
            [*before, str(self.program), *(words or ["createRuntime"])],
            input=state,
            capture_output=True,
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin", **dict(env)},
            timeout=600,
        )
        assert done.stderr == b""
        assert done.returncode in (0, ASKED)
        return Said(done.returncode == ASKED, done.stdout)


@pytest.fixture()
def script(tmp_path: Path) -> Script:
    return Script(tmp_path, "oci-gpu-hook", INTERPRETER)


def config(*env: str, **more: Any) -> dict[str, Any]:
    return {"ociVersion": "1.0.2", "process": {"env": ["PATH=/bin", *env]}, **more}


def python_finds_a_request(state: bytes) -> bool:
    """What the hook would find; it refuses a broken input, which is no request."""
    try:
        with open(os.devnull) as stdin:
            read = read_state(stdin.fileno(), state)
        bundle = read_bundle(read.bundle)
        inputs = sources.inputs_of(bundle, {**read.annotations, **bundle.annotations()})
        return sources.may_ask(inputs) or vendorrequest.asks(inputs, KNOWN)
    except HookError:
        return False


@pytest.mark.parametrize("indent", [None, 1, "\t"])
def test_a_container_that_asks_for_nothing_needs_no_python(script: Script, indent: Any) -> None:
    """config.json as runc and crun write it, and with Go's escapes for &, < and >."""
    mounts = [{"destination": "/proc", "type": "proc", "source": "proc"}]
    text = json.dumps(config("A=1 & 2 < 3", "B=\\", mounts=mounts), indent=indent)
    script.config(text.replace("&", r"\u0026").replace("<", r"\u003c") + "\n" * bool(indent))
    state = script.state(annotations={"io.kubernetes.labels": '{"bundle":"/x"}'})
    assert script.start(state) == (False, b"")
    assert script.start(state.replace(b'"bundle": ', b'"bundle":'), "prestart") == (False, b"")
    assert script.start(state, cwd=script.bundle) == (False, b"")


# In each way in which a writer of JSON may put blanks, and escape a slash, as json-c does for crun since 1.28.
BLANKS: list[dict[str, Any]] = [
    {"separators": (",", ":")},
    {"separators": (", ", ": ")},
    {"separators": (",", ": "), "indent": 1},
    {"separators": (",", ": "), "indent": "\t"},
    {"separators": (",", ":"), "indent": 2},
]


@pytest.mark.parametrize("slash", ["/", r"\/"])
@pytest.mark.parametrize("blanks", BLANKS, ids=str)
@pytest.mark.parametrize("runtimes", ["ociVersion id pid bundle status annotations", "bundle annotations pid id"])
def test_every_spelling_of_a_state_is_read_without_python(
    script: Script, slash: str, blanks: dict[str, Any], runtimes: str
) -> None:
    values = {"ociVersion": "1.0", "id": "c", "pid": 1, "status": "created", "bundle": str(script.bundle)}
    values["annotations"] = {"org.opencontainers.image.stopSignal": "SIGTERM", "a/b": "/c\\/d"}
    document = {key: values[key] for key in runtimes.split()}
    for asks, env in ((False, ()), (True, ("NVIDIA_VISIBLE_DEVICES=0",))):
        script.config(json.dumps(config(*env), **blanks).replace("/", slash))
        state = json.dumps(document, **blanks).replace("/", slash).encode()
        assert script.start(state) == (asks, state if asks else b"")
        assert python_finds_a_request(state) is asks


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")),
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")).replace("NVIDIA", r"\u004eVIDIA"),
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")).replace("_", r"\u005F"),
        json.dumps(config("CUDA_VERSION=12.4")),
        json.dumps(config("OCI_AMD=0")),
        json.dumps(config("OCI_AMD=0")).replace("OCI", r"\u004fCI"),
        json.dumps(config(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})),
        json.dumps(config(annotations={"cdi.k8s.io/x": "a"})).replace(".", r"\u002e"),
        json.dumps(config(mounts=[{"destination": "/var/run/nvidia-container-devices/all"}])),
        json.dumps(config(mounts=[{"source": "/v/nvidia_driver_375.66/_data", "destination": "/usr/local/nvidia"}])),
        json.dumps(config()) + "\0" + json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")),
        json.dumps(config("NVIDIA_VISIBLE_DEVICES=all")).encode("utf-16"),
        "{",
        "[]",
    ],
)
def test_every_doubt_in_config_json_is_pythons(script: Script, text: str | bytes) -> None:
    script.config(text)
    assert script.start(script.state()) == (True, script.state())


def test_a_variable_that_no_vendors_file_names_needs_no_python(script: Script) -> None:
    """Oracle's tools have variables of such names, on hosts with GPUs too."""
    script.config(json.dumps(config("OCI_RESOURCE_PRINCIPAL_VERSION=2.2", "OCI_AMD_X=1", "X_OCI_AMD=1")))
    assert script.start(script.state()) == (False, b"")
    script.write("vendors/x.json", AMD.replace("AMD", "RESOURCE_PRINCIPAL_VERSION"))
    assert script.start(script.state()).asked


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"activation_flag": 1}', AMD.replace("OCI_AMD", "NO"), AMD.replace("OCI_AMD", r"\u004fCI_X")]
    + ['{"description": "\\"activation_flag\\"", "activation_flag": "OCI_Y"}']
    + ['{"activation_flag": "OCI_Y", "activation_flag": "OCI_Z"}', AMD + "\0" + AMD],
)
def test_a_vendors_file_that_is_not_plain_is_a_doubt(script: Script, text: str) -> None:
    script.config(json.dumps(config("OCI_Z=1")))
    assert not script.start(script.state()).asked
    script.write("vendors/z.json", text)
    assert script.start(script.state()).asked


def test_and_so_is_one_that_is_no_file_or_a_folder_that_cannot_be_listed(script: Script) -> None:
    """As under SELinux, where a policy of an older release does not let the script: a pattern then fits nothing."""
    script.config(json.dumps(config("OCI_Z=1")))
    without = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    vendors = script.folder / "vendors"
    for mode, asked in ((0o755, False), (0o311, True)):
        vendors.chmod(mode)
        assert script.start(script.state(), before=without).asked == asked
    vendors.chmod(0o755)
    (vendors / "z.json").mkdir()
    assert script.start(script.state()).asked
    script.config(json.dumps(config()))
    assert not script.start(script.state()).asked


@pytest.mark.parametrize("there", [None, "", "\0"])
def test_no_other_folder_answers_for_a_bundle_without_words(script: Script, tmp_path: Path, there: str | None) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(config()))
    if there is None:
        os.mkfifo(script.bundle / "config.json")  # which must not hold the script up
    else:
        script.config(there)
    for cwd in (None, tmp_path / "other"):
        assert script.start(script.state(), cwd=cwd) == (True, script.state())
    (script.bundle / "config.json").unlink()
    assert script.start(script.state(), cwd=tmp_path / "other").asked


def test_no_variable_from_outside_answers(script: Script) -> None:
    """Variables of the script's own names, and a charset in which one character has several bytes."""
    text = json.dumps(config())
    own = {"config": text, "state": text, "bundle": "/", "after": "/", "lines": "", "file": ""}
    for locale in ("C.UTF-8", ""):
        said = script.start(script.state(), cwd=script.bundle, env={"LC_ALL": locale, **own})
        assert said == (True, script.state())
    script.config(json.dumps(config("NVIDIA_VISIBLE_DEVICES=0")))
    assert script.start(script.state(), cwd=script.bundle, env=own) == (True, script.state())


def test_no_time_limit_from_outside_cuts_a_state_short(script: Script) -> None:
    """Bash's `read` takes TMOUT for its time limit, and half a state may lack what asks."""
    script.config(json.dumps(config()))
    state = script.state(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    before, asks, after = state.partition(b"cdi.k8s.io")
    line = [str(script.program), "createRuntime"]
    environment = {"PATH": "/usr/bin:/bin", "TMOUT": "0.2"}
    with subprocess.Popen(line, stdin=PIPE, stdout=PIPE, env=environment) as started:
        assert started.stdin is not None
        started.stdin.write(before)
        started.stdin.flush()
        time.sleep(0.6)
        assert started.communicate(asks + after, timeout=600)[0] == state
    assert started.returncode == ASKED


def test_a_state_that_is_never_written_is_pythons(script: Script) -> None:
    script.config(json.dumps(config()))
    text = script.program.read_text()
    assert text.count("read -r -t 10 ") == 1
    script.program.write_text(text.replace("read -r -t 10 ", "read -r -t 0.2 "))
    environment = {"PATH": "/usr/bin:/bin"}
    line = [str(script.program), "createRuntime"]
    with subprocess.Popen(line, stdin=PIPE, stdout=PIPE, env=environment) as started:
        time.sleep(1)
        # The interpreter in Python's place gives back what it reads from then on.
        assert started.communicate(script.state(), timeout=60)[0] == script.state()
    assert started.returncode == ASKED


@pytest.mark.parametrize(
    "words",
    [("", "createRuntime"), ("createRuntime", ""), ("create Runtime",), ("poststop",), ("info",)]
    + [("createContainer",), ("createRuntime", "--config", "/x")],
)
def test_any_words_but_the_stage_alone_are_pythons(script: Script, words: tuple[str, ...]) -> None:
    script.config(json.dumps(config()))
    assert script.start(script.state(), *words).asked


@pytest.mark.parametrize(
    "state",
    [
        '{"id": "c", "bundlePath": "BUNDLE"}',
        '{"annotations": {"bundle": "OTHER"}, "bundle": "BUNDLE"}',
        '{"annotations": {"bundle": "OTHER"}, "bundlePath": "BUNDLE"}',
        '{"bundle" : "BUNDLE", "annotations": {"bundle": "OTHER"}}',
        r'{"bundle": "OTHER", "\u0062undle": "BUNDLE"}',
        '{"bundle": "relative"}',
        r'{"bundle": "\\/BUNDLE"}',
        r'{"bundle": "BUNDLE\\/x"}',
        r'{"bundle": "BUNDLE\\\/x"}',
        '{"bundle": 1}',
        '{"bundle": "BUNDLE", "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}}',
        "{}",
        "\xff",
    ],
)
def test_every_doubt_in_the_state_is_pythons(script: Script, tmp_path: Path, state: str) -> None:
    """OTHER asks for nothing."""
    script.config(json.dumps(config()))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(config()))
    data = state.replace("BUNDLE", str(script.bundle)).replace("OTHER", str(tmp_path / "other"))
    assert script.start(data.encode("latin-1")) == (True, data.encode("latin-1"))


@pytest.mark.parametrize("size", [65535, 65536, 65537, 65600])
def test_a_long_state_is_handed_over_whole(script: Script, size: int) -> None:
    """What asks is its end, of which the script has not read all."""
    script.config(json.dumps(config()))
    state = script.state(annotations={"long": "", "cdi.k8s.io/x": "nvidia.com/gpu=0"})
    state = state.replace(b'"long": "', b'"long": "' + b"x" * (size - len(state)))
    assert script.start(state) == (True, state)


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
def test_only_settings_for_all_containers_ask_python(script: Script, name: str, text: str, asked: bool) -> None:
    script.config(json.dumps(config()))
    file = script.settings.parent / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert script.start(script.state()).asked == asked
    # What is no file does not hold the script up.
    file.unlink()
    os.mkfifo(file)
    assert script.start(script.state()).asked


# 64 MiB of config.json.
LONG: dict[str, Callable[[], str]] = {
    "annotations": lambda: json.dumps(config(annotations={f"a{number}": "x" * 320 for number in range(200_000)})),
    "a word": lambda: json.dumps(config("A=" + "x" * (64 << 20))),
    "blanks": lambda: json.dumps(config()) + " " * (64 << 20),
}


@pytest.mark.parametrize("name", LONG)
def test_what_is_long_is_pythons_and_takes_the_script_no_memory(script: Script, name: str) -> None:
    """Bash would take four times as much as it reads."""
    script.config(LONG[name]())
    text = script.program.read_text()
    script.program.write_text(text.replace("\n", "\nulimit -v 65536\n", 1))
    assert script.start(script.state()) == (True, script.state())


@pytest.mark.parametrize(("size", "asked"), [(262_143, False), (262_144, True)])
def test_up_to_its_bound_the_script_answers(script: Script, size: int, asked: bool) -> None:
    text = json.dumps(config("A="))
    script.config(text.replace("A=", "A=" + "x" * (size - len(text))))
    assert script.start(script.state()).asked == asked


JUNK = {
    "nothing": b"x" * 65_000,
    "quotes": b'"' * 65_000,
    "parts of the name": b'"bundle"' + b'"bundl' * 10_000,
    "escapes": rb"\u00" * 16_000,
    "the bundle at its end": b'{"x":"' + b"x" * 64_000 + b'","bundle":"BUNDLE"}',
    "an end that does not come": b'"bundle":"/' + b"x" * 65_000,
}


@pytest.mark.parametrize("junk", JUNK)
def test_no_state_takes_the_script_a_second_of_processor(script: Script, junk: str) -> None:
    """Bash takes them in some milliseconds; where it looked at each byte once for each other one, it took seconds."""
    script.config(json.dumps(config()))
    state = JUNK[junk].replace(b"BUNDLE", str(script.bundle).encode())
    # The kernel ends a process that has taken a second (setrlimit(2)).
    text = script.program.read_text()
    script.program.write_text(text.replace("\n", "\nulimit -t 1\n", 1))
    said = script.start(state)
    assert said.asked or junk == "the bundle at its end"


def test_the_script_cuts_no_long_text_at_a_place_that_it_must_search() -> None:
    """Bash's ${x#*y} takes time that grows with the square; ${x%%y*} finds the same place."""
    lines = [line for line in starts.script("oci-gpu-hook").split("\n") if not line.lstrip().startswith("#")]
    cuts = re.findall(r"\$\{(\w+)##?\*'?(.)", "\n".join(lines))
    # What is left begins with this quote, or with few letters before it.
    assert cuts == [("after", '"'), ("flag", '"')]


WORDS = st.sampled_from(
    ["NVIDIA_VISIBLE_DEVICES", "OCI_AMD", "CUDA_VERSION", "cdi.k8s.io/a", "bundle", "bundlePath", "void", "all"]
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
    {"ensure_ascii": st.booleans()}, optional={"indent": st.sampled_from([1, "\t"]), "separators": st.just((",", ":"))}
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


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(CONFIGS, ANNOTATIONS, WRITTEN, st.tuples(SPELLINGS, SPELLINGS), st.booleans())
def test_the_script_never_answers_where_python_finds_a_request(
    script: Script, found: Any, annotations: Any, how: Any, places: tuple[list[int], list[int]], in_bundle: bool
) -> None:
    script.config(spelled(json.dumps(found, **how), places[0]))
    text = json.dumps({"bundle": str(script.bundle), "pid": 1, "annotations": annotations}, **how)
    state = spelled(text, places[1]).encode()
    said = script.start(state, cwd=script.bundle if in_bundle else None)
    if said.asked:
        assert said.given == state
    else:
        assert not python_finds_a_request(state)
