# SPDX-License-Identifier: Apache-2.0
"""What an ELF file is: read of files of the C compiler, and of others by hand, hostile ones among them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from oci_gpu_hook.driver.elf import identity_of, needs_of
from oci_gpu_hook.host.root import HostRoot
from tests.unit import hosts

CC = shutil.which("cc")


def identified(data: bytes) -> tuple[tuple[int, int], str] | None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return identity_of(HostRoot(), file.name)


STRINGS = b"\0libcuda.so.1\0"


def elf(strings: bytes = STRINGS, **more: Any) -> bytes:
    return hosts.elf_file(strings, **{"offset": 0x1000, **more})


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("machine", [3, 183])
def test_word_size_machine_and_soname_are_read(bits: int, order: str, machine: int) -> None:
    data = elf(machine=machine, bits=bits, order=order)
    assert identified(data) == ((machine, bits), "libcuda.so.1")


def test_a_file_without_a_soname_has_none() -> None:
    assert identified(elf(tags=((5, 0x11000),))) == ((62, 64), "")
    assert identified(elf(tags=((14, 0), (5, 0x11000)))) == ((62, 64), "")


def test_the_libraries_that_a_file_needs_are_read(tmp_path: Path) -> None:
    strings = b"\0libLLVM-14.so.1\0libc.so.6\0a/b\0"
    tags = ((1, 1), (14, 17), (1, 17), (5, 0x11000), (0, 0), (1, 1))
    for name, it in (("all", elf(strings, tags=tags)), ("odd", elf(strings, tags=(*tags[:4], (1, 27)))), ("no", b"x")):
        (tmp_path / name).write_bytes(it)
    found = {name: needs_of(HostRoot(str(tmp_path)), f"/{name}") for name in ("all", "odd", "no", "absent")}
    assert found == {"all": ["libLLVM-14.so.1", "libc.so.6"], "odd": [], "no": [], "absent": []}


def test_only_the_dynamic_section_gives_the_soname() -> None:
    strings = struct.pack("<QQ", 14, 17) + STRINGS
    assert identified(elf(strings=strings, tags=((5, 0x11000),))) == ((62, 64), "")


def test_a_soname_that_is_no_utf_8_comes_as_surrogates() -> None:
    identity = identified(elf(strings=b"\0lib\xff.so\0"))
    assert identity and os.fsencode(identity[1]) == b"lib\xff.so"


def test_only_a_few_kilobytes_of_a_large_library_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pread = mock.Mock(wraps=os.pread)
    monkeypatch.setattr("posix.pread", pread)
    assert identified(elf(STRINGS + bytes(1 << 20), offset=1 << 24)) == ((62, 64), "libcuda.so.1")
    assert 0 < sum([call.args[1] for call in pread.call_args_list]) < 4096


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
@pytest.mark.parametrize("linker", ["bfd", "gold", "lld"])
def test_a_library_of_the_compiler_is_identified(tmp_path: Path, linker: str) -> None:
    (tmp_path / "a.c").write_text("int which(void) { return 1; }\n")
    options = ["-shared", "-nostdlib", "-Wl,-soname,libnvidia-ml.so.1", f"-fuse-ld={linker}"]
    command = [str(CC), *options, "-o", "a.so", "a.c"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip(f"this compiler has no {linker}")
    own = identified(Path("/proc/self/exe").read_bytes())
    assert own and own[0][1] == struct.calcsize("P") * 8
    assert identified((tmp_path / "a.so").read_bytes()) == (own[0], "libnvidia-ml.so.1")


SOUND = elf()
DYNAMIC, LOAD = 64, 64 + 56  # where the program headers are


def _patched(offset: int, format_: str, value: int, data: bytes = SOUND) -> bytes:
    changed = bytearray(data)
    struct.pack_into(format_, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x7fEL", id="a magic cut off"),
        pytest.param(b"INPUT(-lcuda)", id="a linker script"),
        pytest.param(SOUND[:63], id="a header cut off"),
        pytest.param(SOUND[:100], id="program headers cut off"),
        pytest.param(SOUND[:180], id="a dynamic section cut off"),
        pytest.param(SOUND[:-14], id="strings not there"),
        pytest.param(_patched(4, "B", 3), id="an unknown class"),
        pytest.param(_patched(32, "<Q", 2**64 - 1), id="program headers beyond any file"),
        pytest.param(_patched(32, "<Q", 2**63 - 1), id="program headers at the largest offset"),
        pytest.param(_patched(54, "<H", 55), id="program headers of another size"),
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
    assert identified(data) is None
