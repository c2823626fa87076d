# SPDX-License-Identifier: Apache-2.0
"""The saved inventory's file: what does not have its form is no inventory, and every Python reads it alike."""

from __future__ import annotations

import json
import marshal
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.host import inventory, stamp, survey
from oci_gpu_hook.host.inventory import HEADING, LENGTH_BYTES
from oci_gpu_hook.host.root import HostRoot
from tests.unit import hosts

BEGIN = len(HEADING) + LENGTH_BYTES


class Saved:
    """A host whose inventory was saved, with all kinds of records in it, and the file to spoil."""

    def __init__(self, tree: Path) -> None:
        self.root: HostRoot = hosts.host(tree)
        (tree / "run").mkdir()
        self.now = stamp.now(self.root, "/")
        self.found = survey.survey(self.root)._replace(
            mig_devices=(inventory.MigDevice(0, None, None, "", 1, 0, 1 << 40, -4),),
            misfits=(inventory.Misfit("libcuda", "compute", ""),),
        )
        self.file = Path(survey.save(self.root, self.now, self.found))
        self.data = self.file.read_bytes()

    def read(self, data: bytes) -> inventory.DriverInventory | None:
        self.file.write_bytes(data)
        return inventory.read_saved(self.root, self.now)

    def read_content(self, content: bytes) -> inventory.DriverInventory | None:
        return self.read(HEADING + len(content).to_bytes(LENGTH_BYTES, "little") + content)

    def read_rows(self, rows: Any) -> inventory.DriverInventory | None:
        return self.read_content(marshal.dumps((tuple(self.now), rows), 2))

    @property
    def rows(self) -> list[Any]:
        _, rows = marshal.loads(self.data[BEGIN:])
        return list(rows)


@pytest.fixture()
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


def test_every_record_comes_back_as_what_it_was(saved: Saved) -> None:
    """A record equals a tuple of equal fields, so their classes are asked for apart."""
    found = saved.read(saved.data)
    assert found == saved.found
    assert kinds(found) == kinds(saved.found)
    # That the tests below write what the survey writes.
    assert saved.read_rows(tuple(saved.rows)) == saved.found


def kinds(value: object) -> object:
    """The classes of a value and of all that is in it."""
    return [type(value), *map(kinds, value)] if isinstance(value, tuple) else type(value)


def test_a_name_that_is_no_text_comes_back(saved: Saved) -> None:
    name = b"/opt/\xff/\xc3\xa9".decode(errors="surrogateescape")
    library = saved.found.libraries[0]._replace(path=name)
    survey.save(saved.root, saved.now, saved.found._replace(libraries=(library,)))
    found = inventory.read_saved(saved.root, saved.now)
    assert found is not None and found.libraries[0].path == name


def test_a_file_that_was_cut_off_is_no_inventory(saved: Saved) -> None:
    sizes = {*range(BEGIN + 9), *range(0, len(saved.data), 10), len(saved.data) - 1}
    assert [size for size in sizes if saved.read(saved.data[:size]) is not None] == []


def test_a_file_of_another_length_is_no_inventory(saved: Saved) -> None:
    for bit in range(8 * LENGTH_BYTES):
        data = bytearray(saved.data)
        data[len(HEADING) + bit // 8] ^= 1 << bit % 8
        assert saved.read(bytes(data)) is None
    for more in (b"\0", b"\n", saved.data):
        assert saved.read(saved.data + more) is None


def test_a_file_of_another_format_is_no_inventory(saved: Saved) -> None:
    def headed(heading: bytes) -> bytes:
        return heading + saved.data[len(HEADING) :]

    assert saved.read(headed(HEADING)) == saved.found
    assert HEADING.endswith(b" 4\n")
    for number in (b"3", b"5", b"14", b"44", b"x", b""):
        assert saved.read(headed(HEADING[:-2] + number + b"\n")) is None
    assert saved.read(headed(HEADING.upper())) is None
    assert saved.read(headed(b"")) is None
    older = {"format": 3, "stamp": saved.now, "inventory": saved.found}
    assert saved.read(json.dumps(older).encode()) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"\xff" * 5000,
        b"0",
        b"?",
        b"r\0\0\0\0",
        b"(\x02\0\0\0",
        b"(\x02\0\0\0NN",
        b"(\x02\0\0\0u\x01\0\0\0\xffN",
        b"(\x02\0\0\0u\xff\xff\xff\x7fxN",
        b"(\x02\0\0\0l\x01\0\0\0\xff\xffN",
        b"(\x01\0\0\0" * 5000,
        *[marshal.dumps(value, 2) for value in (None, 4, "ab", (), (1,), (1, 2, 3), {1: 2, 3: 4})],
    ],
    ids=lambda content: content[:12].hex() or "nothing",
)
def test_content_that_is_no_inventory_is_none(saved: Saved, content: bytes) -> None:
    assert saved.read_content(content) is None


def test_content_whose_end_is_damaged_is_none(saved: Saved) -> None:
    """Of the length that it says."""
    content = saved.data[BEGIN:]
    for end in (b"\xff", b"u\xff\0\0\0"):
        assert saved.read_content(content[: -len(end)] + end) is None
    assert saved.read_content(content[:-1]) is None


FIELDS = ("gpus", "mig_devices", "libraries", "misfits", "binaries", "files", "firmware")


@pytest.mark.parametrize("field", FIELDS)
def test_rows_of_another_length_are_no_inventory(saved: Saved, field: str) -> None:
    at = inventory.DriverInventory._fields.index(field)
    full = saved.rows[at] or (("/a", "/b", ()),)
    for row in (full[0][:-1], (*full[0], ""), (), "a", 4, None):
        rows = saved.rows
        rows[at] = (*full, row)
        assert saved.read_rows(tuple(rows)) is None
    for wrong in ("names", 4, True, 0.5):
        rows = saved.rows
        rows[at] = wrong
        assert saved.read_rows(tuple(rows)) is None


def test_an_inventory_of_another_length_is_none(saved: Saved) -> None:
    rows = saved.rows
    for wrong in (rows[:-1], [*rows, ()], [], "x" * len(rows), "x", 4, None):
        assert saved.read_rows(tuple(wrong) if isinstance(wrong, list) else wrong) is None


def test_a_stamp_of_any_other_form_is_not_this_moments(saved: Saved) -> None:
    rows = tuple(saved.rows)
    stamp: Any
    for stamp in (None, (), "", saved.now[:-1], list(saved.now), (*saved.now, "")):
        plain = tuple(stamp) if isinstance(stamp, tuple) else stamp
        assert saved.read_content(marshal.dumps((plain, rows), 2)) is None


# What an inventory is made of, and what marshal's version 2 has for each, which no Python may have otherwise.
VALUES: dict[object, str] = {
    "a": "75 01000000 61",
    "\xe9\u20ac\udcff": "75 08000000 c3a9 e282ac edb3bf",
    -1: "69 ffffffff",
    1 << 31: "6c 03000000 0000 0000 0200",
    -(1 << 62): "6c fbffffff 0000 0000 0000 0000 0400",
    None: "4e",
    True: "54",
    False: "46",
    (): "28 00000000",
    (0, ("b",)): "28 02000000 69 00000000 28 01000000 75 01000000 62",
}
PROGRAM = """
import marshal, sys
for content, value in eval(sys.stdin.read()):
    found = marshal.loads(bytes.fromhex(content))
    assert repr(found) == repr(value), (content, found)
    assert marshal.dumps(value, 2) == bytes.fromhex(content), value
print("alike")
"""


def pythons() -> list[str]:
    """This Python, and each other on this machine that the hook can run on; pyenv's names may lead to none."""
    names = [f"python3.{minor}" for minor in range(9, 20)]
    found = [shutil.which(name) for name in names]
    found += map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3.[0-9]*"))
    named = {path for path in found if path and Path(path).name in names}
    return [sys.executable, *sorted(filter(runs, named))]


def runs(python: str) -> bool:
    return subprocess.run([python, "-ISc", ""], capture_output=True).returncode == 0


@pytest.mark.parametrize("python", pythons())
def test_every_python_of_this_machine_has_it_alike(saved: Saved, python: str) -> None:
    whole = marshal.loads(saved.data[BEGIN:])
    pairs = [(content, value) for value, content in VALUES.items()]
    asked = repr([(saved.data[BEGIN:].hex(), whole), *pairs])
    words = [python, "-ISB", "-c", PROGRAM]
    done = subprocess.run(words, input=asked, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("alike\n", "")
