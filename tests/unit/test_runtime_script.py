# SPDX-License-Identifier: Apache-2.0
"""hooks.d/oci-gpu-runtime: which container gets the hook, which runtime it becomes, what it says where there is none.

The real script runs in the real bash.  The interpreter and the runtime are scripts that tell what they were given.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import ANY

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from oci_gpu_hook.errors import HookError
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.bundle import read_bundle
from oci_gpu_hook.runtime import create as module
from tests.unit import starts
from tests.unit import test_entry_script as hooks
from tests.unit.examples import examples

HOOK = starts.ADDED
OURS = json.loads(HOOK)
ASKS = json.dumps(hooks.config("NVIDIA_VISIBLE_DEVICES=all"))
ASKS_VENDOR = json.dumps(hooks.config("OCI_AMD=all"))
NONE = json.dumps(hooks.config())
_, CALLS, UPDATES = (Path(__file__).parents[1] / "data/calls.txt").read_text().strip().split("\n\n")
# Flags, the program, and then what runtime.py is told.
INTERPRETER = """#!/bin/sh
printf '%s\\n' "$6" "$7" "$8" >FOLDER/added
printf %s "$5" >FOLDER/code
/bin/cat FOLDER/left 2>/dev/null
exit $(/bin/cat FOLDER/fails 2>/dev/null || echo 0)
"""
REAL = """#!/bin/sh
printf '%s\\n' "$0" "$@"
"""


class Said(NamedTuple):
    """added: the words of runtime.py, where it was asked; words: the real runtime's own, its path first."""

    added: list[str]
    words: list[str]
    code: int
    err: str


class Script(starts.Script):
    """With runtimes, and a /run of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "oci-gpu-runtime", INTERPRETER.replace("FOLDER", str(folder)))
        self.log, self.real = folder / "log.json", self.write("bin/runc", REAL)
        self.program.write_text(self.program.read_text().replace("?(/var)/run/*", f"{folder}/run/*"))

    def start(self, *words: str, cwd: Path | None = None, env: Any = ()) -> Said:
        added = self.folder / "added"
        added.unlink(missing_ok=True)
        done = subprocess.run(
            [str(self.program), *words],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={"PATH": f"{self.folder}/bin", **dict(env)},
            timeout=600,
        )
        told = added.read_text().splitlines() if added.exists() else []
        return Said(told, done.stdout.splitlines(), done.returncode, done.stderr)


@pytest.fixture()
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def create(script: Script, text: str, **how: Any) -> Said:
    """`create` of a container with this config.json, which must come to the real runtime."""
    (script.bundle / "config.json").write_text(text)
    words = ("create", "--bundle", str(script.bundle), "id")
    said = script.start(*words, **how)
    assert (said.words, said.code, said.err) == ([script.real, *words], 0, "")
    return said


def refused(script: Script, *words: str, **how: Any) -> tuple[dict[str, str], str]:
    """The one line of the log of a call that starts nothing, and what it says on stderr."""
    said = script.start("--log", str(script.log), *words, **how)
    assert (said.words, said.code) == ([], 4)
    (line,) = script.log.read_text().splitlines()
    return json.loads(line), said.err


@pytest.mark.parametrize("call", CALLS.split("\n"))
def test_the_bundle_and_the_log_are_found(script: Script, call: str) -> None:
    (script.bundle / "config.json").write_text(ASKS)
    words = call.replace("BUNDLE", str(script.bundle)).replace("LOG", str(script.log)).split()
    said = script.start(*words)
    assert (said.words, said.code, said.err) == ([script.real, *words], 0, "")
    config, hook, log = said.added
    assert os.path.samefile(config, script.bundle / "config.json")
    assert (hook, log) == (HOOK, str(script.log))


@pytest.mark.parametrize(
    "words", ["create id", "run id", "create --bundle . id", "run --bundle= id", "run -b BUNDLE -f config.json id"]
)
def test_without_a_bundle_it_is_the_working_folder(script: Script, words: str) -> None:
    """There crun looks for a config.json of its own, and not in the bundle."""
    (script.bundle / "config.json").write_text(NONE)
    (script.folder / "config.json").write_text(ASKS)
    called = words.replace("BUNDLE", str(script.bundle)).split()
    said = script.start(*called, cwd=script.folder)
    assert os.path.samefile(script.folder / said.added[0], script.folder / "config.json")
    assert said.words == [script.real, *called]


@pytest.mark.parametrize(
    "call",
    ["", "--version", "--log", "--root /r --log LOG state id", "exec --bundle BUNDLE run", "delete --force create"]
    + ["start id", "kill id KILL", "update --resources - id", "features", "spec --bundle BUNDLE"],
)  # fmt: skip
def test_any_other_subcommand_is_the_real_runtimes(script: Script, call: str) -> None:
    (script.bundle / "config.json").write_text(ASKS)
    words = call.replace("BUNDLE", str(script.bundle)).split()
    assert script.start(*words, cwd=script.bundle) == ([], [script.real, *words], 0, "")


def test_words_with_blanks_and_none_at_all_are_handed_on(script: Script) -> None:
    words = ("--log", "", "create", "a b", "*", "", "--", "\n")
    assert script.start(*words).words == "\n".join([script.real, *words, ""]).splitlines()


@pytest.mark.parametrize(
    "text", [ASKS, ASKS_VENDOR, ASKS.replace("_", r"\u005F"), NONE.replace("bin", "CUDA_VERSION"), f"[{ASKS}"]
)
def test_a_container_that_may_ask_gets_the_hook(script: Script, text: str) -> None:
    assert create(script, text).added


def test_a_container_that_asks_for_nothing_needs_no_python(script: Script) -> None:
    assert not create(script, NONE).added
    assert not create(script, NONE.replace("bin", r"\u0026")).added
    # Its own words are not the script's.
    assert not create(script, NONE, env={"doubt": "yes", "config": ASKS, "file": "/x"}).added


# What engines write, and what they do not.
COMPACT: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}
OTHER = {"path": "/proc/1/exe", "args": ["libnetwork-setkey", "a]}", '"hooks":{']}
USUAL: list[dict[str, Any]] = [{}, {"hooks": {"prestart": [OTHER]}}, {"hooks": {"poststop": None, "poststart": []}}]
UNUSUAL = {
    "escape": ASKS.replace("_", r"\u005F"),
    "lines": json.dumps(json.loads(ASKS), indent=1),
    "empty": json.dumps({**json.loads(ASKS), "hooks": {}}),
    "null": json.dumps({**json.loads(ASKS), "hooks": None}),
    "spaces": json.dumps({**json.loads(ASKS), "hooks": {"prestart": [OTHER]}}),
    "stage": json.dumps({**json.loads(ASKS), "hooks": {"createRuntime": [OTHER]}}, **COMPACT),
    "ours": json.dumps({**json.loads(ASKS), "hooks": {"prestart": [{"path": OURS["path"]}]}}, **COMPACT),
    "theirs": ASKS.replace("bin", "nvidia-container-runtime-hook"),
    "twice": json.dumps({**USUAL[1], **json.loads(ASKS), "linux": USUAL[1]}, **COMPACT),
    "nested": json.dumps({**json.loads(ASKS), "linux": USUAL[1]}, **COMPACT),
    "list": f"[{ASKS}]",
    "devices": json.dumps({**json.loads(ASKS), "linux": {"netDevices": {"e": {}, "hooks": {"name": "e"}}}}, **COMPACT),
    "rdma": json.dumps({**json.loads(ASKS), "linux": {"rdma": {"e": {}, "hooks": {"hcaHandles": 3}}}}, **COMPACT),
    **{str(size): f"{json.dumps(json.loads(ASKS), **COMPACT)[:-1]}{' ' * size}}}" for size in (1 << 16, 1 << 18)},
    "long": json.dumps(hooks.config("A=" + "x" * (1 << 18)), **COMPACT),
}


def in_memory(script: Script) -> None:
    """From here on the bundle is below what is /run."""
    script.bundle = script.folder / "run/moby"
    script.bundle.mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("document", USUAL)
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_usual_config_json_needs_no_python(script: Script, document: dict[str, Any], end: str) -> None:
    in_memory(script)
    text = json.dumps({**document, **json.loads(ASKS), "é": '"hooks":{"&'}, **COMPACT).replace("&", r"\u0026") + end
    assert create(script, text).added == []
    after = (script.bundle / "config.json").read_text()
    assert json.loads(after) == {**json.loads(text), "hooks": {**document.get("hooks", {}), "createRuntime": [OURS]}}
    # As Python writes it, to the byte.
    assert after == module.with_hook(text, HOOK, False)
    assert create(script, after).added


@pytest.mark.parametrize("name", UNUSUAL)
def test_any_other_is_pythons(script: Script, name: str) -> None:
    in_memory(script)
    assert create(script, UNUSUAL[name]).added
    assert (script.bundle / "config.json").read_text() == UNUSUAL[name]


def test_a_link_and_a_bundle_on_a_disk_are_pythons(script: Script) -> None:
    assert create(script, ASKS).added
    in_memory(script)
    (script.folder / "real.json").touch()
    (script.bundle / "config.json").symlink_to(script.folder / "real.json")
    assert create(script, ASKS).added
    assert (script.folder / "real.json").read_text() == ASKS


def test_where_the_hook_has_no_room_the_text_stays(script: Script) -> None:
    """As in a full tmpfs, here by the kernel's limit of a file's size."""
    in_memory(script)
    text = script.program.read_text()
    script.program.write_text(text.replace("\n", "\ntrap '' XFSZ; ulimit -f 8\n", 1))
    long = ASKS.replace("bin", "x" * (8190 - len(ASKS)))
    assert create(script, long).added
    assert (script.bundle / "config.json").read_text() == long


READS = "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexec /bin/cat\n"


def known_to_crun(script: Script, text: str) -> Path:
    """The copy of config.json that crun keeps."""
    folder = script.folder / "crun/id"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(text)
    script.write("bin/runc", READS)
    return folder / "config.json"


@pytest.mark.parametrize(("call", "left"), [line.split(" => ") for line in UPDATES.split("\n")])
def test_of_an_update_the_real_runtime_gets_what_is_left(script: Script, call: str, left: str) -> None:
    kept = known_to_crun(script, ASKS)
    (script.folder / "left").write_text('{"cpu":{}}')
    resources = script.folder / "resources.json"
    places = {"ROOT": script.folder / "crun", "LOG": script.log, "FILE": resources}
    for name, path in places.items():
        call = call.replace(name, str(path))
    words = call.split()
    at = words.index("update") + 1
    said = script.start(*words, env={"XDG_RUNTIME_DIR": str(script.folder)})
    source = str(resources) if str(resources) in call else "-"
    assert said.added == [str(kept), source, str(script.log)]
    assert "from oci_gpu_hook.runtime import update as module" in (script.folder / "code").read_text()
    *before, text = said.words
    assert before == words[:at] + left.split()
    assert text == '{"cpu":{}}'


def test_any_other_update_is_the_real_runtimes_alone(script: Script) -> None:
    kept = known_to_crun(script, NONE)
    root = str(script.folder / "crun")
    for words in (
        ["--root", root, "update", "--resources", "-", "id"],
        ["--root", root, "update", "--cpu-share", "5", "id"],
        ["--root", root, "update", "--resources", "-", "other"],
        ["--root", root, "update"],
    ):
        assert script.start(*words) == ([], words, 0, "")
    kept.write_text(ASKS)
    assert script.start("update", "--cpu-share", "5", "id").added == []


@pytest.mark.parametrize("code", ["3", "1"])
def test_an_update_that_cannot_be_compared_sets_nothing(script: Script, code: str) -> None:
    known_to_crun(script, ASKS)
    (script.folder / "fails").write_text(code)
    words = ("--root", str(script.folder / "crun"), "--log", str(script.log), "update", "-r", "-")
    said = script.start(*words, "id")
    assert (said.words, said.code) == ([], 3 if code == "3" else 4)
    told = script.log.read_text() if script.log.exists() else ""
    assert ("the update cannot be compared with" in told) == (code == "1")


def test_a_config_json_that_is_not_there_is_the_real_runtimes_to_tell(script: Script) -> None:
    words = ("create", "--bundle", str(script.bundle), "id")
    assert script.start(*words).words == [script.real, *words]
    os.mkfifo(script.bundle / "config.json")  # which must not hold the script up
    assert script.start(*words).words == [script.real, *words]


@pytest.mark.parametrize("how", ["3", "7", "1", "no interpreter"])
def test_where_the_hook_cannot_be_added_no_container_is_made(script: Script, how: str) -> None:
    """Where Python cannot tell why, the script does."""
    (script.bundle / "config.json").write_text(ASKS)
    (script.folder / "fails").write_text(how if how.isdigit() else "1")
    if not how.isdigit():
        (script.folder / "bin/python").unlink()
    words = ("create", "--bundle", str(script.bundle), "id")
    if how in ("3", "7"):
        assert script.start("--log", str(script.log), *words) == ([ANY, ANY, ANY], [], int(how), "")
        return
    told, err = refused(script, *words)
    assert "the hook cannot be added to" in told["msg"]
    assert err.endswith(f"{told['msg']}\n")


def test_a_runtime_that_is_no_program_is_named(script: Script) -> None:
    script.write("bin/runc", "\x7fELF")
    told, _ = refused(script, "state", "id")
    assert f"{script.real} cannot be started" in told["msg"]


@pytest.mark.parametrize(
    "line",
    ["\ufeffruntime = /usr/bin/crun", "Runtime = /x", "runtime: /x", "runtime", "[namespace a]\nruntime = /x"]
    + ["the runtime = /x"],
)  # fmt: skip
def test_a_setting_that_cannot_be_understood_starts_no_other_runtime(script: Script, line: str) -> None:
    script.settings.write_text(f"# the runtime: /x\nrecords = no\n{line}\n")
    told, _ = refused(script, "state", "id")
    assert "which cannot be understood" in told["msg"]


@pytest.mark.parametrize("line", ["metrics = /run/runtime.prom", "[image a/runtime]\nrecords = no", ""])
def test_other_settings_may_speak_of_runtimes(script: Script, line: str) -> None:
    script.settings.write_text(line or f"\r\nruntime = {script.real}\r\n")
    assert script.start("state", "id").words == [script.real, "state", "id"]


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("# swarm-resources = A\n#ipc-labels = all\naccept-environment = always\n", False),
        ("swarm-resources = A\n", True),
        ("runtime = REAL\n  ipc-labels = all", True),
    ],
)
def test_settings_that_concern_all_containers_ask_python(script: Script, text: str, added: bool) -> None:
    script.settings.write_text(text.replace("REAL", script.real))
    assert bool(create(script, NONE).added) == added
    # What is no file the hook tells.
    script.settings.unlink()
    os.mkfifo(script.settings)
    assert create(script, NONE).added


# Which runtime it becomes.


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "bin/runc"),
        ({"settings.conf": "runtime = FOLDER/other"}, "other"),
        ({"settings.conf": "\t runtime=FOLDER/other \t\n# runtime = /x\n#runtime = /x"}, "other"),
        ({"settings.conf": "runtime = /x\nruntime = FOLDER/other\n[image a]\nrecords = no"}, "other"),
        ({"settings.conf": "runtime = FOLDER/other\nruntime =\n"}, "bin/runc"),
        ({"settings.conf": "runtime = /x", "settings.conf.d/1.conf": "runtime = FOLDER/other"}, "other"),
        ({"settings.conf.d/2.conf": "runtime = FOLDER/other", "settings.conf.d/10.conf": "runtime = /x"}, "other"),
        ({"settings.conf.d/.a.conf": "runtime = /x", "settings.conf.d/b": "runtime = /x"}, "bin/runc"),
    ],
)  # fmt: skip
def test_the_runtime_is_the_configured_one(script: Script, files: dict[str, str], expected: str) -> None:
    """As oci-gpu-hook.conf(5) is read by Python: later lines hold, and drop-ins come in the order of their names."""
    script.write("other", REAL)
    for name, text in files.items():
        script.write(name, text.replace("FOLDER", str(script.folder)))
    assert script.start("state", "id").words == [str(script.folder / expected), "state", "id"]


@pytest.mark.skipif(not os.path.exists("/usr/share/i18n/locales/en_US"), reason="needs the package locales")
def test_files_of_settings_have_one_order_in_every_language(script: Script) -> None:
    """In most locales 5-a.conf comes behind 50-b.conf: an engine's may be any."""
    subprocess.run(["localedef", "-i", "en_US", "-f", "UTF-8", str(script.folder / "en_US.UTF-8")], check=True)
    for name, runtime in (("5-a", "/x"), ("50-b", script.write("other", REAL))):
        script.write(f"settings.conf.d/{name}.conf", f"runtime = {runtime}")
    said = script.start("state", env={"LOCPATH": str(script.folder), "LANG": "en_US.UTF-8"})
    assert said.words == [str(script.folder / "other"), "state"]


def test_else_it_is_the_first_runc_of_path_that_is_another(script: Script) -> None:
    (script.folder / "link").mkdir()
    (script.folder / "link/runc").symlink_to(script.program)
    (script.folder / "none/runc").mkdir(parents=True)
    path = ":".join([str(script.folder / name) for name in ("link", "none", "bin")])
    assert script.start("state", env={"PATH": f"{path}::."}).words == [script.real, "state"]
    Path(script.real).rename(script.folder / "bin/crun")
    crun = str(script.folder / "bin/crun")
    assert script.start("state", env={"PATH": path}).words == [crun, "state"]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("SELF", "the setting 'runtime' names this very script, SELF"),
        ("LINK", "the setting 'runtime' names this very script, LINK"),
        ('/no/"such\\one', "the setting 'runtime' names /no/\"such\\one, which is not a program"),
        ("/", "the setting 'runtime' names /, which is not a program"),
        ("runc", "the setting 'runtime' names runc, which is not a program"),
        ("", "neither runc nor crun is in PATH"),
    ],
)
def test_without_a_runtime_it_says_so_where_engines_read_it(script: Script, setting: str, says: str) -> None:
    link = script.folder / "link"
    link.symlink_to(script.program)
    names = {"SELF": str(script.program), "LINK": str(link)}
    for name, path in names.items():
        setting, says = setting.replace(name, path), says.replace(name, path)
    script.settings.write_text(f"runtime = {setting}\n")
    told, err = refused(script, "create", "id", env={"PATH": "/nowhere"})
    assert err.startswith(f"oci-gpu-runtime: {says} (the administrator must ")
    assert (told["msg"], told["level"]) == (err.strip(), "error")


def test_the_real_runtimes_environment_is_the_engines(script: Script) -> None:
    script.write("bin/runc", "#!/bin/sh\nexec /usr/bin/env -u PWD -u SHLVL -u _ -u OLDPWD\n")
    given = {"LC_ALL": "de_DE.UTF-8", "TZ": "Asia/Tokyo", "XDG_RUNTIME_DIR": "/x"}
    seen = dict(line.split("=", 1) for line in script.start("create", "id", env=given).words)
    assert seen == {"PATH": f"{script.folder}/bin", **given}


def test_the_hosts_python_gets_no_libraries_of_the_engines(script: Script) -> None:
    """MicroK8s' shim has those of its snap, and its runc needs them."""
    script.write("bin/runc", '#!/bin/sh\nprintf "%s\\n" "$LD_LIBRARY_PATH"\n')
    script.write("bin/python", INTERPRETER.replace("FOLDER", str(script.folder)).replace('"$8"', '"$LD_LIBRARY_PATH"'))
    (script.bundle / "config.json").write_text(ASKS)
    said = script.start("create", "--bundle", str(script.bundle), "id", env={"LD_LIBRARY_PATH": "/snap/lib"})
    assert (said.added[2:], said.words) == ([""], ["/snap/lib"])


def test_what_is_long_is_pythons_and_takes_the_script_no_memory(script: Script) -> None:
    text = script.program.read_text()
    script.program.write_text(text.replace("\n", "\nulimit -v 65536\n", 1))
    assert create(script, NONE + " " * (64 << 20)).added
    assert not create(script, NONE).added


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(hooks.CONFIGS, st.sampled_from([*USUAL, {"hooks": {}}]), hooks.WRITTEN, hooks.SPELLINGS)
def test_the_hook_is_added_wherever_it_would_find_a_request(
    script: Script, found: Any, known: Any, how: Any, places: list[int]
) -> None:
    in_memory(script)
    text = hooks.spelled(json.dumps({**found, **known}, **how), places)
    added = create(script, text).added
    after = (script.bundle / "config.json").read_text()
    if after != text:
        assert (after, added) == (module.with_hook(text, HOOK, False), [])
        return
    try:
        bundle = read_bundle(str(script.bundle))
        asks = sources.may_ask(sources.inputs_of(bundle, bundle.annotations()))
    except HookError:
        asks = False
    assert added or not asks
