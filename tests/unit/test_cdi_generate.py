# SPDX-License-Identifier: Apache-2.0
"""`cdi generate`: a document that the schema of CDI allows, in YAML and JSON, written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import yaml

from oci_gpu_hook.cli import cdi as command
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.errors import ApplyError, HookError, UsageError
from oci_gpu_hook.node.engines import cdispecs, installed
from oci_gpu_hook.node.setup import cdispec
from oci_gpu_hook.operations import Mount
from tests.unit import cdi_engine, hosts
from tests.unit.cdi_engine import Node
from tests.unit.program import Program
from tests.vocabulary.host import FACTS, MIG_UUID, UUID, plant

SCHEMAS = Path(__file__).parents[1] / "data/cdi-schema"
# A device's name (SPEC.md, "CDI JSON Specification"): from 0.5.0 on it may begin with a digit.
DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


CHANNEL = "/dev/nvidia-caps-imex-channels/channel3"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Node:
    tree = tmp_path_factory.mktemp("tree")
    plant(tree)
    hosts.plant(tree, CHANNEL, "")
    return cdi_engine.node(tree, tmp_path_factory.mktemp("of"), FACTS)


def generate(host: Node, *words: object) -> list[object]:
    """The words of a command for this host."""
    return ["cdi", "generate", "--host-root", host.tree, "--config", host.settings, *words]


def test_a_dash_is_stdout(host: Node, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = program(*generate(host))
    assert program(*generate(host, "--output", "-")) == text
    assert json.loads(text) == yaml.safe_load(text) == host.spec("all")
    assert list(tmp_path.iterdir()) == []


def test_what_was_generated_is_removed_and_nothing_else(
    host: Node, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, link = tmp_path / "ours.json", tmp_path / "link.json"
    program(*generate(host, "--output", ours))
    link.symlink_to(ours)
    assert "is not a regular file" in program.mistake(2, "cdi", "remove", link)
    assert program("cdi", "remove", ours) == f"removed {ours}\n"
    assert program("cdi", "remove", ours) == f"there is no spec in {ours}\n"
    ours.write_text('{"kind": "nvidia.com/gpu"}')
    assert "is there and is not a CDI spec of ours" in program.mistake(2, "cdi", "remove", ours)
    assert sorted(tmp_path.iterdir()) == [link, ours]
    # Without a file, of all that engines read only those of ours.
    program(*generate(host, "--output", more := tmp_path / "more.json"))
    listed = [SimpleNamespace(path=str(path), is_ours=path == more) for path in (ours, more)]
    monkeypatch.setattr(cdispecs, "specs", lambda *_: listed)
    assert program("cdi", "remove") == f"removed {more}\n"


def test_a_spec_of_management_has_the_imex_channels_of_the_host(host: Node, program: Program) -> None:
    (device,) = json.loads(program(*generate(host, "--kind", "management")))["devices"]
    assert CHANNEL in [node["path"] for node in device["containerEdits"]["deviceNodes"]]


def validator() -> jsonschema.Draft7Validator:
    defs, schema = [json.loads((SCHEMAS / f"{name}.json").read_text()) for name in ("defs", "schema")]
    # In one document, so that no reference leads out of it.
    text = json.dumps({**schema, **defs}).replace("defs.json#", "#")
    return jsonschema.Draft7Validator(json.loads(text))


def test_the_document_is_as_the_schema_says_and_what_that_does_not_say_holds_too(host: Node) -> None:
    spec = host.spec("all")
    validator().validate(spec)
    names = [device["name"] for device in spec["devices"]]
    assert names == ["0", UUID, "1", hosts.uuid(0), "0:0", MIG_UUID, "all", "none"]
    assert all(DEVICE_NAME.fullmatch(name) for name in names)
    (started,) = spec["containerEdits"]["hooks"]
    assert started["hookName"] in STAGES
    assert started["path"].startswith("/")
    for edits in (spec, *spec["devices"]):
        found = edits["containerEdits"]
        assert found and all(found.values()), "engines refuse an edit that edits nothing"
        for node in found.get("deviceNodes", ()):
            assert "m" not in node["permissions"]


@pytest.mark.parametrize(
    ("file", "prefix"),
    [
        ("/usr/lib/oci-gpu-hook/oci_gpu_hook/cli/cdi.py", "/usr"),
        ("/opt/a/lib/oci-gpu-hook/oci_gpu_hook/cli/cdi.py", "/opt/a"),
        ("/usr/local/lib/oci-gpu-hook/1234-cpython-39/oci_gpu_hook/cli/cdi.py", "/usr/local"),
        ("/sources/oci_gpu_hook/cli/cdi.py", "/usr"),
    ],
)
def test_the_specs_hook_is_the_one_that_was_installed_with_us(file: str, prefix: str) -> None:
    assert installed.prefix_of(file) == prefix


def test_each_program_reads_the_text_of_a_path_alike() -> None:
    """YAML has no pairs of surrogates, and no control characters."""
    document = {"path": "/\x07\x7f\x85\u2028\ufeffä\U0001f600"}
    text = cdispec.text(document)
    assert json.loads(text) == yaml.safe_load(text) == cdispecs.parsed(text) == document


def test_a_spec_is_written_in_its_place(program: Program, host: Node, tmp_path: Path) -> None:
    file = tmp_path / "new/folder/nvidia.yaml"
    program(*generate(host, "--output", file, "--capabilities", "utility"))
    before = file.stat()
    assert before.st_mode & 0o7777 == 0o644
    # An empty file is anybody's.
    file.write_text("")
    program(*generate(host, "--output", file))
    assert file.stat().st_ino != before.st_ino, "written into, while an engine may read it"
    assert os.listdir(file.parent) == ["nvidia.yaml"]
    assert json.loads(file.read_text()) == host.spec("all")


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_half_written_spec_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Engines never see a half: until the new one is in its place nothing else there has a spec's name."""
    file = tmp_path / "nvidia.json"
    file.write_text('{"containerEdits": {"hooks": [{"args": ["oci-gpu-hook", "x", "--cdi", "compute"]}]}}')
    before = file.read_text()

    def fail(*words: object, **more: object) -> None:
        (other,) = {*os.listdir(tmp_path)} - {"nvidia.json"}
        assert not other.endswith((".yaml", ".json"))
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ApplyError, match=r"Disk quota exceeded .make room on the file system"):
        command.write(str(file), {})
    assert (file.read_text(), os.listdir(tmp_path)) == (before, ["nvidia.json"])


def test_no_file_of_another_is_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared by whom the folder belongs to: the name that he hits, of all that it may be, is an error."""
    monkeypatch.setattr(os, "urandom", bytes)
    os.mkfifo(tmp_path / f".more.yaml.{'00' * 8}")
    with pytest.raises(ApplyError, match="File exists"):
        command.write(str(tmp_path / "more.yaml"), {})


def test_our_own_spec_is_written_over_in_yaml_too_and_no_others(program: Program, host: Node, tmp_path: Path) -> None:
    """As an earlier version wrote it, or somebody's YAML tool since: doctor takes it for ours, and says to write it."""
    file = tmp_path / "nvidia.yaml"
    for text in (b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", b'{"kind": "nvidia.com/gpu"}', b"\0\xff"):
        file.write_bytes(text)
        said = program.mistake(2, *generate(host, "--output", file))
        assert f"{file} is there and is not a CDI spec of ours" in said
        assert file.read_bytes() == text
    before = yaml.safe_dump(host.spec("all"))
    file.write_text(before)
    program(*generate(host, "--output", file))
    assert file.read_text() != before and json.loads(file.read_text()) == yaml.safe_load(before)


def test_a_fifo_that_comes_meanwhile_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the name and the reading: no process writes to it, so what opens it would wait for ever."""
    (tmp_path / "before").write_text("{}")
    regular = os.lstat(tmp_path / "before")
    os.mkfifo(tmp_path / "nvidia.yaml")
    monkeypatch.setattr(os, "lstat", lambda *_: regular)
    with pytest.raises(HookError, match=r"nvidia\.yaml"):
        command.write(str(tmp_path / "nvidia.yaml"), {})


def test_a_spec_has_what_the_administrator_allows(program: Program, host: Node, tmp_path: Path) -> None:
    (tmp_path / "settings").write_text("allowed-capabilities = utility, compute\n")
    limited = host._replace(settings=tmp_path / "settings")
    spec = json.loads(program(*generate(limited, "--capabilities", "compute,graphics")))
    assert "compute" in spec["containerEdits"]["hooks"][0]["args"]
    said = program.mistake(2, *generate(limited, "--capabilities", "graphics"))
    assert "none of the capabilities graphics is allowed" in said


def test_mig_devices_that_only_nvml_could_name_are_counted(program: Program, host: Node, tmp_path: Path) -> None:
    program(*generate(host))
    assert program.err == ""
    plant(tmp_path / "tree")
    unnamed = json.loads(program(*generate(cdi_engine.node(tmp_path / "tree", tmp_path))))
    assert not any(":" in device["name"] for device in unnamed["devices"])
    (said,) = program.err.splitlines()
    assert "MIG devices that the CDI spec names by 'all' only: 1" in said
    assert "inventory refresh" in said


def test_a_host_without_driver_or_libraries(program: Program, tmp_path: Path) -> None:
    host = Node(tmp_path / "tree", tmp_path / "settings", tmp_path)
    host.tree.mkdir()
    host.settings.touch()
    assert "this host has no NVIDIA driver" in program.mistake(6, *generate(host))
    hosts.host(host.tree)
    for file in (host.tree / hosts.LIBRARY_FOLDER).iterdir():
        file.unlink()
    assert "libnvidia-ml is missing" in program.mistake(6, *generate(host))


def test_a_spec_without_a_hook_and_one_with_groups_are_as_the_schema_says(host: Node, tmp_path: Path) -> None:
    nodes = tuple([(name, (DeviceNode(f"/dev/x{name}", 240, 1, 0o660, 0, 44, True),)) for name in ("0", "1")])
    mount = Mount("/etc/x", "/etc/x", ("ro",), False, "why")
    for groups in (True, False):
        spec = cdispec.of_nodes("nvidia.com/imex-channel", nodes, (mount,), groups=groups)
        validator().validate(spec)
        assert cdispecs.origin_of(spec).kind == "nvidia.com/imex-channel"
        assert cdispecs.origin_of(cdispecs.parsed(cdispec.text(spec))).kind == "nvidia.com/imex-channel"
        command.write(str(tmp_path / "imex.json"), spec)
    with pytest.raises(UsageError, match="is there and is the CDI spec of"):
        command.write(str(tmp_path / "imex.json"), cdispec.of_nodes("nvidia.com/gds", nodes, (), groups=False))
    assert cdispecs.origin_of(host.spec("all")).kind == cdispecs.origin_of({"containerEdits": {}}).kind == ""
