# SPDX-License-Identifier: Apache-2.0
"""host/elf.py against files of the C compiler, files written by hand, and files out to harm it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_gpu_hook.host.elf import Identity, MalformedElf, identify

CC = shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None, reason="needs a C compiler")


def identified(data: bytes) -> Identity | None:
    """What identify says of a file with these bytes."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return identify(file.fileno())


def of_path(path: str | Path) -> Identity | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return identify(fd)
    finally:
        os.close(fd)


# --- files by hand

NAME = b"libcuda.so.1"


def elf(
    bits: int = 64,
    order: str = "<",
    machine: int = 62,
    strings: bytes = b"\0" + NAME + b"\0",
    tags: tuple[tuple[int, int], ...] = ((14, 1), (5, 0x10000 + 0x1000)),
    load_offset: int = 0x1000,
) -> bytes:
    """An ELF file of two segments: the dynamic one, and one that is loaded with the strings in it.

    The strings lie at `load_offset` in the file and at 0x11000 in memory.
    """
    word = "Q" if bits == 64 else "I"
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]).ljust(12, b"\0")
    header_size, segment_size = (64, 56) if bits == 64 else (52, 32)
    dynamic = b"".join(struct.pack(f"{order}2{word}", *tag) for tag in (*tags, (0, 0)))
    dynamic_offset = header_size + 2 * segment_size
    header = struct.pack(
        f"{order}HHI3{word}I6H", 3, machine, 1, 0, header_size, 0, 0, header_size, segment_size, 2,
        0, 0, 0,
    )  # fmt: skip

    def segment(kind: int, offset: int, address: int, size: int) -> bytes:
        if bits == 64:
            return struct.pack(
                f"{order}II6Q", kind, 4, offset, address, address, size, size, 0x1000
            )
        return struct.pack(f"{order}8I", kind, offset, address, address, size, size, 4, 0x1000)

    load = segment(1, load_offset, 0x11000, len(strings))
    head = ident + header + segment(2, dynamic_offset, 0, len(dynamic)) + load + dynamic
    return head.ljust(load_offset, b"\0") + strings


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("machine", [3, 62, 183])
def test_word_size_machine_and_soname_are_read(bits: int, order: str, machine: int) -> None:
    data = elf(bits, order, machine)
    assert identified(data) == Identity(bits, machine, "libcuda.so.1")


def test_a_file_without_a_soname_has_none() -> None:
    assert identified(elf(tags=((5, 0x11000),))) == Identity(64, 62, None)
    assert identified(elf(tags=((14, 0), (5, 0x11000)))) == Identity(64, 62, None)


def test_what_follows_the_end_of_the_dynamic_section_does_not_count() -> None:
    assert identified(elf(tags=((5, 0x11000), (0, 0), (14, 1)))) == Identity(64, 62, None)


def test_only_the_dynamic_section_gives_the_soname() -> None:
    strings = struct.pack("<QQ", 14, 17) + b"\0" + NAME + b"\0"
    assert identified(elf(strings=strings, tags=((5, 0x11000),))) == Identity(64, 62, None)


def test_a_soname_that_is_no_utf_8_comes_as_surrogates() -> None:
    identity = identified(elf(strings=b"\0lib\xff.so\0"))
    assert identity is not None
    assert identity.soname is not None
    assert os.fsencode(identity.soname) == b"lib\xff.so"


@pytest.mark.parametrize("data", [b"", b"\x7fEL", b"#!/bin/sh\n", b"INPUT(-lcuda)", b"\0" * 99])
def test_what_is_no_elf_file_is_none(data: bytes) -> None:
    assert identified(data) is None


def test_the_position_of_the_descriptor_stays() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(elf())
        file.flush()
        os.lseek(file.fileno(), 7, os.SEEK_SET)
        identify(file.fileno())
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 7


def test_only_a_few_kilobytes_of_a_large_library_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    pread = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        data = pread(fd, size, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr("posix.pread", counting)
    with tempfile.TemporaryFile() as file:
        file.write(elf(load_offset=0x40000000)[:0x1000])
        file.seek(0x40000000)
        file.write(b"\0" + NAME + b"\0" + bytes(1 << 20))
        file.flush()
        assert identify(file.fileno()) == Identity(64, 62, "libcuda.so.1")
    assert 0 < sum(read) < 4096


# --- files of the compiler


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    assert CC is not None

    def run(*options: str) -> Path:
        (tmp_path / "a.c").write_text("int which(void) { return 1; }\n")
        assert CC is not None
        command = [CC, "-shared", "-nostdlib", *options, "-o", "a.so", "a.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"this compiler does not take {options}")
        return tmp_path / "a.so"

    yield run


@needs_cc
@pytest.mark.parametrize("linker", ["bfd", "gold", "lld"])
def test_a_library_of_the_compiler_is_identified(build: Callable[..., Path], linker: str) -> None:
    path = build("-Wl,-soname,libnvidia-ml.so.1", f"-fuse-ld={linker}")
    identity = of_path(path)
    assert identity is not None
    assert identity.bits == struct.calcsize("P") * 8
    assert identity.soname == "libnvidia-ml.so.1"
    own = of_path("/proc/self/exe")
    assert own is not None
    assert identity.machine == own.machine


@needs_cc
def test_a_library_of_32_bits_is_identified(build: Callable[..., Path]) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("needs an x86_64 compiler")
    path = build("-m32", "-Wl,-soname,libcuda.so.1")
    assert of_path(path) == Identity(32, 3, "libcuda.so.1")


@needs_cc
def test_a_stripped_library_is_identified(build: Callable[..., Path]) -> None:
    path = build("-s", "-Wl,-soname,libcuda.so.1")
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 40, 0)  # no section headers at all
    identity = identified(bytes(data))
    assert identity is not None
    assert identity.soname == "libcuda.so.1"


@needs_cc
def test_an_object_file_has_no_soname(build: Callable[..., Path]) -> None:
    identity = of_path(build("-c"))
    assert identity is not None
    assert identity.soname is None


# --- hostile files

SOUND = elf()
DYNAMIC, LOAD = 64, 64 + 56  # where the program headers are


def _patched(offset: int, format_: str, value: int, data: bytes = SOUND) -> bytes:
    changed = bytearray(data)
    struct.pack_into(format_, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(SOUND[:5], id="nothing but the magic"),
        pytest.param(SOUND[:63], id="a header cut off"),
        pytest.param(SOUND[:100], id="program headers cut off"),
        pytest.param(SOUND[:180], id="a dynamic section cut off"),
        pytest.param(SOUND[:-1], id="a string cut off"),
        pytest.param(SOUND[:-14], id="strings not there"),
        pytest.param(_patched(4, "B", 3), id="an unknown class"),
        pytest.param(_patched(5, "B", 0), id="an unknown byte order"),
        pytest.param(_patched(32, "<Q", 2**64 - 1), id="program headers beyond any file"),
        pytest.param(_patched(32, "<Q", 2**63 - 1), id="program headers at the largest offset"),
        pytest.param(_patched(54, "<H", 55), id="program headers of another size"),
        pytest.param(_patched(54, "<H", 0), id="program headers of no size"),
        pytest.param(_patched(56, "<H", 0xFFFF) + bytes(4 << 20), id="very many program headers"),
        pytest.param(_patched(LOAD + 16, "<Q", 0), id="a name that is not loaded"),
        pytest.param(_patched(LOAD + 16, "<Q", 0x11005), id="a name before what is loaded"),
        pytest.param(_patched(LOAD + 8, "<Q", 2**64 - 1), id="strings beyond any file"),
        pytest.param(_patched(DYNAMIC + 8, "<Q", 2**64 - 1), id="dynamic beyond any file"),
        pytest.param(_patched(DYNAMIC + 32, "<Q", 2**64 - 1), id="an endless dynamic section"),
        pytest.param(elf(tags=((14, 2**64 - 1), (5, 0x11000))), id="a name far away"),
        pytest.param(elf(tags=((14, 1),)), id="a name without a table"),
        pytest.param(elf(strings=b"\0" + b"x" * 300 + b"\0"), id="a name that no file can have"),
        pytest.param(elf(strings=b"\0../../etc/passwd\0"), id="a name that is a path"),
        pytest.param(elf(strings=b"\0..\0"), id="a name that is a folder"),
    ],
)
def test_a_file_that_contradicts_itself_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedElf):
        identified(data)


def test_a_malformed_file_is_a_value_error() -> None:
    assert issubclass(MalformedElf, ValueError)


def _is_total(data: bytes) -> None:
    try:
        identity = identified(data)
    except MalformedElf:
        return
    assert identity is None or identity.bits in (32, 64)


@settings(max_examples=300)
@given(st.sampled_from([b"", b"\x7fELF\x01\x01", b"\x7fELF\x02\x01"]), st.binary(max_size=300))
def test_any_bytes_are_identified_or_malformed(start: bytes, rest: bytes) -> None:
    _is_total(start + rest)


@settings(max_examples=500)
@given(st.sampled_from([32, 64]), st.data())
def test_a_file_with_bytes_changed_is_identified_or_malformed(
    bits: int, draw: st.DataObject
) -> None:
    data = bytearray(elf(bits, load_offset=512))
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.integers(0, 300))
        few = st.sampled_from([0, 1, 2, 5, 14, 2**31, 2**63, 2**64 - 1])
        value = draw.draw(few | st.integers(0, 2**64 - 1))
        width = draw.draw(st.sampled_from([1, 2, 4, 8]))
        data[place : place + width] = struct.pack("<Q", value)[:width]
    _is_total(bytes(data[: draw.draw(st.integers(len(data) // 2, len(data)))]))
