# SPDX-License-Identifier: Apache-2.0
"""What is read of a checkpoint's archives, whatever lies in them."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.container import restore
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.kernel.descriptors import closing

NODES = {"./nvidia0": (195, 0), "./nvidia-caps/nvidia-cap12": (511, 12), "./null": (1, 3)}


def archive(format: int = tarfile.GNU_FORMAT, long: int = 200) -> bytes:
    """As tar makes it of a /dev: nodes among files, links and folders."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        folder, link, file, block = [tarfile.TarInfo(f"./{name}") for name in ("pts", "ptmx", "x" * long, "sda")]
        folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "pts/ptmx"
        block.type, block.devmajor, file.size = tarfile.BLKTYPE, 8, 700
        for each in (folder, link, block):
            tar.addfile(each)
        tar.addfile(file, io.BytesIO(bytes(700)))
        for name, (major, minor) in NODES.items():
            node = tarfile.TarInfo(name)
            node.type, node.devmajor, node.devminor = tarfile.CHRTYPE, major, minor
            tar.addfile(node)
    return out.getvalue()


class Criu(Process):
    """A process that says that its program is /bin/criu; place: what is opened of it, whatever the name is."""

    def __init__(self, place: Path) -> None:
        self.pid, self._place = 1, place

    def program(self) -> str:
        return "/bin/criu"

    def open(self, name: str, flags: int) -> int:
        return os.open(self._place, flags)


def test_roots_criu_is_the_file_that_runs_and_that_no_other_may_write_to(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    (own := tmp_path / "bin/criu").write_text("")
    (other := tmp_path / "criu").write_text("")
    with closing(os.open(tmp_path, os.O_PATH)) as root:
        restore.prove(Criu(own), root)
        with pytest.raises(BundleError, match="is not root's CRIU"):
            restore.prove(Criu(other), root)
        own.chmod(0o777)
        with pytest.raises(BundleError, match="is not root's CRIU"):
            restore.prove(Criu(own), root)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_the_nodes_of_an_archive(format: int) -> None:
    long = 90 if format == tarfile.USTAR_FORMAT else 200
    assert restore._nodes(gzip.compress(archive(format, long))) == set(NODES.values())


def test_what_is_cut_off_has_the_nodes_before() -> None:
    data, whole = archive(), gzip.compress(archive())
    before = [set(list(NODES.values())[:number]) for number in range(len(NODES) + 1)]
    found = [restore._nodes(gzip.compress(data[:end])) for end in range(0, len(data), 5)]
    found += [restore._nodes(whole[:end]) for end in range(len(whole))]
    assert all(nodes in before for nodes in found) and all(nodes in found for nodes in before)


def test_a_size_below_zero_and_an_endless_archive_lead_nowhere() -> None:
    data = bytearray(archive())
    data[124:136] = b"-0000001000\0"
    for each in (data, bytes(64 << 20)):
        assert restore._nodes(gzip.compress(each)) == set()


def test_only_files_of_a_checkpoint_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came from elsewhere may have anything by such a name."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "tmpfs-dev.9.tar.gz.img").write_bytes(gzip.compress(archive()))
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd/3").symlink_to(folder)
    criu = Criu(tmp_path / "fd")
    assert restore.dumped(criu) == frozenset(), "a folder that is not a checkpoint's"
    (folder / "inventory.img").touch()
    (folder / "tmpfs-folder").mkdir()
    (folder / "tmpfs-link").symlink_to("/dev/zero")
    os.mkfifo(folder / "tmpfs-fifo")
    # To open a socket is an error, which must not hide the others.
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("tmpfs-a")
    assert restore.dumped(criu) == frozenset(NODES.values())


@given(st.binary(), st.integers(0, 4096), st.binary(max_size=16))
def test_nothing_else_is_an_error(junk: bytes, at: int, patch: bytes) -> None:
    data = archive()
    for each in (junk, gzip.compress(junk), gzip.compress(data[:at] + patch + data[at + len(patch) :])):
        restore._nodes(each)
