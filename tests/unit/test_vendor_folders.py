# SPDX-License-Identifier: Apache-2.0
"""The vendors' files of a host: which hold, and which are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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
NO_FILE = "not a regular file of at most 1 MiB"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a file away")


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
        pytest.param(lambda file: os.chown(file, 1000, 1000), "it is user 1000's", marks=needs_root),
        (lambda file: file.write_bytes(b" " * ((1 << 20) + 1)), NO_FILE),
        (lambda file: replaced_by(file, os.mkfifo), NO_FILE),
        (lambda file: replaced_by(file, lambda it: it.symlink_to("nothing")), NO_FILE),
    ],
)
def test_what_is_not_roots_is_no_file(host: Path, change: Callable[[Path], object], says: str) -> None:
    change(plant(host, f"{ETC}/a.json"))
    with pytest.raises(ConfigError, match=f"{ETC}/a.json: .*{says}"):
        folders.load(HostRoot(str(host)), f"{ETC}/a.json")
