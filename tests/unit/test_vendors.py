# SPDX-License-Identifier: Apache-2.0
"""The vendors' files of a host, and ``info --vendor``, on right and wrong ones; the schema says the same of both."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.vendors import folders, vendorfile, vendorrules
from tests import manual
from tests.unit.program import Program

TESTS = Path(__file__).resolve().parents[1]
DATA = TESTS / "data/vendors"
SHIPPED = TESTS.parent / "packaging/vendors"
SCHEMA = SHIPPED / "vendor.schema.json"
RIGHT = sorted({*DATA.glob("*.json"), *SHIPPED.glob("*.json")} - {SCHEMA})
# By name: what is wrong, and "KEY: sentence (remedy)", as `info --vendor` says it.
WRONG = {it[0]: it[1:] for it in [text.splitlines() for text in (DATA / "wrong.txt").read_text().split("\n\n")]}
# What a schema cannot say: that what is named is there, and which of the host's are no vendor's.
BEYOND_A_SCHEMA = {
    *("driver-feature-unknown", "placeholder-without-version"),
    *("all-devices", "consoles-driver", "device-alone", "folder-of-everybody", "engines-socket"),
    *("device-by-its-subsystem", "misc-driver"),
}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    for folder in folders.FOLDERS:
        (tmp_path / folder[1:]).mkdir(parents=True)
    return tmp_path


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    document = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(document)
    return jsonschema.Draft7Validator(document)


def plant(host: Path, path: str, **keys: Any) -> str:
    file = host / path[1:]
    file.write_text(json.dumps({"activation_flag": "OCI_X", "inventory": {"a": {}}, **keys}))
    return path


ETC, LOCAL, USR = folders.FOLDERS


NO_FILE = "not a regular file of at most 1 MiB"


def test_the_administrators_file_takes_the_place_of_another(host: Path) -> None:
    root = HostRoot(str(host))
    assert folders.list_files(root) == ()
    for folder, names in ((USR, "ab"), (LOCAL, "ab"), (ETC, "bc")):
        for name in names:
            plant(host, f"{folder}/{name}.json")
    for path in (f"{USR}/.d.json", f"{ETC}/e.json.rpmsave", f"{ETC}/f.JSON"):
        plant(host, path)
    assert folders.list_files(root) == (f"{LOCAL}/a.json", f"{ETC}/b.json", f"{ETC}/c.json")
    # Of three the nearest to the administrator counts.
    assert folders.replaced(root) == {f"{ETC}/b.json": f"{LOCAL}/b.json", f"{LOCAL}/a.json": f"{USR}/a.json"}
    assert folders.load(root, f"{ETC}/c.json").file == f"{ETC}/c.json"


def test_so_many_files_and_no_more(host: Path) -> None:
    for number in range(folders.MAX_FILES):
        plant(host, f"{USR}/{number}.json")
    plant(host, f"{ETC}/1.json")
    assert len(folders.list_files(HostRoot(str(host)))) == folders.MAX_FILES
    plant(host, f"{ETC}/x.json")
    with pytest.raises(ConfigError, match="more than 256"):
        folders.list_files(HostRoot(str(host)))


def replaced_by(file: Path, make: Callable[[Path], object]) -> None:
    file.unlink()
    make(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda file: file.parent.chmod(0o777), "others than root may write to"),
        (lambda file: file.chmod(0o664), "others than root may write to it"),
        (lambda file: os.chown(file, 1000, 1000), "it is user 1000's"),
        (lambda file: file.write_bytes(b" " * ((1 << 20) + 1)), NO_FILE),
        (lambda file: replaced_by(file, os.mkfifo), NO_FILE),
        (lambda file: replaced_by(file, lambda it: it.symlink_to("nothing")), NO_FILE),
    ],
)
def test_what_is_not_roots_is_no_file(host: Path, change: Callable[[Path], object], says: str) -> None:
    change(host / plant(host, f"{ETC}/a.json")[1:])
    with pytest.raises(ConfigError, match=f"{ETC}/a.json: .*{says}"):
        folders.load(HostRoot(str(host)), f"{ETC}/a.json")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_named(name: str, tmp_path: Path, program: Program, schema: jsonschema.Draft7Validator) -> None:
    path, (text, sentence) = tmp_path / "x.json", WRONG[name]
    path.write_text(text)
    assert program.mistake(4, "info", "--vendor", path) == f"oci-gpu-hook: {path}: {sentence}\n"
    assert sentence.endswith(")")
    assert schema.is_valid(json.loads(text)) == (name in BEYOND_A_SCHEMA)


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.name)
def test_a_right_file_is_summed_up(path: Path, program: Program, schema: jsonschema.Draft7Validator) -> None:
    assert program("info", "--vendor", path).startswith(f"{path}: OCI_")
    assert program.document("info", "--vendor", path)["file"] == str(path)
    schema.validate(json.loads(path.read_text()))


def test_in_its_folder_a_file_must_be_roots_alone(host: Path, program: Program) -> None:
    path = plant(host, f"{ETC}/x.json")
    assert program("info", "--vendor", path, "--host-root", host) == f"{path}: OCI_X gets a: nothing\n"
    (host / ETC[1:]).chmod(0o777)
    said = program.mistake(4, "info", "--vendor", path, "--host-root", host)
    assert path in said and "others than root may write to" in said and "chown root" in said


def test_a_flag_or_a_kind_of_another_file_is_said(host: Path, tmp_path: Path, program: Program) -> None:
    plant(host, f"{USR}/x.json", kind="x.com/card")
    (tmp_path / "y.json").write_text('{"inventory": {"a": {}},\n\n"activation_flag": "OCI_X"}')
    said = program.mistake(4, "info", "--vendor", tmp_path / "y.json", "--host-root", host)
    assert f"y.json: OCI_X is the flag of {tmp_path}/y.json and of {USR}/x.json" in said
    (tmp_path / "y.json").write_text('{"inventory": {"a": {}}, "activation_flag": "OCI_Y", "kind": "x.com/card"}')
    said = program.mistake(4, "info", "--vendor", tmp_path / "y.json", "--host-root", host)
    assert f"y.json: x.com/card is the kind of {tmp_path}/y.json and of {USR}/x.json" in said
    # That one it would take the place of.
    shutil.copy(tmp_path / "y.json", tmp_path / "x.json")
    assert "OCI_Y" in program("info", "--vendor", tmp_path / "x.json", "--host-root", host)


def test_a_file_to_check_has_a_bound(tmp_path: Path, program: Program) -> None:
    (tmp_path / "x.json").write_bytes(b" " * ((1 << 20) + 1))
    assert "larger than 1 MiB" in program.mistake(4, "info", "--vendor", tmp_path / "x.json")


def test_list_has_every_file_and_what_is_wrong(host: Path, program: Program) -> None:
    assert program("info", "--vendors", "--host-root", host).startswith("no vendor's file in ")
    plant(host, f"{USR}/a.json", activation_flag="OCI_A", kind="a.com/card", version={"module": "a"})
    plant(host, f"{ETC}/a.json", activation_flag="OCI_A", version={"file": "/sys/x"})
    plant(host, f"{USR}/b.json", activation_flag="OCI_B", kind="b.com/card", version="1.0")
    plant(host, f"{USR}/c.json", activation_flag="OCI_B")
    plant(host, f"{USR}/d.json", activation_flag="D")
    found = program.document("info", "--vendors", "--host-root", host)
    names = ("flag", "kind", "version", "groups", "file", "replaces", "here")
    here = {"hardware": "", "version": "", "devices": []}
    # Of two files that have one flag none says what is here.
    assert found["vendors"] == [
        dict(zip(names, ("OCI_A", "", "in /sys/x", ["a"], f"{ETC}/a.json", f"{USR}/a.json", here))),
        dict(zip(names, ("OCI_B", "b.com/card", "1.0", ["a"], f"{USR}/b.json", "", None))),
        dict(zip(names, ("OCI_B", "", "", ["a"], f"{USR}/c.json", "", None))),
    ]
    (broken,) = found["errors"]
    assert broken.startswith(f"{USR}/d.json: ")
    collision = f"OCI_B is the flag of {USR}/b.json and of {USR}/c.json"
    assert found["collisions"] == {"OCI_B": collision}
    lines = program("info", "--vendors", "--host-root", host).splitlines()
    assert lines[0].split() == ["FLAG", "KIND", "DEVICES", "VERSION", "GROUPS", "FILE"]
    assert lines[2].split() == ["OCI_B", "b.com/card", "-", "-", "a", f"{USR}/b.json"]
    assert lines[4:] == [
        "",
        f"{ETC}/a.json has taken the place of {USR}/a.json",
        f"wrong: {broken}",
        f"collision: {collision}",
    ]


# --- the schema, for editors: the program has one grammar, that of a start, and these tests keep the two alike


def test_the_shipped_files_have_flags_of_their_own() -> None:
    shipped = [path for path in RIGHT if path.parent == SHIPPED]
    found = [vendorfile.parse_vendor(path.read_bytes(), path.name) for path in shipped]
    assert folders.collisions(found) == {}


def test_the_schema_has_the_keys_that_are_read(schema: jsonschema.Draft7Validator) -> None:
    document: Any = schema.schema
    kinds = document["definitions"]
    assert set(document["properties"]) == set(vendorfile._KEYS)
    assert set(kinds["group"]["properties"]) == set(vendorfile._LISTS)
    assert set(kinds["device"]["properties"]) == set(vendorfile._DEVICE_KEYS)
    assert set(kinds["item"]["properties"]) == set(vendorfile._ITEM_KEYS)


PATHS = """
/usr/x /usr/x/ /usr//x /usr/x// /usr/.. /usr/../x /usr/./x /usr/x/.. /usr/.x /usr/..x /usr/x.. /usr/x/. /var/x usr/x
/opt/x-{version}/y /opt/{x}/y /opt/{version /usr/y* /opt/[a-z]/x / /usr /sys/x/y /sys//x /sys/../x
/proc/driver/x/version /proc/x
"""


@pytest.mark.parametrize("path", PATHS.split())
@pytest.mark.parametrize("key", ["path", "target", "device", "version"])
def test_the_schema_and_the_program_agree_on_paths(path: str, key: str, schema: jsonschema.Draft7Validator) -> None:
    items: dict[str, Any] = {
        "path": {"miscellaneous": [{"path": path}]},
        "target": {"miscellaneous": [{"path": "/usr/x", "target": path}]},
        "version": {},
        "device": {"devices": [{"path": path.replace("/usr/", "/dev/").replace("/opt/", ""), "major": "x"}]},
    }
    version = {"file": path} if key == "version" else "1"
    document = {"activation_flag": "OCI_X", "version": version, "inventory": {"a": items[key]}}
    try:
        vendorfile.parse_vendor(json.dumps(document).encode(), "x.json")
        is_right = True
    except ConfigError:
        is_right = False
    assert schema.is_valid(document) == is_right


def test_the_manual_has_every_key() -> None:
    """Each in its section, with its type; a list of a group is one by what is said above all of them."""
    text = manual.sections("oci-gpu-hook-vendors.5")
    ignored = {"$schema", "log_level"}
    for section, keys in (
        ("KEYS", set(vendorfile._KEYS) - ignored),
        ("DEVICES", set(vendorfile._DEVICE_KEYS)),
        ("GROUPS", {*vendorfile._LISTS, *vendorfile._ITEM_KEYS}),
    ):
        described = set(re.findall(r"^\*\*([a-z_]+)\*\*", text[section], re.M))
        assert described == keys
    assert all([f"**{key}**" in text["KEYS"] for key in ignored])
    typed = re.findall(r"^\*\*([a-z_]+)\*\* \((?:string|object|list|true)", text["KEYS"], re.M)
    assert set(typed) == set(vendorfile._KEYS) - ignored


def test_the_manual_names_the_bounds_and_the_folders() -> None:
    page = manual.source("oci-gpu-hook-vendors.5")
    for bound in (folders.MAX_FILES, vendorfile.MAX_ITEMS, vendorfile.MAX_DEVICES):
        assert f"{bound} " in page
    for folder in (*folders.FOLDERS, *vendorrules.FOLDERS):
        assert f"*{folder}*" in page
