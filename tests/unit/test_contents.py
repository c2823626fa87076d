# SPDX-License-Identifier: Apache-2.0
"""Folders that are given whole: what is searched, what leaves them, and when a saved look is true no longer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oci_gpu_hook.host import contents
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import procfile
from oci_gpu_hook.vendors import folders
from oci_gpu_hook.vendors.vendorinventory import Vendor

FOLDER = "/opt/acme"
FILE = "/etc/oci-gpu-hook/vendors/acme.json"
VENDOR = {"activation_flag": "OCI_ACME", "driver_feature": ["a"], "inventory": {"a": {"directories": [FOLDER]}}}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A vendor's file, and its folder: two good files below it, in folders of their own, and a link."""
    tmp_path.chmod(0o755)
    for name in ("one/deep/a", "two/b"):
        file = tmp_path / FOLDER[1:] / name
        file.parent.mkdir(parents=True)
        file.write_text(name)
    (tmp_path / FOLDER[1:] / "link").symlink_to("one/deep/a")
    for folder in (Path(FILE).parent, Path("/run")):
        (tmp_path / folder.relative_to("/")).mkdir(parents=True)
    (tmp_path / FILE[1:]).write_text(json.dumps(VENDOR))
    return tmp_path


def look(host: Path) -> contents.Contents:
    return contents.folder_contents(HostRoot(str(host)), FOLDER, lambda path: None)


def given(host: Path) -> Vendor:
    """What a start gives, which saves it for the next one."""
    return folders.vendor_inventory(HostRoot(str(host), remember=True), "OCI_ACME", FILE)


def paths(found: Vendor) -> set[str]:
    return {file.path for file in found.files} | {path for path, _ in found.links}


def test_what_is_no_file_leaves_it(host: Path) -> None:
    os.mkfifo(host / FOLDER[1:] / "two/fifo")
    (host / FOLDER[1:] / "two/\x1b[2J").write_text("")
    # One that nobody may list is none for everybody.
    (host / FOLDER[1:] / "one/deep").chmod(0o711)
    assert look(host).faults == {
        f"{FOLDER}/one/deep": "not everybody may read it",
        f"{FOLDER}/two/fifo": "it is neither a file nor a folder",
        f"{FOLDER}/two/\x1b[2J": "its name cannot be printed",
    }
    assert paths(given(host)) == {f"{FOLDER}/{name}" for name in ("link", "two/b")}
    assert all([fault.isprintable() for fault in given(host).faults])


def test_of_very_many_files_that_is_noticed_at_the_next_refresh(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oci_gpu_hook.vendors.vendorsurvey._MAX_WATCHED", 1)
    assert paths(given(host)) == {FOLDER}
    (host / FOLDER[1:] / "two/b").chmod(0o600)
    assert paths(given(host)) == {FOLDER}
    (host / FOLDER[1:] / "one/deep/b").touch()
    assert FOLDER not in paths(given(host))


def test_of_very_many_faults_the_first_are_told(host: Path) -> None:
    for number in range(200):
        (host / FOLDER[1:] / f"two/{number:03}").mkdir(mode=0o700)
    found = given(host)
    assert len(found.faults) < 20
    assert found.faults[-1] == f"184 more things in the host's {FOLDER} are left out"


@pytest.mark.parametrize(("name", "most"), [("MAX_FOLDERS", 3), ("MAX_THINGS", 5), ("MAX_DEPTH", 1)])
def test_too_much_to_search_is_left_out(host: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    monkeypatch.setattr(contents, name, most)
    found = given(host)
    assert paths(found) == set()
    assert f"the host's {FOLDER} is left out: it has more than " in found.faults[0] and f" {most} " in found.faults[0]


def test_a_deep_folder_ends_no_command(host: Path) -> None:
    """In one of 3,000 folders no path is too long for the kernel, and no function calls itself."""
    (host / FOLDER[1:] / "/".join(["d"] * 100)).mkdir(parents=True)
    assert "levels" in given(host).faults[0]


def test_a_folder_in_parts_may_not_have_too_many(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oci_gpu_hook.vendors.vendorsurvey._MAX_FILES", 2)
    (host / FOLDER[1:] / "two/b").chmod(0o600)
    for number in range(3):
        (host / FOLDER[1:] / f"two/{number}").write_text("")
    (fault,) = given(host).faults
    assert fault.endswith("it cannot be given whole, and has more than 2 parts")


def test_mount_points_are_found_whatever_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"1 0 0:1 / / rw - tmpfs t rw\n2 1 0:2 / /a\\040b/c rw - tmpfs t rw\n3 1 0:3 / /ab rw - x x x\n"
    monkeypatch.setattr(procfile, "pieces", lambda path: [text])
    assert contents._mounted_below("/a b") == {"/c"}
    assert contents._mounted_below("/a") == set()
