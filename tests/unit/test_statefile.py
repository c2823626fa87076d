# SPDX-License-Identifier: Apache-2.0
"""Files in /run: none is read that others may have written, and none is an inventory that does not have its form."""

from __future__ import annotations

import fcntl
import marshal
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from oci_gpu_hook.driver import inventory, proc, survey
from oci_gpu_hook.driver.inventory import HEADING
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.statefile import LENGTH_BYTES
from tests.unit import hosts

pytestmark = pytest.mark.pythons

BEGIN = len(HEADING) + LENGTH_BYTES


@pytest.fixture()
def root(tmp_path: Path) -> HostRoot:
    """A host with one file that was saved."""
    (tmp_path / statefile.FOLDER[1:]).mkdir(parents=True, mode=0o755)
    root = HostRoot(str(tmp_path))
    statefile.write(root, "name", b"data")
    return root


def test_a_saved_file_is_one_that_all_may_read(root: HostRoot) -> None:
    folder = Path(root.path, statefile.FOLDER[1:])
    folder.rename(f"{folder}.before")
    os.umask(0o077)
    statefile.write(root, "name", b"more data")
    assert statefile.read_file(root, "name") == b"more data"
    assert [path.name for path in folder.iterdir()] == ["name"]
    assert [it.stat().st_mode & 0o777 for it in (folder, folder / "name")] == [0o755, 0o644]


def test_what_a_killed_one_of_the_same_pid_left_is_replaced(root: HostRoot) -> None:
    hosts.plant(Path(root.path), f"{statefile.FOLDER}/name.{os.getpid()}", "half")
    statefile.write(root, "name", b"whole")
    assert statefile.read_file(root, "name") == b"whole"
    assert os.listdir(root.path + statefile.FOLDER) == ["name"]


def test_what_is_too_large_to_be_read_is_not_written(root: HostRoot) -> None:
    statefile.write(root, "name", b"x" * statefile.LARGEST)
    with pytest.raises(OSError, match="would not be read"):
        statefile.write(root, "name", b"x" * (statefile.LARGEST + 1))
    assert len(statefile.read_file(root, "name") or b"") == statefile.LARGEST
    assert os.listdir(root.path + statefile.FOLDER) == ["name"]


def test_nothing_is_written_where_others_may_write(root: HostRoot) -> None:
    os.chmod(root.path + statefile.FOLDER, 0o777)
    with pytest.raises(PermissionError):
        statefile.write(root, "name", b"more")


def test_a_refresh_is_wanted_again_only_after_a_while(root: HostRoot) -> None:
    """A container that restarts must not start refreshes without end; a clock that was set back stops no wish."""
    file = Path(root.path, statefile.FOLDER[1:], statefile.REFRESH_WANTED)
    wishes = []
    for age in (0, statefile.REFRESH_INTERVAL - 10, statefile.REFRESH_INTERVAL + 1, -60):
        if file.exists():
            os.utime(file, (time.time() - age,) * 2)
        before = file.exists() and file.stat().st_mtime_ns
        statefile.want_refresh(root)
        wishes.append(file.stat().st_mtime_ns != before)
    assert wishes == [True, False, True, True]


class Saved:
    """A host whose inventory was saved, with all kinds of records in it, and the file to spoil."""

    def __init__(self, tree: Path) -> None:
        self.root: HostRoot = hosts.host(tree)
        hosts.saved(self.root)
        self.now = proc.stamp(self.root, "/")
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
def written(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


def test_every_record_comes_back_as_what_it_was(written: Saved) -> None:
    """A record equals a tuple of equal fields, so their classes are compared too."""
    found = written.read(written.data)
    assert found == written.found
    assert kinds(found) == kinds(written.found)
    # That the tests below write what the survey writes.
    assert written.read_rows(tuple(written.rows)) == written.found


def kinds(value: object) -> object:
    """The classes of a value and of all that is in it."""
    return [type(value), *map(kinds, value)] if isinstance(value, tuple) else type(value)


def test_a_name_that_is_no_text_comes_back(written: Saved) -> None:
    name = b"/opt/\xff/\xc3\xa9".decode(errors="surrogateescape")
    library = written.found.libraries[0]._replace(path=name)
    survey.save(written.root, written.now, written.found._replace(libraries=(library,)))
    found = inventory.read_saved(written.root, written.now)
    assert found is not None and found.libraries[0].path == name


def test_content_that_is_no_inventory_is_none(written: Saved) -> None:
    """tests/integration/test_inventory_file.py has more, the fuzz target saved-inventory any."""
    values: tuple[Any, ...] = (None, "ab", (1,), (1, 2, 3), {1: 2, 3: 4})
    for content in (b"", b"\xff", b"r\0\0\0\0", b"(\x01\0\0\0" * 5000, *[marshal.dumps(it, 2) for it in values]):
        assert written.read_content(content) is None
    assert [end for end in range(0, len(written.data), 10) if written.read(written.data[:end])] == []
    assert written.read(HEADING[:-2] + b"x\n" + written.data[len(HEADING) :]) is None
    assert written.read(written.data + b"\n") is None


def test_rows_of_another_form_are_no_inventory(written: Saved) -> None:
    """Of each kind of records: those that have a field less, a field more, or are none."""
    for name in ("gpus", "mig_devices", "libraries", "misfits", "binaries", "firmware"):
        at = inventory.DriverInventory._fields.index(name)
        kept = written.rows[at]
        for wrong in ((*kept, kept[0][:-1]), (*kept, (*kept[0], "")), (*kept, None), "names", 4):
            rows = written.rows
            rows[at] = wrong
            assert written.read_rows(tuple(rows)) is None
    for others in (written.rows[:-1], [*written.rows, ()], []):
        assert written.read_rows(tuple(others)) is None


def test_every_python_has_it_alike(written: Saved) -> None:
    """All kinds of values that an inventory is made of, as marshal's version 2 has them: this runs on each Python."""
    assert written.data[BEGIN:] == marshal.dumps(marshal.loads(written.data[BEGIN:]), 2)
    values = ("a", "\xe9\u20ac\udcff", -1, 1 << 31, -(1 << 62), None, True, False, ())
    known = (
        "28090000007501000000617508000000c3a9e282acedb3bf69ffffffff6c030000000000000002006cfbffffff000000"
        "000000000004004e54462800000000"
    )
    assert marshal.dumps(values, 2) == bytes.fromhex(known)


HOLDER = """
import sys, time
from oci_gpu_hook.host import root, statefile
fd = statefile.lock(root.HostRoot(sys.argv[1]), "name.lock")
print("has it", flush=True)
time.sleep(float(sys.argv[2]))
"""


def holder(root: HostRoot, seconds: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{HOLDER}", root.path, str(seconds)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "has it\n"
    return child


def test_a_lock_is_waited_for_within_a_limit_though_its_holder_is_stopped(root: HostRoot) -> None:
    with holder(root, 1000) as child:
        try:
            child.send_signal(signal.SIGSTOP)
            with pytest.raises(statefile.LockedError) as caught:
                statefile.lock(root, "name.lock", 0.2)
            assert str(caught.value) == (
                "another process holds /run/oci-gpu-hook/name.lock and has not released it within 0.2 seconds "
                "(root can end it: 'lslocks' names it)"
            )
        finally:
            child.kill()
    os.close(statefile.lock(root, "name.lock", 0.2))


def test_a_lock_is_had_when_its_holder_ends(root: HostRoot) -> None:
    with holder(root, 0.2):
        os.close(statefile.lock(root, "name.lock", 1000))


def test_a_lock_that_is_denied_is_not_waited_for(root: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a security module: nobody need hold it.  Its file does not stay open in a service that asks again."""
    monkeypatch.setattr("posix.lockf", mock.Mock(side_effect=PermissionError))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(PermissionError):
        statefile.lock(root, "x.lock", 0)
    assert os.listdir("/proc/self/fd") == before


def test_a_reader_of_its_file_holds_no_lock(root: HostRoot) -> None:
    """flock(2), which any user may use who may read a file, and a shared lock by fcntl(2)."""
    os.close(statefile.lock(root, "name.lock"))
    with open(f"{root.path}{statefile.FOLDER}/name.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.close(statefile.lock(root, "name.lock", 0))
