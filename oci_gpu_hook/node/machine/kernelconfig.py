# SPDX-License-Identifier: Apache-2.0
"""The kernel and the host, as far as the hook depends on them.  One device program is loaded to see whether the kernel
takes it, and attached to nothing; all else is read.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, is_unified
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import bpf
from oci_gpu_hook.record import NamedTuple

# r0 = 1; exit: "allowed", as a device program answers.
_ALLOW = bytes.fromhex("b7000000010000009500000000000000")


class Kernel(NamedTuple):
    """cgroups: ``v2``, ``v1`` with its devices controller, or "" for neither; bpf_refusal: why the kernel takes no
    device program from us, "" if it does, None if that was not tried.
    """

    release: str
    cgroups: str
    bpf_refusal: str | None
    modules: tuple[str, ...]


def read_kernel(host: HostRoot) -> Kernel:
    cgroups = cgroup_version(host)
    return Kernel(
        release=host.text("/proc/sys/kernel/osrelease").strip(),
        cgroups=cgroups,
        bpf_refusal=_bpf_refusal() if cgroups == "v2" and host.path == "/" else None,
        modules=modules(host),
    )


def modules(host: HostRoot) -> tuple[str, ...]:
    return tuple([line.split(" ")[0] for line in host.text("/proc/modules").splitlines()])


def cgroup_version(host: HostRoot) -> str:
    """``v2``, ``v1`` with its devices controller, or "" for neither."""
    if is_unified(f"{host.path.rstrip('/')}{CGROUP_ROOT}"):
        return "v2"
    return "v1" if host.stat(f"{CGROUP_ROOT}/devices/devices.list") is not None else ""


def _bpf_refusal() -> str:
    try:
        posix.close(bpf.prog_load(_ALLOW, name="doctor"))
    except OSError as err:
        return err.strerror or str(err)
    return ""
