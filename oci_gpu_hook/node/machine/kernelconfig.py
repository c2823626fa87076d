# SPDX-License-Identifier: Apache-2.0
"""The kernel, as far as the hook depends on it.  One device program is loaded to see whether the kernel takes it, and
attached to nothing; all else is read.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, is_unified
from oci_gpu_hook.formats import devicefilter
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import bpf


def modules(host: HostRoot) -> tuple[str, ...]:
    return tuple([line.split(" ")[0] for line in host.text("/proc/modules").splitlines()])


def cgroup_version(host: HostRoot) -> str:
    """``v2``, ``v1`` with its devices controller, or "" for neither."""
    if is_unified(f"{host.path.rstrip('/')}{CGROUP_ROOT}"):
        return "v2"
    return "v1" if host.stat(f"{CGROUP_ROOT}/devices/devices.list") is not None else ""


def try_device_program() -> None:
    """OSError if the kernel takes none from us."""
    posix.close(bpf.prog_load(devicefilter.program(()), name="doctor"))
