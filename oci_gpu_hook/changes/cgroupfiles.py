# SPDX-License-Identifier: Apache-2.0
"""The files of one cgroup, which the kernel reads line by line: each write(2) is one."""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel import procfile, syscalls
from oci_gpu_hook.kernel.descriptors import NAMED, closing


class CgroupFiles:
    """By a descriptor: another container's cgroup may have the path when a step is taken back."""

    def __init__(self, path: str) -> None:
        self.path, self._folder = path, posix.open(path, posix.O_DIRECTORY | NAMED)

    def read(self, file: str) -> str:
        try:
            return procfile.read_whole(file, self._folder).decode(errors="replace")
        except OSError as err:
            raise syscalls.SyscallError(err.errno or 0, "read", f"{self.path}/{file}") from err

    def write(self, file: str, line: str) -> None:
        try:
            with closing(posix.open(file, posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=self._folder)) as fd:
                posix.write(fd, line.encode())
        except OSError as err:
            raise syscalls.SyscallError(err.errno or 0, "write", f"'{line}' to {self.path}/{file}") from err
