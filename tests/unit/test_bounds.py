# SPDX-License-Identifier: Apache-2.0
"""What the kernel, the host and an image show is read some at a time, however much it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oci_gpu_hook.changes import contextset
from oci_gpu_hook.container import devicecgroup, layout
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import mountinfo, procfile
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.mountinfo import MountLine
from tests.unit.bounded import MIB, peak

LINE = "{} 1 0:1 / /a{} rw shared:7 - tmpfs none rw,context=x\n"
FIRST = "11 1 0:1 / /a rw,noexec shared:42 master:1 - ext4 /dev/sda1 rw,a - b\n"


def cut(file: Path, text: str | bytes, size: int) -> list[bytes]:
    """The text in pieces of whole lines, if read(2) gives so many bytes at a time."""
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(procfile, "_PIECE", size)
        return [*procfile.pieces(str(file))]


@pytest.mark.parametrize("size", [7, 4096, 1 << 20])
def test_a_mount_is_found_wherever_its_line_is(tmp_path: Path, size: int) -> None:
    lines = [LINE.format(number, "x" * (number % 300)) for number in range(100, 3_000)]
    file = tmp_path / "mountinfo"
    for place in (0, 1, 700, len(lines)):
        pieces = cut(file, "".join([*lines[:place], FIRST, *lines[place:]]), size)
        found = mountinfo.mount(pieces, 11)
        assert found == MountLine(11, "0:1", "/", "/a", ("shared:42", "master:1"), "ext4", "rw,a - b")
        assert mountinfo.mount(pieces, 1) is None
    assert mountinfo.mount(cut(file, FIRST.rstrip("\n"), size), 11) == found
    for short in (b"7 -", b"7", b""):
        assert mountinfo.mount(cut(file, short, size), 7) is None


@pytest.mark.parametrize("size", [1, 5, 4096])
def test_a_device_is_found_by_its_own_field_alone(tmp_path: Path, size: int) -> None:
    text = b"1 0 0:5 / / rw - fuse 0:7 rw\n2 1 0:6 / /a rw - tmpfs none rw\n7 -\n"
    pieces = cut(tmp_path / "mountinfo", text, size)
    assert mountinfo.mounted(pieces, ("0:5", "0:6", "0:7", "0:8")) == {"0:5", "0:6"}
    assert mountinfo.mounted(pieces, ()) == set()


def test_a_hundred_thousand_mounts_are_never_held(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text("".join([LINE.format(number, "") for number in range(100, 100_100)]))
    assert file.stat().st_size > 4 * MIB
    assert peak(lambda: mountinfo.mounted(procfile.pieces(str(file)), ["0:1", "0:2"])) < MIB // 8
    assert peak(lambda: mountinfo.mount(procfile.pieces(str(file)), 99)) < MIB // 8
    data = procfile.read_whole(str(file))
    assert peak(lambda: procfile.read_whole(str(file))) < 3 * len(data)
    assert peak(lambda: sum([1 for _ in devicecgroup.lines(data)])) < 5 * len(data)
    with file.open("ab") as larger:
        larger.truncate(25 * MIB)
    with pytest.raises(OSError, match="File too large"):
        procfile.read_whole(str(file))


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_only_a_newline_ends_a_line(size: int) -> None:
    text = f"{'x' * size}\na\x0c\u2028b\r\n\né\n"
    assert list(devicecgroup.lines(text.encode() + b"no end")) == text.split("\n")[:-1]


def test_of_a_folder_with_too_many_names_not_all_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image's folder of newer CUDA libraries, and a pod's /dev/shm."""
    for number in range(2_000):
        (tmp_path / f"name-{number}").touch()
    monkeypatch.setattr(layout, "_MAX_NAMES", 20)
    monkeypatch.setattr(contextset, "_MAX_FILES", 20)
    with closing(os.open(tmp_path, os.O_PATH)) as fd:
        assert layout.names(fd, "/") == ()
        assert len(contextset._names(fd)) == 21
        for act in (lambda: layout.names(fd, "/"), lambda: contextset._names(fd)):
            assert peak(act) < 30_000


def test_a_file_of_the_host_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    root = HostRoot(str(tmp_path))
    for size, there in ((8 * MIB, True), (8 * MIB + 1, False)):
        with (tmp_path / "file").open("wb") as written:
            written.truncate(size)
        assert (root.read("/file") is not None) is there
    assert peak(lambda: root.read("/file")) < 20 * MIB
