# SPDX-License-Identifier: Apache-2.0
"""The vendors' files of a host: which hold, and which are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.vendors import folders


@pytest.fixture
def host(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def plant(host: Path, path: str, flag: str = "OCI_X") -> Path:
    file = host / path[1:]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"activation_flag": flag, "inventory": {"a": {}}}))
    return file


ETC, LOCAL, USR = folders.FOLDERS


def test_the_administrators_file_takes_the_place_of_another(host: Path) -> None:
    root = HostRoot(str(host))
    assert folders.list_files(root) == ()
    for path in (f"{USR}/b.json", f"{USR}/a.json", f"{ETC}/b.json", f"{ETC}/c.json"):
        plant(host, path)
    for path in (f"{USR}/.d.json", f"{ETC}/e.json.rpmsave", f"{ETC}/f.JSON"):
        plant(host, path)
    assert folders.list_files(root) == (f"{USR}/a.json", f"{ETC}/b.json", f"{ETC}/c.json")
    assert folders.replaced(root) == {f"{ETC}/b.json": f"{USR}/b.json"}
    assert folders.load(root, f"{ETC}/c.json").file == f"{ETC}/c.json"


def test_of_three_of_one_name_the_nearest_to_the_administrator_counts(host: Path) -> None:
    for folder in folders.FOLDERS:
        plant(host, f"{folder}/a.json")
    root = HostRoot(str(host))
    assert folders.list_files(root) == (f"{ETC}/a.json",)
    assert folders.replaced(root) == {f"{ETC}/a.json": f"{LOCAL}/a.json"}
    (host / ETC[1:] / "a.json").unlink()
    assert folders.list_files(root) == (f"{LOCAL}/a.json",)
    assert folders.replaced(root) == {f"{LOCAL}/a.json": f"{USR}/a.json"}


def test_so_many_files_and_no_more(host: Path) -> None:
    for number in range(folders.MOST_FILES):
        plant(host, f"{USR}/{number}.json")
    plant(host, f"{ETC}/1.json")
    assert len(folders.list_files(HostRoot(str(host)))) == folders.MOST_FILES
    plant(host, f"{ETC}/x.json")
    with pytest.raises(ConfigError, match="more than 256"):
        folders.list_files(HostRoot(str(host)))


def test_a_broken_file_stops_no_other(host: Path) -> None:
    plant(host, f"{USR}/a.json")
    plant(host, f"{USR}/b.json", "wrong")
    vendors, errors = folders.load_all(HostRoot(str(host)))
    assert [vendor.flag for vendor in vendors] == ["OCI_X"]
    assert [str(err).partition(" ")[0] for err in errors.values()] == [f"{USR}/b.json:"]
    assert [*errors] == [f"{USR}/b.json"]


def test_flags_that_collide_are_said_with_their_files(host: Path) -> None:
    for name, flag in (("a", "OCI_X"), ("b", "OCI_Y"), ("c", "OCI_X")):
        plant(host, f"{USR}/{name}.json", flag)
    vendors, _ = folders.load_all(HostRoot(str(host)))
    assert folders.collisions(vendors) == {"OCI_X": f"OCI_X is the flag of {USR}/a.json and of {USR}/c.json"}


def test_what_others_than_root_could_have_made_is_no_file(host: Path) -> None:
    file = plant(host, f"{ETC}/a.json")
    file.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="others than root may write to"):
        folders.load(HostRoot(str(host)), f"{ETC}/a.json")


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_what_others_than_root_may_write_is_no_file(host: Path, mode: int) -> None:
    plant(host, f"{ETC}/a.json").chmod(mode)
    with pytest.raises(ConfigError, match="others than root may write to it"):
        folders.load(HostRoot(str(host)), f"{ETC}/a.json")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a file away")
def test_what_is_somebody_elses_is_no_file(host: Path) -> None:
    os.chown(plant(host, f"{ETC}/a.json"), 1000, 1000)
    with pytest.raises(ConfigError, match="it is user 1000's"):
        folders.load(HostRoot(str(host)), f"{ETC}/a.json")


def test_what_is_no_regular_file_or_too_large(host: Path) -> None:
    root = HostRoot(str(host))
    plant(host, f"{ETC}/large.json").write_bytes(b" " * ((1 << 20) + 1))
    os.mkfifo(host / ETC[1:] / "pipe.json")
    (host / ETC[1:] / "folder.json").mkdir()
    (host / ETC[1:] / "nowhere.json").symlink_to("nothing")
    for name, says in (
        ("large", "larger than 1 MiB"),
        ("pipe", "not a regular file"),
        ("folder", "not a regular file"),
        ("nowhere", "there is nothing"),
    ):
        with pytest.raises(ConfigError, match=f"{ETC}/{name}.json: .*{says}"):
            folders.load(root, f"{ETC}/{name}.json")
