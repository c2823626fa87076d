# SPDX-License-Identifier: Apache-2.0
"""The commands, constants and structs of bpf(2) for device programs on cgroups; a function is named as its command.

Numbers and layouts are from linux/bpf.h; a test compares them with those of the C compiler.
"""

from __future__ import annotations

from oci_gpu_hook.kernel.syscalls import address_of, bpf, word, words

BPF_PROG_LOAD = 5
BPF_OBJ_PIN = 6
BPF_OBJ_GET = 7
BPF_PROG_ATTACH = 8
BPF_PROG_GET_FD_BY_ID = 13
BPF_OBJ_GET_INFO_BY_FD = 15
BPF_PROG_QUERY = 16
BPF_PROG_TYPE_CGROUP_DEVICE = 15
BPF_CGROUP_DEVICE = 6
BPF_F_QUERY_EFFECTIVE = 1
BPF_F_ALLOW_MULTI = 2
BPF_F_REPLACE = 4
# A cgroup takes 64 programs of one type (BPF_CGROUP_MAX_PROGS).
_MAX_PROGS = 64
_INSN_SIZE = 8
_LICENSE = b"Apache-2.0\0"


def prog_query(cgroup_fd: int, *, query_flags: int = 0) -> tuple[int, tuple[int, ...]]:
    """The flags that the cgroup's device programs are attached with, and their ids; with BPF_F_QUERY_EFFECTIVE those of
    the cgroups above too, and no flags.
    """
    ids = bytearray(4 * _MAX_PROGS)
    attr = words(cgroup_fd | BPF_CGROUP_DEVICE << 32, query_flags, address_of(ids), _MAX_PROGS)
    _, answer = bpf(BPF_PROG_QUERY, attr, f"BPF_PROG_QUERY of cgroup fd {cgroup_fd}")
    count = word(answer, 3) & 0xFFFFFFFF
    found = [int.from_bytes(ids[at : at + 4], "little") for at in range(0, 4 * count, 4)]
    return word(answer, 1) >> 32, tuple(found)


def prog_get_fd_by_id(prog_id: int) -> int:
    """A descriptor, close-on-exec; ENOENT once the program is gone."""
    return bpf(BPF_PROG_GET_FD_BY_ID, words(prog_id), f"BPF_PROG_GET_FD_BY_ID {prog_id}")[0]


def prog_id(prog_fd: int) -> int:
    return word(_prog_info(prog_fd, 0, 0), 0) >> 32


def prog_insns(prog_fd: int) -> bytes | None:
    """The program's instructions as the verifier left them (xlated); None if the kernel does not show them.  It needs
    CAP_BPF, and that constants are not hidden: net.core.bpf_jit_harden with kernel.kptr_restrict at 2.
    """
    size = 512 * _INSN_SIZE
    while True:
        insns = bytearray(size)
        info = _prog_info(prog_fd, size, address_of(insns))
        length = word(info, 2) >> 32
        if not length or not word(info, 4):
            return None
        if length <= size:
            return bytes(insns[:length])
        size = length


def _prog_info(prog_fd: int, size: int, insns: int) -> bytearray:
    """The first 40 bytes of struct bpf_prog_info, as words: type and id; tag; jited_prog_len and xlated_prog_len;
    jited_prog_insns; xlated_prog_insns.
    """
    info = bytearray(words(0, 0, size << 32, 0, insns))
    attr = words(prog_fd | len(info) << 32, address_of(info))
    bpf(BPF_OBJ_GET_INFO_BY_FD, attr, f"BPF_OBJ_GET_INFO_BY_FD {prog_fd}")
    return info


def prog_load(insns: bytes, *, name: str) -> int:
    """A descriptor of a device program, close-on-exec.  `name` is for bpftool, 15 characters at most."""
    # Both must stay in memory until the kernel has read them.
    program, license = bytearray(insns), bytearray(_LICENSE)
    count = len(program) // _INSN_SIZE
    # Without a log of the verifier's, which costs it time: no log_level, log_size, log_buf, kern_version, prog_flags.
    attr = words(BPF_PROG_TYPE_CGROUP_DEVICE | count << 32, address_of(program), address_of(license), 0, 0, 0)
    return bpf(BPF_PROG_LOAD, attr + name.encode().ljust(16, b"\0"), f"BPF_PROG_LOAD {name}")[0]


def obj_pin(prog_fd: int, path: str) -> None:
    """Keep a program at `path`, where nothing is, in a filesystem of type bpf."""
    name = bytearray(path.encode() + b"\0")
    bpf(BPF_OBJ_PIN, words(address_of(name), prog_fd), f"BPF_OBJ_PIN {path}")


def obj_get(path: str) -> int:
    """A descriptor, close-on-exec."""
    name = bytearray(path.encode() + b"\0")
    return bpf(BPF_OBJ_GET, words(address_of(name)), f"BPF_OBJ_GET {path}")[0]


def prog_attach(cgroup_fd: int, prog_fd: int, *, attach_flags: int, replace_fd: int = 0) -> None:
    """With BPF_F_REPLACE (Linux 5.6), in place of `replace_fd`."""
    attr = words(cgroup_fd | prog_fd << 32, BPF_CGROUP_DEVICE | attach_flags << 32, replace_fd)
    bpf(BPF_PROG_ATTACH, attr, f"BPF_PROG_ATTACH to cgroup fd {cgroup_fd}")
