# SPDX-License-Identifier: Apache-2.0
"""What is read of a checkpoint's archives, whatever lies in them."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.container import restore

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


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_the_nodes_of_an_archive(format: int) -> None:
    long = 90 if format == tarfile.USTAR_FORMAT else 200
    assert restore._nodes(gzip.compress(archive(format, long))) == set(NODES.values())


def test_what_is_cut_off_has_the_nodes_before() -> None:
    data = archive()
    assert restore._nodes(gzip.compress(data)[:-20]) == set(NODES.values())
    assert restore._nodes(gzip.compress(data[: data.index(b"./nvidia-caps")])) == {(195, 0)}


def test_a_size_below_zero_goes_nowhere() -> None:
    data = bytearray(archive())
    data[124:136] = b"-0000001000\0"
    assert restore._nodes(gzip.compress(bytes(data))) == set()


def test_no_archive_takes_more_memory_than_a_folder_of_nodes_needs() -> None:
    assert restore._nodes(gzip.compress(bytes(64 << 20))) == set()


@given(st.binary(), st.integers(0, 4096), st.binary(max_size=16))
def test_nothing_else_is_an_error(junk: bytes, at: int, patch: bytes) -> None:
    data = archive()
    for each in (junk, gzip.compress(junk), gzip.compress(data[:at] + patch + data[at + len(patch) :])):
        restore._nodes(each)
