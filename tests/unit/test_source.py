# SPDX-License-Identifier: Apache-2.0
"""A source on the host is opened only where root alone could have led its path elsewhere.

The tree's top stands for the host's root here, and the user who runs this test for root; test_services has real users.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from oci_gpu_hook.host import source
from oci_gpu_hook.host.source import UntrustedError, open_source


@pytest.fixture()
def host(tmp_path: Path) -> Path:
    """A tree with a folder of root's, one that everybody may write to, and a sticky one."""
    top = tmp_path / "host"
    for name, mode in {"": 0o755, "run": 0o755, "open": 0o777, "tmp": 0o1777}.items():
        (top / name).mkdir()
        (top / name).chmod(mode)
        (top / name / "file").write_text(f"of {name}")
    return top


def content(host: Path, path: str) -> str:
    top = os.open(host, os.O_PATH)
    fds = len(os.listdir("/proc/self/fd"))
    try:
        fd = open_source(top, path, os.geteuid())
        assert len(os.listdir("/proc/self/fd")) == fds + 1
        text = Path(f"/proc/self/fd/{fd}").read_text()
        os.close(fd)
        return text
    finally:
        assert len(os.listdir("/proc/self/fd")) == fds
        os.close(top)


@pytest.mark.parametrize("text", ["/run", "run", "../host/../run", "other"])
def test_a_link_in_a_folder_of_roots_is_followed_inside_the_tree(host: Path, text: str) -> None:
    (host / "other").symlink_to("/run")
    (host / "link").symlink_to(text.replace("../host", "run"))
    assert content(host, "/link/file") == "of run"


def test_what_is_roots_own_in_a_sticky_folder_counts_and_a_link_there_does_not(host: Path) -> None:
    assert content(host, "/tmp/file") == "of tmp"
    (host / "tmp/link").symlink_to("/run")
    for path in ("/tmp/link", "/tmp/link/file"):
        with pytest.raises(UntrustedError, match=r"^'link' is a link, in a folder that others"):
            content(host, path)


@pytest.mark.parametrize("path", ["/open/file", "/link"])
def test_nothing_counts_in_a_folder_that_others_may_write_to(host: Path, path: str) -> None:
    (host / "link").symlink_to("open/file")
    with pytest.raises(UntrustedError, match=r"^'file' lies in a folder that others than root may"):
        content(host, path)


def test_a_link_that_leads_round_is_an_error_and_nothing_is_nothing(host: Path) -> None:
    (host / "one").symlink_to("two")
    (host / "two").symlink_to("one")
    with pytest.raises(UntrustedError, match="too many links"):
        content(host, "/one")
    with pytest.raises(FileNotFoundError):
        content(host, "/run/none")


def status(kind: int, mode: int, user: int) -> os.stat_result:
    return os.stat_result((kind | mode, 1, 1, 1, user, 0, 0, 0, 0, 0))


FILE, LINK, SOCKET = stat.S_IFREG, stat.S_IFLNK, stat.S_IFSOCK


@pytest.mark.parametrize(
    ("folder", "kind", "user", "is_last", "fault"),
    [
        ((0, 0o755), LINK, 0, False, ""),
        ((0, 0o755), FILE, 1001, True, ""),
        ((0, 0o777), FILE, 0, True, "lies in a folder that others than root may write to"),
        ((0, 0o775), FILE, 0, True, "lies in a folder that others than root may write to"),
        ((0, 0o1777), FILE, 0, True, ""),
        ((0, 0o1777), FILE, 1000, True, ""),
        ((0, 0o1777), FILE, 1001, True, "is user 1001's, in a folder that others than root may write to"),
        ((0, 0o1777), LINK, 0, False, "is a link, in a folder that others than root may write to"),
        # A service's own socket.
        ((1001, 0o755), SOCKET, 1001, True, ""),
        ((1001, 0o755), SOCKET, 1001, False, "lies in a folder of user 1001's"),
        ((1001, 0o755), FILE, 1001, True, "lies in a folder of user 1001's"),
        ((1001, 0o777), SOCKET, 1001, True, "lies in a folder of user 1001's"),
    ],
)
def test_who_could_have_led_a_path_elsewhere(
    folder: tuple[int, int], kind: int, user: int, is_last: bool, fault: str
) -> None:
    """Of the owner 1000, to whom uid 0 alone is root."""
    parent = status(stat.S_IFDIR, folder[1], folder[0])
    said = source._fault(parent, status(kind, 0o644, user), "it", is_last, (0,), 1000)
    assert said == (fault and f"'it' {fault}")
