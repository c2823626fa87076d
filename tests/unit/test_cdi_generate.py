# SPDX-License-Identifier: Apache-2.0
"""`cdi generate`: a document that the schema of CDI allows, in YAML and JSON, written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from oci_gpu_hook import cli, hook
from oci_gpu_hook.cli import cdi as command
from oci_gpu_hook.errors import ApplyError, UsageError
from tests.unit import cdi_engine, hosts
from tests.unit.cdi_engine import Node
from tests.vocabulary.host import FACTS, MIG_UUID, UUID, plant

SCHEMAS = Path(__file__).parents[1] / "data/cdi-schema"
# A device's name (SPEC.md, "CDI JSON Specification"): from 0.5.0 on it may begin with a digit.
DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Node:
    tree = tmp_path_factory.mktemp("tree")
    plant(tree).close()
    return cdi_engine.node(tree, tmp_path_factory.mktemp("of"), FACTS)


def generate(host: Node, *words: str) -> int:
    settings = ["--config", str(host.settings)]
    return cli.main(["cdi", "generate", "--host-root", str(host.tree), *settings, *words])


def validator() -> jsonschema.Draft7Validator:
    defs, schema = [
        json.loads((SCHEMAS / f"{name}.json").read_text()) for name in ("defs", "schema")
    ]
    # In one document, so that no reference leads out of it.
    text = json.dumps({**schema, **defs}).replace("defs.json#", "#")
    return jsonschema.Draft7Validator(json.loads(text))


@pytest.mark.parametrize("capabilities", ["all", "utility", "graphics,compute"])
def test_the_document_is_as_the_schema_says(host: Node, capabilities: str) -> None:
    validator().validate(host.spec(capabilities))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("devices",), None),
        (("devices", 0, "containerEdits"), None),
        (("containerEdits", "hooks", 0, "path"), None),
        (("containerEdits", "hooks", 0, "timeout"), "30"),
        (("containerEdits", "env"), "A=B"),
        (("containerEdits", "mounts", 0, "hostPath"), 1),
        (("containerEdits", "deviceNodes", 0, "major"), "195"),
    ],
)
def test_the_schema_refuses_what_is_wrong(host: Node, path: tuple[Any, ...], value: object) -> None:
    """The test above can fail."""
    document = json.loads(json.dumps(host.spec("all")))
    *way, last = path
    parent = document
    for key in way:
        parent = parent[key]
    if value is None:
        del parent[last]
    else:
        parent[last] = value
    assert not validator().is_valid(document)


def test_what_the_schema_does_not_say_holds_too(host: Node) -> None:
    spec = host.spec("all")
    names = [device["name"] for device in spec["devices"]]
    assert names == ["0", UUID, "1", hosts.uuid(0), "0:0", MIG_UUID, "all"]
    assert all(DEVICE_NAME.fullmatch(name) for name in names)
    (started,) = spec["containerEdits"]["hooks"]
    assert started["hookName"] in STAGES
    assert started["path"].startswith("/")
    for edits in (spec, *spec["devices"]):
        found = edits["containerEdits"]
        assert found and all(found.values()), "engines refuse an edit that edits nothing"
        for mount in found.get("mounts", ()):
            assert mount["hostPath"].startswith("/") and mount["containerPath"].startswith("/")
        for node in found.get("deviceNodes", ()):
            assert "m" not in node["permissions"]


def test_the_specs_hook_is_started_with_what_the_hook_understands(host: Node) -> None:
    program, stage, *words = host.spec("graphics,utility")["containerEdits"]["hooks"][0]["args"]
    options = hook.Options(words)
    assert (program, stage) == ("oci-gpu-hook", "createRuntime")
    assert (options.cdi, options.cdi_driver) == ("utility,graphics", hosts.VERSION)
    assert options.config == str(host.settings)


@pytest.mark.parametrize(
    ("file", "prefix"),
    [
        ("/usr/lib/oci-gpu-hook/oci_gpu_hook/cli/cdi.py", "/usr"),
        ("/opt/a/lib/oci-gpu-hook/oci_gpu_hook/cli/cdi.py", "/opt/a"),
        ("/sources/oci_gpu_hook/cli/cdi.py", "/usr"),
    ],
)
def test_the_specs_hook_is_the_one_that_was_installed_with_us(file: str, prefix: str) -> None:
    assert command.door_of(file) == f"{prefix}/libexec/oci/hooks.d/oci-gpu-hook"


def test_yaml_and_json_are_one_document(host: Node, capsys: pytest.CaptureFixture[str]) -> None:
    for form, reads in (("yaml", yaml.safe_load), ("json", json.loads)):
        assert generate(host, "--format", form) == 0
        assert reads(capsys.readouterr().out) == host.spec("all")


def test_the_form_follows_the_files_name(host: Node, tmp_path: Path) -> None:
    for name, begins in (("a.json", "{"), ("a.yaml", "---\n"), ("a", "---\n")):
        assert generate(host, "--output", str(tmp_path / name)) == 0
        assert (tmp_path / name).read_text().startswith(begins)
        assert command.read(str(tmp_path / name)) == host.spec("all")


def test_a_spec_is_written_in_its_place(host: Node, tmp_path: Path) -> None:
    file = tmp_path / "new/folder/nvidia.yaml"
    assert generate(host, "--output", str(file), "--capabilities", "utility") == 0
    before = file.stat()
    assert before.st_mode & 0o7777 == 0o644
    assert generate(host, "--output", str(file)) == 0
    assert file.stat().st_ino != before.st_ino, "written into, while an engine may read it"
    assert os.listdir(file.parent) == ["nvidia.yaml"]
    assert command.read(str(file)) == host.spec("all")


def test_engines_never_see_a_half_written_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment before it is in its place nothing there ends as a spec's name does."""
    seen: list[list[str]] = []
    rename = os.rename

    def looking(old: str, new: str) -> None:
        seen.append(os.listdir(tmp_path))
        rename(old, new)

    monkeypatch.setattr(os, "rename", looking)
    command.write(str(tmp_path / "nvidia.yaml"), "text")
    assert len(seen[0]) == 1
    assert not seen[0][0].endswith((".yaml", ".json"))


def _limited(path: Path, text: str) -> int:
    """Write in a process that may write no file beyond four kibibytes; gives the errno, 0 for none."""
    import resource
    import signal

    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            command.write(str(path), text)
        except ApplyError as err:
            os._exit(err.__cause__.errno or 255 if isinstance(err.__cause__, OSError) else 255)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_spec_that_cannot_be_written_whole_leaves_the_old_one(host: Node, tmp_path: Path) -> None:
    file = tmp_path / "nvidia.json"
    assert generate(host, "--output", str(file)) == 0
    before = file.read_bytes()
    assert len(before) > 4096
    assert _limited(file, before.decode()) == errno.EFBIG
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["nvidia.json"]


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f".nvidia.yaml.{os.getpid()}").write_text("half of a sp")
    command.write(str(tmp_path / "nvidia.yaml"), "text")
    assert os.listdir(tmp_path) == ["nvidia.yaml"]
    assert (tmp_path / "nvidia.yaml").read_text() == "text"


FOREIGN = (
    "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n",
    '{"kind": "nvidia.com/gpu"}',
    "---\ncdiVersion: 0.5.0\n",
    "\0\xff",
)


@pytest.mark.parametrize("text", FOREIGN)
def test_anothers_file_is_not_written_over(
    host: Node, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nvidia.yaml"
    file.write_bytes(text.encode("latin-1"))
    assert generate(host, "--output", str(file)) == 2
    assert f"{file} is there and is no CDI spec of ours" in capsys.readouterr().err
    assert file.read_bytes() == text.encode("latin-1")


def test_a_link_is_not_followed_and_not_replaced(host: Node, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    file = tmp_path / "nvidia.yaml"
    file.symlink_to(target)
    with pytest.raises(UsageError, match="is no plain file"):
        command.write(str(file), "text")
    assert file.is_symlink()
    assert target.read_text() == "precious"


def test_an_empty_file_is_anybodys(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").touch()
    command.write(str(tmp_path / "nvidia.yaml"), "text")
    assert (tmp_path / "nvidia.yaml").read_text() == "text"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--capabilities", "gpu"], 2, "unknown capability 'gpu' in --capabilities"),
        (["--capabilities", "all,\x1b[2J"], 2, "unknown capability '\\x1b[2J'"),
        (["--capabilities", ""], 2, "--capabilities names none"),
        (["--capabilities", " , "], 2, "--capabilities names none"),
        (["--hook", "hook"], 2, "--hook is 'hook', which is no absolute path"),
        (["--hook", "/a\nb"], 2, "--hook is '/a\\nb'"),
        (["--hook", "/\udcff"], 2, "--hook is"),
        (["--format", "toml"], 2, "invalid value for '--format'"),
        (["--output", "/dev/null"], 2, "/dev/null is there and is no plain file"),
        (["--output", "/"], 2, "no file's name"),
        (["--output", "/dev/null/x.yaml"], 7, "cannot write /dev/null/x.yaml: Not a directory"),
        (["--output", ""], 2, "--output is empty"),
        (["--output", "/dev/shm/\udcff\n.yaml/"], 2, "--output is '/dev/shm/\\udcff\\n.yaml/'"),
        (["--host-root", "/nowhere"], 2, "cannot open --host-root /nowhere"),
        (["--config", "/nowhere"], 4, "/nowhere"),
        (["more"], 2, "unexpected extra argument"),
    ],
)
def test_mistakes_are_one_sentence_with_the_documented_code(
    host: Node, capsys: pytest.CaptureFixture[str], words: list[str], code: int, sentence: str
) -> None:
    assert generate(host, *words) == code
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.startswith("oci-gpu-hook: ")
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""


def test_a_spec_has_what_the_administrator_allows(
    host: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings").write_text("allowed-capabilities = utility, compute\n")
    limited = host._replace(settings=tmp_path / "settings")
    assert generate(limited, "--format", "json", "--capabilities", "compute,graphics") == 0
    spec = json.loads(capsys.readouterr().out)
    assert "compute" in spec["containerEdits"]["hooks"][0]["args"]
    assert generate(limited, "--capabilities", "graphics") == 2
    assert "none of the capabilities graphics is allowed" in capsys.readouterr().err


def test_mig_devices_that_only_nvml_could_name_are_told(
    host: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(host, "--format", "json") == 0
    assert capsys.readouterr().err == ""
    tree = tmp_path / "tree"
    plant(tree).close()
    unasked = cdi_engine.node(tree, tmp_path, None)
    assert generate(unasked, "--format", "json") == 0
    shown = capsys.readouterr()
    assert not any(":" in device["name"] for device in json.loads(shown.out)["devices"])
    (said,) = shown.err.splitlines()
    assert "the CDI spec names 1 MIG device by 'all' only" in said
    assert "inventory refresh" in said


def test_a_host_without_driver_or_libraries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    settings = tmp_path / "settings"
    settings.touch()
    assert generate(Node(tree, settings, tmp_path)) == 6
    hosts.host(tree).close()
    for file in (tree / hosts.LIBRARY_FOLDER).iterdir():
        file.unlink()
    assert generate(Node(tree, settings, tmp_path)) == 6
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 2
    assert "the driver's libraries are not there" in shown.err


@pytest.mark.parametrize(
    "words",
    [
        ["--cdi", "utility,gpu"],
        ["--cdi", "utility,,compute"],
        ["--cdi="],
        ["--cdi-driver"],
        ["--cdi"],
    ],
)
def test_the_hook_refuses_a_spec_that_starts_it_wrongly(words: list[str]) -> None:
    with pytest.raises(UsageError):
        hook.Options(words)
