# SPDX-License-Identifier: Apache-2.0
"""A plan as the lines of what starts containers without any hook of ours: LXC's configuration, systemd-nspawn.  Pure.

Must not decide anything: what these cannot say is told.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from oci_gpu_hook.operations import Device, Mount, OpenCgroup, Service

if TYPE_CHECKING:
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.parse import Request

CONTAINER_CLI = "nvidia-container-cli"
# What systemd-nspawn cannot do, if the plan does it.
_UNSAID = {
    "Tmpfs": "every GPU of this host shows in the container's /proc/driver/nvidia",
    "LdCache": "ld.so.cache is left alone: the loader searches the library folder, 'ldconfig -p' does not show it",
    "Symlink": "links beside the device nodes are not made",
}


def lxc(plan: Plan, request: Request) -> list[str]:
    """A hook entry, and the rules of the device cgroup, which LXC's monitor sets: for privileged containers too."""
    words = ["--user", "configure", "--no-cgroups", f"--device={','.join(request.devices)}"]
    words += [f"--{name}" for name in request.capabilities]
    # LXC appends words of its own, which are the shell's then.
    script = f'exec {shlex.join([CONTAINER_CLI, *words])} "$LXC_ROOTFS_MOUNT"'
    rules = [rule for it in plan.operations if isinstance(it, OpenCgroup) for rule in it.rules]
    return [
        f"lxc.hook.mount = /bin/sh -c {shlex.quote(script)}",
        *[f"lxc.cgroup{v}.devices.allow = c {rule.major}:{rule.minor} rw" for v in ("2", "") for rule in rules],
    ]


def nspawn(plan: Plan, *, is_file: bool) -> tuple[list[str], list[str]]:
    """Words of systemd-nspawn, or the lines of its files; and a sentence for each thing that it cannot do."""
    nodes = [it.path for it in plan.operations if isinstance(it, Device)]
    pairs: list[tuple[str, str, str]] = [("Bind", path, path) for path in nodes]
    for it in plan.operations:
        if isinstance(it, Mount) and not it.source.startswith("/proc/"):
            pairs += [("BindReadOnly", it.source, path) for path in it.paths()]
        elif isinstance(it, Service):
            pairs.append(("Bind", it.source, it.target))
    kinds = {type(it).__name__ for it in plan.operations}
    unsaid = [sentence for kind, sentence in _UNSAID.items() if kind in kinds]
    # systemd-nspawn(1): a backslash keeps a colon in a path.
    binds = [(key, ":".join(path.replace(":", "\\:") for path in paths)) for key, *paths in pairs]
    if is_file:
        files = ["[Files]", *[f"{key}={value}" for key, value in binds]]
        unit = ["", "# systemd-nspawn@.service.d/gpus.conf", "[Service]"]
        return ["# systemd.nspawn(5)", *files, *unit, *[f"DeviceAllow={path} rw" for path in nodes]], unsaid
    options = {"Bind": "--bind", "BindReadOnly": "--bind-ro"}
    rules = [f"--property=DeviceAllow={path} rw" for path in nodes]
    return [*rules, *[f"{options[key]}={value}" for key, value in binds]], unsaid
