# SPDX-License-Identifier: Apache-2.0
"""Files are written whole, by a descriptor of their folder, and root follows no way but root's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oci_gpu_hook.errors import ApplyError, ConfigError, UsageError
from oci_gpu_hook.host.source import open_source
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.machine import outputfile


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_file_and_roots_new_folders_are_for_all_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """A user's new folders are as his umask says."""
    if mode == 0o700:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    path = tmp_path / "a/b/x.prom"
    os.umask(0o077)
    outputfile.write(str(path), "é\n")
    assert path.read_text() == "é\n" and path.stat().st_mode & 0o7777 == 0o644
    assert {it.stat().st_mode & 0o777 for it in (path.parent, path.parents[1])} == {mode}
    assert os.listdir(path.parent) == ["x.prom"]
    assert outputfile.remove(str(path)) and not outputfile.remove(str(path))
    assert not outputfile.remove(str(tmp_path / "none/x"))


def test_what_is_replaced_is_the_name_and_not_what_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "x").symlink_to("precious")
    outputfile.write(str(tmp_path / "x"), "new")
    assert (tmp_path / "precious").read_text() == "x"
    assert not (tmp_path / "x").is_symlink()


def test_where_it_fails_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loose").symlink_to("nowhere")
    for name, why in (("x", "Is a directory"), ("file/x", "Not a directory"), ("loose/x", "No such file")):
        with pytest.raises(ApplyError, match=f"cannot write .*/{name}: {why}"):
            outputfile.write(str(tmp_path / name), "new")
    assert sorted(os.listdir(tmp_path)) == ["file", "loose", "x"] and os.listdir(tmp_path / "x") == []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert outputfile.failure("/x", PermissionError(13, "Permission denied")).hint == "run it as root"


@pytest.fixture()
def exporters(tmp_path: Path) -> Path:
    """A folder of a node exporter's user, as Debian's package makes it, and one of root's below it."""
    folder = tmp_path / "prometheus"
    (folder / "node-exporter").mkdir(parents=True)
    os.chown(folder, 64_123, -1)
    return folder


def test_a_folder_of_the_exporters_own_may_be_written(exporters: Path) -> None:
    path = exporters / "x.prom"
    outputfile.write(str(path), "new")
    assert (path.read_text(), path.stat().st_uid) == ("new", 0)
    assert outputfile.remove(str(path))


@pytest.mark.parametrize("led", [False, True])
def test_what_lies_below_it_may_not(exporters: Path, tmp_path: Path, led: bool) -> None:
    """He can put a link, or another folder of root's, in the place of any name in his."""
    if led:
        (exporters / "node-exporter").rmdir()
        (tmp_path / "roots").mkdir()
        (exporters / "node-exporter").symlink_to(tmp_path / "roots")
    path = str(exporters / "node-exporter/x.prom")
    for act in (lambda: outputfile.write(path, "new"), lambda: outputfile.remove(path)):
        with pytest.raises(ConfigError, match="'node-exporter' lies in a folder of user 64123's"):
            act()
    assert not (tmp_path / "roots").exists() or os.listdir(tmp_path / "roots") == []
    with pytest.raises(ConfigError, match="would lie in a folder of user 64123's"):
        outputfile.write(str(exporters / "new/folders/x.prom"), "new")
    assert not (exporters / "new").exists()


@pytest.mark.parametrize("owner", [0, 64_123])
def test_whose_the_top_is_counts_as_root(tmp_path: Path, owner: int) -> None:
    """As in a user namespace, where the host's root has another number."""
    (tmp_path / "above").mkdir()
    os.chown(tmp_path / "above", owner, -1)
    os.chown(tmp_path, 64_123, -1)
    opened = closing(os.open(tmp_path, os.O_PATH))
    with opened as top, outputfile.folder("/above/a/b", lambda path: open_source(top, path)):
        assert (tmp_path / "above/a/b").is_dir()


def test_a_user_may_write_to_folders_of_the_users_own(exporters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 64_123)
    outputfile.write(str(exporters / "new/folders/x"), "new")
    assert (exporters / "new/folders/x").read_text() == "new"


def test_a_folder_that_another_has_made_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    def find(path: str) -> int:
        if path == "/a" and not (tmp_path / "a").exists():
            (tmp_path / "a").mkdir()
            raise FileNotFoundError
        return os.open(f"{tmp_path}{path}", os.O_PATH)

    with pytest.raises(ZeroDivisionError), outputfile.folder("/a", find):
        raise ZeroDivisionError
    assert (tmp_path / "a").is_dir()


def test_more_missing_folders_than_python_has_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too many folders are missing"):
        outputfile.write(f"{tmp_path}{'/a' * 1500}/file", "")
    assert os.listdir(tmp_path) == []
