# SPDX-License-Identifier: Apache-2.0
"""The hook's entry in config.json: added once, by splicing, whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.errors import ApplyError, BundleError
from oci_gpu_hook.request.selectors import KnownVendor
from oci_gpu_hook.runtime import create, update
from oci_gpu_hook.vendors import folders
from tests.unit import starts
from tests.unit.starts import ROOT
from tests.unit.test_jsontext import VALUES

HOOK = starts.ADDED
OURS = json.loads(HOOK)
OTHER = {"path": "/usr/bin/other", "args": ["other"]}


@pytest.fixture()
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def add(config: Path, document: object) -> Any:
    """What config.json says after the hook was added to this."""
    config.write_text(document if isinstance(document, str) else json.dumps(document))
    create.add_hook(str(config), HOOK)
    return json.loads(config.read_text())


@pytest.mark.parametrize(
    ("hooks", "after"),
    [
        (None, {"createRuntime": [OURS]}),
        ({}, {"createRuntime": [OURS]}),
        ({"prestart": [OTHER]}, {"prestart": [OTHER], "createRuntime": [OURS]}),
        ({"createRuntime": None}, {"createRuntime": [OURS]}),
        ({"createRuntime": []}, {"createRuntime": [OURS]}),
        ({"createRuntime": [OTHER, OTHER]}, {"createRuntime": [OTHER, OTHER, OURS]}),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_hook_comes_last_of_its_stage(config: Path, hooks: Any, after: Any, indent: Any) -> None:
    document = {"ociVersion": "1.0.2", "hooks": hooks, "root": {"path": "rootfs"}}
    assert add(config, json.dumps(document, indent=indent)) == {**document, "hooks": after}
    assert add(config, "{}") == {"hooks": {"createRuntime": [OURS]}}
    assert add(config, '{"root":{}}') == {"root": {}, "hooks": {"createRuntime": [OURS]}}


@pytest.mark.parametrize("name", ["oci-gpu-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit"])
@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer"])
def test_a_hook_that_does_the_job_is_left_alone(config: Path, stage: str, name: str) -> None:
    text = json.dumps({"hooks": {"poststop": None, stage: [OTHER, {"path": f"/opt/{name}"}]}})
    add(config, text)
    assert config.read_text() == text
    # In a stage in which it has nothing to do it does not do the job.
    for late in ("startContainer", "poststart", "poststop"):
        assert add(config, {"hooks": {late: [OURS]}})["hooks"]["createRuntime"] == [OURS]


@pytest.mark.parametrize(
    ("env", "more", "added"),
    [("0", (), True), ("void", (), False), ("0", (OURS,), False), ("0", ({**OURS, "args": 1},), False)],
)
def test_a_cdi_specs_start_does_not_do_anothers_job(config: Path, env: str, more: Any, added: bool) -> None:
    started = {**OURS, "args": [*OURS["args"], "--cdi-vendor", "OCI_AMD"]}
    hooks = {"createRuntime": [started, *more]}
    document = {"process": {"env": ["OCI_AMD=void", f"NVIDIA_VISIBLE_DEVICES={env}"]}, "hooks": hooks}
    assert add(config, document)["hooks"] == {"createRuntime": [started, *more, *[OURS] * added]}


HOOKS = st.none() | st.dictionaries(
    st.sampled_from(["prestart", "createRuntime", "poststop"]), st.none() | st.lists(VALUES, max_size=2)
)


@given(
    st.dictionaries(st.text(max_size=9).filter("hooks".__ne__), VALUES, max_size=3),
    st.none() | st.tuples(HOOKS),
    st.fixed_dictionaries(
        {"ensure_ascii": st.booleans(), "separators": st.sampled_from([None, (",", ":")])},
        optional={"indent": st.sampled_from([1, "\t"])},
    ),
)
def test_nothing_else_of_the_text_changes(others: dict[str, Any], hooks: tuple[Any] | None, how: Any) -> None:
    """Numbers, escapes and white space stay as the engine wrote them."""
    document = {**others, **({"hooks": hooks[0]} if hooks else {})}
    text = json.dumps(document, **how)
    listed = (document.get("hooks") or {}).get("createRuntime")
    after = create.with_hook(text, '"ours"', bool(listed))
    stages = {**(document.get("hooks") or {}), "createRuntime": [*(listed or []), "ours"]}
    assert json.loads(after) == {**document, "hooks": stages}
    first = alike(text, after)
    last = alike(text[first:][::-1], after[first:][::-1])
    assert text[first : len(text) - last].strip() in ("", "null")


def alike(one: str, other: str) -> int:
    """How many characters two texts have in common from their beginning."""
    pairs = enumerate(zip(one, other))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a":1,}', '{"a":NaN}', "\udcff", '{"hooks":[1]}', '{"hooks":{"prestart":1}}']
    + ['{"hooks":{"prestart":{}}}', '{"hooks":"x"}', "[" * 100_000, '{"a":"' + "x" * (4 << 20) + '"}'],
)  # fmt: skip
def test_what_is_no_config_json_is_refused_and_stays(config: Path, text: str) -> None:
    data = text.encode(errors="surrogateescape")
    config.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        create.add_hook(str(config), HOOK)
    assert str(caught.value).startswith(str(config)) and len(str(caught.value)) < 600
    assert config.read_bytes() == data
    assert [path.name for path in config.parent.iterdir()] == ["config.json"]


@pytest.mark.parametrize("kind", ["none", "link", "fifo", "folder"])
def test_what_is_no_file_is_refused(config: Path, kind: str) -> None:
    if kind == "link":
        config.symlink_to(ROOT)
    elif kind == "fifo":
        os.mkfifo(config)
    elif kind == "folder":
        config.mkdir()
    with pytest.raises(BundleError, match=r"^(cannot open )?/.*config\.json"):
        create.add_hook(str(config), HOOK)


def test_mode_and_owner_stay(config: Path) -> None:
    config.write_text("{}")
    config.chmod(0o640)
    before = config.stat()
    create.add_hook(str(config), HOOK)
    after = config.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


def test_what_another_writes_meanwhile_is_not_lost(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("{}")
    with_hook = create.with_hook

    def while_another_writes(*words: Any) -> str:
        config.write_text('{"theirs": 1}')
        return with_hook(*words)

    monkeypatch.setattr(create, "with_hook", while_another_writes)
    with pytest.raises(BundleError, match=r"was changed while the hook was added"):
        create.add_hook(str(config), HOOK)
    assert config.read_text() == '{"theirs": 1}'
    assert [path.name for path in config.parent.iterdir()] == ["config.json"]


def test_a_write_that_fails_leaves_nothing(config: Path) -> None:
    """The kernel refuses to let a file grow: as on a full disk, a part has been written by then."""
    text = json.dumps({"a": "x" * 9000})
    config.write_text(text)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ApplyError, match=r"^cannot write .*: File too large"):
            create.add_hook(str(config), HOOK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert config.read_text() == text
    assert [path.name for path in config.parent.iterdir()] == ["config.json"]


def called(config: Path, monkeypatch: pytest.MonkeyPatch, text: str, log: object = "") -> object:
    """The exit status of a call as the script makes it, for a config.json of this text."""
    config.write_text(text)
    monkeypatch.setattr(create.posix, "_exit", sys.exit)  # type: ignore[attr-defined]
    monkeypatch.setattr("sys.argv", ["-c", str(config), HOOK, str(log)])
    with pytest.raises(SystemExit) as ended:
        create.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("env", "settings", "stops"),
    [
        (["A=b"], "", False),
        (["NVIDIA_VISIBLE_DEVICES=void"], "", False),
        (["NVIDIA_VISIBLE_DEVICES=0"], "", True),
        (["MY_GPUS=0"], "swarm-resources = MY_GPUS", True),
        (["A=b"], "swarm-resources = MY_GPUS", False),
        (["A=b"], "no setting", False),
        (["OCI_ACME=all"], "", True),
        (["OCI_OTHER=all"], "", False),
        (["MY_CARDS=0"], "swarm-resources = OCI_ACME=MY_CARDS", True),
    ],
)
def test_what_fails_stops_only_a_container_that_asks(
    config: Path, monkeypatch: pytest.MonkeyPatch, env: list[str], settings: str, stops: bool
) -> None:
    """Here config.json is a link, which is never replaced."""
    file = config.with_name("settings.conf")
    file.write_text(f"{settings}\n")
    monkeypatch.setattr("oci_gpu_hook.request.settings.SETTINGS", str(file))
    known = (KnownVendor("OCI_ACME", "", "/acme.json"),)
    monkeypatch.setattr(folders, "for_container", lambda *_, **__: known)
    config.symlink_to(config.with_name("real.json"))
    assert bool(called(config, monkeypatch, json.dumps({"process": {"env": env}}))) == stops


def test_an_error_is_logged(config: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    log = config.with_name("log.json")
    assert called(config, monkeypatch, "{}", log) == 0
    assert (capfd.readouterr().err, log.exists()) == ("", False)
    assert called(config, monkeypatch, "{", log) == BundleError.exit_code
    (line,) = log.read_text().splitlines()
    assert json.loads(line)["level"] == "error"
    said = capfd.readouterr().err
    assert json.loads(line)["msg"] == said.replace("oci-gpu-hook: ", "oci-gpu-runtime: ").strip()


# --- what is left of the resources that an engine sets again: all but device rules that are config.json's own

# As containerd has them, for a container and for a privileged one.
NONE = {"allow": False, "access": "rwm"}
ALL = {"allow": True, "access": "rwm"}
FUSE = {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"}
ASKS = {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}


def with_rules(folder: Path, devices: Any, process: Any = ASKS) -> str:
    """A with_rules.json with these device rules."""
    path = folder / "config.json"
    path.write_text(json.dumps({"process": process, "linux": {"resources": {"devices": devices}}}))
    return str(path)


@pytest.mark.parametrize("rules", [[NONE], [ALL], [NONE, FUSE]])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_rules_that_are_in_force_are_left_out(tmp_path: Path, rules: Any, indent: int | None) -> None:
    """The others stay to the letter."""
    text = json.dumps({"devices": rules, "memory": {}, "cpu": {"shares": 512}}, indent=indent)
    left = update.without_devices(text.encode(), with_rules(tmp_path, rules)).decode()
    assert json.loads(left) == {"memory": {}, "cpu": {"shares": 512}}
    assert '"shares": 512' in left
    # As runc spells the rule for all devices.
    spelled = [{"type": "a", "major": -1, "minor": -1, **rule} for rule in rules]
    assert update.without_devices(json.dumps({"devices": spelled}).encode(), with_rules(tmp_path, rules)) == b"{}"
    # Behind them stand those of a CDI spec, which podman leaves out.
    for access, allow in (("rw", True), ("rwm", True), ("rw", False)):
        more = [*rules, {"allow": True, "type": "c", "access": "rw"}, {**FUSE, "access": access, "allow": allow}]
        left = update.without_devices(text.encode(), with_rules(tmp_path, more)).decode()
        assert ("devices" in left) == ((access, allow) != ("rw", True))


@pytest.mark.parametrize(
    "text",
    ['{"devices": [{"allow": false}, {"allow": true}]}', '{"devices": []}', '{"devices": null}']
    + ['{"cpu": {}}', '{"devices": 1}', "[]", "{", "", "\\xff"],
)  # fmt: skip
def test_whatever_else_is_to_be_set_stays(tmp_path: Path, text: str) -> None:
    """Other rules are somebody's own word; what is no update is the real runtime's to tell."""
    data = text.encode()
    assert update.without_devices(data, with_rules(tmp_path, [NONE])) == data


def run(data: bytes, *words: object) -> tuple[int, bytes, str]:
    """Its exit status, stdout and stderr, as the script starts it."""
    code = "from oci_gpu_hook.runtime import update; update.main()"
    line = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(line, input=data, capture_output=True, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr.decode()


# More than a pipe takes at once.
LEFT = json.dumps({"unified": {"x" * 300_000: "y"}})
SET = f'{{"devices": [{json.dumps(NONE)}], {LEFT[1:]}'.encode()


def test_from_stdin_or_a_file_to_stdout(tmp_path: Path) -> None:
    kept, file = with_rules(tmp_path, [NONE]), tmp_path / "file"
    file.write_bytes(SET)
    assert run(SET, kept, "-", "") == run(b"", kept, file, "") == (0, LEFT.encode(), "")
    # One that asks for nothing is updated, whatever its rules are.
    kept = with_rules(tmp_path, [{"allow": False, "type": 1}], process={})
    assert run(SET, kept, "-", "")[:2] == (0, SET)


def test_a_container_that_asks_is_not_updated_where_its_rules_are_not_known(tmp_path: Path) -> None:
    log, broken = tmp_path / "log.json", tmp_path / "config.json"
    broken.write_text('{"process":{"env":["NVIDIA_VISIBLE_DEVICES=0')
    code, out, err = run(SET, broken, "-", log)
    assert (code, out) == (3, b"")
    assert f"{broken} is not JSON" in err
    assert f"oci-gpu-runtime: {broken} is not JSON" in json.loads(log.read_text())["msg"]
    code, out, err = run(b"", with_rules(tmp_path, [NONE]), tmp_path / "nothing", "")
    assert (code, out) == (3, b"") and f"cannot open {tmp_path}/nothing" in err
