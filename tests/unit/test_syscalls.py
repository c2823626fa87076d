# SPDX-License-Identifier: Apache-2.0
"""Numbers and layouts of syscalls.py and bpf.py, compared with what the C compiler finds in the kernel's headers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from oci_gpu_hook.kernel import bpf, mountinfo, procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing

pytestmark = pytest.mark.pythons

NAMES = (
    *("stddef", "stdio", "fcntl", "sched", "errno", "sys/syscall", "sys/vfs", "sys/socket", "sys/un", "linux/openat2"),
    *("linux/mount", "linux/stat", "linux/magic", "linux/bpf", "linux/prctl", "linux/nsfs"),
)
HEADERS = "#define _GNU_SOURCE\n" + "".join([f"#include <{name}.h>\n" for name in NAMES])
# glibc's own umount2 flags live in a header that clashes with linux/mount.h.
ELSEWHERE = {"MNT_DETACH": 2}
# No header has these.
OURS = ("TYPE_CHECKING", "RESOLVE_BELOW")


CONSTANTS = {
    name: value
    for name, value in {**vars(syscalls), **vars(bpf)}.items()
    if name.isupper() and not name.startswith("_") and isinstance(value, int) and name not in OURS
}


def compiled(tmp_path: Path, expressions: list[str]) -> dict[str, int]:
    lines = [f'printf("%s %lld\\n", "{text}", (long long)({text}));' for text in expressions]
    (tmp_path / "ask.c").write_text(HEADERS + "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
    subprocess.run(["cc", "-o", tmp_path / "ask", tmp_path / "ask.c"], check=True, capture_output=True)
    answer = subprocess.run([tmp_path / "ask"], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, _, value in [line.rpartition(" ") for line in answer.splitlines()]}


def test_constants_are_the_kernels(tmp_path: Path) -> None:
    ours = {name: value for name, value in CONSTANTS.items() if name not in ELSEWHERE}
    assert ELSEWHERE.items() <= CONSTANTS.items() and len(ours) > 20
    assert compiled(tmp_path, sorted(ours)) == ours


def test_system_call_numbers_are_the_kernels(tmp_path: Path) -> None:
    numbers = {f"__NR_{name}": number for name, number in syscalls._NUMBERS.items()}
    assert compiled(tmp_path, [*numbers]) == numbers


# Of each type the offsets of fields, and by "" its size.
LAYOUTS = {
    "struct open_how": {"": 24, "resolve": 16},
    "struct mount_attr": {"": 32, "attr_clr": 8, "propagation": 16},
    "struct statfs": {"": 120, "f_type": 0},
    "struct statx": {"": 256, "stx_attributes": 8, "stx_mode": 28, "stx_ino": 32, "stx_rdev_major": 128}
    | {"stx_dev_major": 136, "stx_mnt_id": 144},
    "sa_family_t": {"": 2},
    "struct sockaddr_un": {"sun_path": 2},
    "struct bpf_insn": {"": 8},
    "union bpf_attr": {"query.prog_ids": 16, "query.prog_cnt": 24, "prog_name": 48, "replace_bpf_fd": 16},
    "struct bpf_prog_info": {"id": 4, "xlated_prog_len": 20, "xlated_prog_insns": 32},
}


def test_layouts_are_the_kernels(tmp_path: Path) -> None:
    expected = {
        f"offsetof({type}, {field})" if field else f"sizeof({type})": number
        for type, fields in LAYOUTS.items()
        for field, number in fields.items()
    }
    assert compiled(tmp_path, list(expected)) == expected


@pytest.mark.parametrize("path", ["/", "/etc/passwd", "/dev/null", "/proc/self/exe", "/dev/pts"])
def test_what_is_known_of_a_file_is_what_fstat_says(path: str) -> None:
    with closing(os.open(path, os.O_PATH)) as fd:
        known, status = syscalls.known_of(fd), os.fstat(fd)
    assert known == (status.st_mode, status.st_dev, status.st_ino, status.st_rdev)


def test_an_error_names_the_call_and_its_subject() -> None:
    with pytest.raises(OSError, match=r"^openat2 nowhere/at/all: No such file or directory$"):
        syscalls.openat2(syscalls.AT_FDCWD, "nowhere/at/all", os.O_PATH, resolve=0)


def test_a_mount_is_found_in_mountinfo_by_its_id() -> None:
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    with closing(os.open("/proc", os.O_PATH)) as fd:
        (id, is_root), magic = syscalls.mount_of(fd), syscalls.filesystem_magic(fd)
    assert is_root and [fields[4] for fields in lines if fields[0] == str(id)] == ["/proc"]
    mount = mountinfo.mount(procfile.pieces("/proc/self/mountinfo"), id)
    assert mount is not None and mount.options.startswith("r")
    assert magic == syscalls.PROC_SUPER_MAGIC
    with closing(os.open("/proc/self", os.O_PATH)) as below:
        assert syscalls.mount_of(below) == (id, False)
