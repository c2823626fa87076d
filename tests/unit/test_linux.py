# SPDX-License-Identifier: Apache-2.0
"""Numbers and layouts of linux.py and bpf.py, compared with what the C compiler finds in the kernel's headers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oci_gpu_hook import bpf, linux, mountinfo
from oci_gpu_hook.container import mounts

HEADERS = (
    "#define _GNU_SOURCE\n#include <stddef.h>\n#include <stdio.h>\n#include <fcntl.h>\n#include <sched.h>\n"
    "#include <errno.h>\n"
    "#include <sys/syscall.h>\n#include <linux/openat2.h>\n#include <linux/mount.h>\n#include <linux/stat.h>\n"
    "#include <linux/magic.h>\n#include <linux/bpf.h>\n#include <sys/vfs.h>\n"
    "#include <sys/socket.h>\n#include <sys/un.h>\n"
)
# glibc's own umount2 flags live in a header that clashes with linux/mount.h; the others came with Linux 6.8, and
# a distribution's headers may be older.
ELSEWHERE = {
    "MNT_DETACH": 2,
    "UMOUNT_NOFOLLOW": 8,
    "STATX_MNT_ID_UNIQUE": 0x4000,
    "STATMOUNT_MNT_BASIC": 2,
}
NEW_CALLS = {"statmount": 457, "open_tree_attr": 467}


def constants() -> dict[str, int]:
    return {
        name: value
        for name, value in {**vars(linux), **vars(bpf)}.items()
        if name.isupper()
        and not name.startswith("_")
        and isinstance(value, int)
        and name != "TYPE_CHECKING"
    }


def compiled(tmp_path: Path, expressions: list[str]) -> dict[str, int]:
    """What the C compiler makes of each expression."""
    lines = [f'printf("%s %lld\\n", "{text}", (long long)({text}));' for text in expressions]
    (tmp_path / "ask.c").write_text(
        HEADERS + "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    subprocess.run(
        ["cc", "-o", tmp_path / "ask", tmp_path / "ask.c"], check=True, capture_output=True
    )
    answer = subprocess.run([tmp_path / "ask"], check=True, capture_output=True, text=True).stdout
    pairs = [line.rpartition(" ") for line in answer.splitlines()]
    return {name: int(value) for name, _, value in pairs}


def test_constants_are_the_kernels(tmp_path: Path) -> None:
    ours = {name: value for name, value in constants().items() if name not in ELSEWHERE}
    assert {name: constants()[name] for name in ELSEWHERE} == ELSEWHERE
    assert len(ours) > 20
    assert compiled(tmp_path, sorted(ours)) == ours


def test_system_call_numbers_are_the_kernels(tmp_path: Path) -> None:
    numbers = {name: number for name, number in linux._SYS.items() if name not in NEW_CALLS}
    assert {name: linux._SYS[name] for name in NEW_CALLS} == NEW_CALLS
    answer = compiled(tmp_path, [f"__NR_{name}" for name in numbers])
    assert answer == {f"__NR_{name}": number for name, number in numbers.items()}


def test_layouts_are_the_kernels(tmp_path: Path) -> None:
    expected = {
        "sizeof(struct open_how)": 24,
        "offsetof(struct open_how, resolve)": 16,
        "sizeof(struct mount_attr)": 32,
        "offsetof(struct mount_attr, attr_clr)": 8,
        "offsetof(struct mount_attr, propagation)": 16,
        "sizeof(struct statfs)": 120,
        "offsetof(struct statfs, f_type)": 0,
        "sizeof(sa_family_t)": 2,
        "sizeof(struct bpf_insn)": 8,
        "offsetof(union bpf_attr, query.prog_ids)": 16,
        "offsetof(union bpf_attr, query.prog_cnt)": 24,
        "offsetof(union bpf_attr, log_size)": 28,
        "offsetof(union bpf_attr, prog_name)": 48,
        "offsetof(union bpf_attr, replace_bpf_fd)": 16,
        "offsetof(struct bpf_prog_info, id)": 4,
        "offsetof(struct bpf_prog_info, xlated_prog_len)": 20,
        "offsetof(struct bpf_prog_info, xlated_prog_insns)": 32,
        "offsetof(struct sockaddr_un, sun_path)": 2,
    }
    assert compiled(tmp_path, list(expected)) == expected


def test_openat2_stays_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("../../../../../../etc/passwd")
    (tmp_path / "magic").symlink_to("/proc/self/root")
    root = os.open(tmp_path, os.O_PATH)
    flags = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS
    for name in ("out", "up"):
        with pytest.raises(linux.SyscallError) as caught:
            linux.openat2(root, name, os.O_RDONLY, resolve=flags)
        assert caught.value.errno == errno.ENOENT
    host = os.open("/", os.O_PATH)
    with pytest.raises(linux.SyscallError) as caught:
        linux.openat2(host, "proc/self/root", os.O_PATH, resolve=flags)
    assert caught.value.errno == errno.ELOOP
    os.close(host)
    os.close(root)


def test_an_error_names_the_call_and_its_subject() -> None:
    with pytest.raises(linux.SyscallError) as caught:
        linux.openat2(linux.AT_FDCWD, "nowhere/at/all", os.O_PATH, resolve=0)
    assert str(caught.value) == "openat2 nowhere/at/all: No such file or directory"
    assert isinstance(caught.value, OSError)


def test_descriptors_are_closed_on_exec() -> None:
    fd = linux.openat2(linux.AT_FDCWD, ".", os.O_PATH, resolve=0)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_mount_id_is_that_of_mountinfo() -> None:
    fd = os.open("/proc", os.O_PATH)
    info = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert str(linux.mount_id(fd)) in [fields[0] for fields in info if fields[4] == "/proc"]
    os.close(fd)


def test_a_mounts_propagation_is_that_of_mountinfo() -> None:
    slave = 1 << 19
    for path in ("/", "/proc", "/sys", "/dev"):
        fd = os.open(path, os.O_PATH)
        try:
            propagation = linux.mount_propagation(fd)
        except linux.SyscallError as err:
            pytest.skip(str(err))
        mount = mountinfo.find("self", linux.mount_id(fd))
        os.close(fd)
        assert mount is not None
        kinds = {tag.partition(":")[0] for tag in mount.tags} & {"shared", "master"}
        told = {"shared"} if propagation & linux.MS_SHARED else set()
        assert told | ({"master"} if propagation & slave else set()) == kinds, (path, propagation)


def test_a_kernel_without_statmount_is_asked_by_mountinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    fds = [os.open(path, os.O_PATH) for path in ("/", "/proc", "/sys", "/dev")]
    answers = [mounts._propagates(fd) for fd in fds]
    monkeypatch.setitem(linux._SYS, "statmount", 4095)  # a call that no kernel has
    with pytest.raises(linux.SyscallError) as caught:
        linux.mount_propagation(fds[0])
    assert caught.value.errno == errno.ENOSYS
    assert [mounts._propagates(fd) for fd in fds] == answers
    for fd in fds:
        os.close(fd)


def test_the_filesystem_of_proc_is_procfs() -> None:
    fd = os.open("/proc", os.O_PATH)
    assert linux.filesystem_magic(fd) == linux.PROC_SUPER_MAGIC
    os.close(fd)


# The module's private ground taken away after ctypes has taken what it needs of it.
WITHOUT_PRIVATE_NAMES = """
import sys
import ctypes
sys.path.insert(0, sys.argv[1])
sys.modules["_ctypes"] = type(sys)("_ctypes")
import posix
from oci_gpu_hook import linux
assert linux._foreign is ctypes
root = posix.open("/", posix.O_PATH)
print(linux.mount_id(root), linux.openat2(root, "/proc", posix.O_PATH, resolve=linux.RESOLVE_IN_ROOT) > root)
"""


def test_without_the_private_names_the_public_module_does_the_same() -> None:
    package = str(Path(linux.__file__).parents[1])
    command = [sys.executable, "-IB", "-c", WITHOUT_PRIVATE_NAMES, package]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    root = os.open("/", os.O_PATH)
    assert said == f"{linux.mount_id(root)} True\n"
    os.close(root)


def test_the_private_names_are_there_on_this_python() -> None:
    assert linux._foreign.__name__ == "_ctypes"
