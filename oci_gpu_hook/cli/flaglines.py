# SPDX-License-Identifier: Apache-2.0
"""What gives GPUs to containers, for each engine, as words and lines to paste.  Pure."""

from __future__ import annotations

import shlex
from string import Template

from oci_gpu_hook.node.engines.installed import HOOKS_FOLDER, PROGRAM, RUNTIME
from oci_gpu_hook.operations import Device, Mount, OpenCgroup, Service
from oci_gpu_hook.planning.plan import Plan
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.words import ALL, VISIBLE_DEVICES

_BY_RUNTIME = f'by the runtime: daemon.json needs "runtimes": {{"{RUNTIME}": {{"path": "{PROGRAM}"}}}}'
_SPEC = "oci-gpu-hook cdi generate --output /run/cdi/oci-gpu-hook.yaml"

# What systemd-nspawn cannot do, if the plan does it.
_NOT_BY_NSPAWN = {
    "Tmpfs": "every GPU of this host shows in the container's /proc/driver/nvidia",
    "LimitMemory": "no limit holds its GPUs' memory",
    "Symlink": "links beside the device nodes are not made",
}


# What each way needs, for people, and its words, with the placeholders of `filled`.
DOCKER = {
    "gpus": (
        "by --gpus: needs the package oci-gpu-hook-docker, or 'make install-docker', and a restart of dockerd",
        "--gpus $csv",
    ),
    "runtime": (_BY_RUNTIME, f"--runtime {RUNTIME} --env {VISIBLE_DEVICES}=$names"),
    "cdi": (
        f'by CDI, from Docker 28.2 on, and from 25 on with "features": {{"cdi": true}} in daemon.json; needs {_SPEC}',
        "$cdi_options",
    ),
}
PODMAN = {
    "hook": (
        "by the hook; without root too, by podman 4.3; one that looks for hooks elsewhere needs "
        f"--hooks-dir {HOOKS_FOLDER}",
        f"--env {VISIBLE_DEVICES}=$names",
    ),
    "cdi": (f"by CDI; needs {_SPEC}", "$cdi_options"),
}


def filled(text: str, names: tuple[str, ...]) -> str:
    """Words of the tables above for these devices; no name in a request has a letter that needs an escape."""
    listed = ",".join(names)
    value = ALL if listed == ALL else f"device={listed}"
    return Template(text).substitute(
        names=listed,
        # Docker reads it as a line of CSV, so more than one device must stand in quotes there.
        csv=f'"{value}"' if "," in value else value,
        cdi_options=" ".join([f"--device nvidia.com/gpu={name}" for name in names]),
    )


def lxc(plan: Plan, request: Request, version: str) -> list[str]:
    """Also for privileged containers: LXC's monitor sets the device cgroup.  version: of the host's cgroups: on a host
    with v2 LXC 7 refuses lines of v1.
    """
    words = ["--user", "configure", "--no-cgroups", f"--device={','.join(request.devices)}"]
    words += [f"--{name}" for name in request.capabilities]
    # LXC appends words of its own, which are the shell's then.
    script = f'exec {shlex.join(["nvidia-container-cli", *words])} "$LXC_ROOTFS_MOUNT"'
    rules = [rule for it in plan.operations if isinstance(it, OpenCgroup) for rule in it.rules]
    group = "cgroup2" if version == "v2" else "cgroup"
    return [
        f"lxc.hook.mount = /bin/sh -c {shlex.quote(script)}",
        *[f"lxc.{group}.devices.allow = c {rule.major}:{rule.minor} rw" for rule in rules],
    ]


def with_lxc(text: str, lines: list[str]) -> str:
    """A configuration with these lines in the place of those that were made before; at its end if it has none."""
    kept: list[str] = []
    place, is_ours = -1, False
    # Not splitlines(): what follows another sign that it knows would leave its comment.
    for line in text.removesuffix("\n").split("\n") if text else ():
        is_hook = line.startswith("lxc.hook.mount") and "nvidia-container-cli" in line
        # A rule that somebody else has put there ends in rwm, as in LXC's own files.
        is_ours = is_hook or (is_ours and line.startswith("lxc.cgroup") and line.endswith(" rw"))
        if is_hook:
            place = len(kept)
        if not is_ours:
            kept.append(line)
    place = len(kept) if place < 0 else place
    return "\n".join([*kept[:place], *lines, *kept[place:], ""])


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
    unsaid = [sentence for kind, sentence in _NOT_BY_NSPAWN.items() if kind in kinds]
    # systemd-nspawn(1): a backslash keeps a colon in a path.
    binds = [(key, ":".join(path.replace(":", "\\:") for path in paths)) for key, *paths in pairs]
    if is_file:
        files = ["[Files]", *[f"{key}={value}" for key, value in binds]]
        unit = ["", "# systemd-nspawn@.service.d/gpus.conf", "[Service]"]
        return ["# systemd.nspawn(5)", *files, *unit, *[f"DeviceAllow={path} rw" for path in nodes]], unsaid
    options = {"Bind": "--bind", "BindReadOnly": "--bind-ro"}
    rules = [f"--property=DeviceAllow={path} rw" for path in nodes]
    return [*rules, *[f"{options[key]}={value}" for key, value in binds]], unsaid
