# SPDX-License-Identifier: Apache-2.0
"""Findings about the host around the driver: kernel, Python, settings, cgroups, eBPF, SELinux, rootless, memory."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Any

from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.errors import ConfigError, DriverError
from oci_gpu_hook.formats.decimal import beginning
from oci_gpu_hook.host.leases import FILE, read_leases
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.statefile import FOLDER
from oci_gpu_hook.kernel.filetypes import is_open_to_others
from oci_gpu_hook.node.diagnosis import Finding, failed, passed, warned
from oci_gpu_hook.node.diagnosis.remedy import UPGRADE_KERNEL, command, roots_alone, then
from oci_gpu_hook.node.engines import containers
from oci_gpu_hook.node.engines.installed import find_program, is_ours
from oci_gpu_hook.node.machine import kernelconfig, libselinux
from oci_gpu_hook.node.machine.libselinux import CGROUP_V1_BOOLEAN, NODE_BOOLEANS
from oci_gpu_hook.planning import memoryshare
from oci_gpu_hook.planning.plan import Held, some
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import SETTINGS, Settings, files, read_settings
from oci_gpu_hook.request.settingsfile import Setting, read_files

_LIBSELINUX = {"dnf": "python3-libselinux", "apt": "python3-selinux"}
_INSTALL = command("oci-gpu-hook", "selinux", "install")
# By which the hook may limit device memory, itself and by NVML.
MEMORY_BOOLEAN, NVML_BOOLEAN = "oci_gpu_hook_limit_memory", "oci_gpu_hook_use_nvml"


def kernel(release: str, tool: str) -> Finding:
    """Whether the kernel is new enough for detached mounts and their attributes."""
    if beginning(release) >= (5, 14):
        return passed("kernel", release)
    return failed("kernel", f"{release or 'unknown'}, and the hook needs 5.14 or newer", UPGRADE_KERNEL[tool])


def python(interpreter: str, file: str, tool: str) -> Finding:
    """The entry script's interpreter; file: what its path leads to, named by the version, "" if there is none."""
    if not file:
        return failed("Python", f"{interpreter or 'none'} is not there", tool, "install", "python3")
    version = beginning(file.rpartition("python")[2])
    if len(version) > 1 and version < (3, 9):
        seen = f"{interpreter} is {file}, and the hook needs 3.9 or newer"
        return failed("Python", seen, "make", "install", "PYTHON=/usr/bin/python3.9")
    return passed("Python", f"{interpreter} is {file}")


def settings(host: HostRoot, config: str | None) -> tuple[Settings, list[Setting], Finding]:
    """The administrator's settings, the defaults if they cannot be read; their lines; the finding about the files."""
    top = host.path.rstrip("/")
    path = config or f"{top}{SETTINGS}"
    try:
        names = files(config, top)
        found, lines = read_settings(config, None, top), read_files(names)
    except ConfigError as err:
        # ``FILE:LINE: why`` for a line, ``cannot read FILE: why`` for a file.
        file, _, rest = err.message.partition(":")
        line, unread = rest.partition(":")[0], file.rpartition(" ")[2]
        fix = ["mv", unread, f"{unread}.broken"] if "directory" in rest else ["vi", unread]
        fix = ["chmod", "a+r", unread] if err.message.endswith(os.strerror(errno.EACCES)) else fix
        return Settings(), [], failed("settings", err.message, *(["vi", f"+{line}", file] if line.isdigit() else fix))
    for place in (f"{path}.d", *names):
        with suppress(OSError):
            if is_open_to_others(os.stat(place)):
                return found, lines, failed("settings", f"others than root may write {place}", roots_alone(place))
    folder, _, name = found.runtime.rpartition("/")
    is_runtime = find_program(host, name, (folder,)) and not is_ours(host, found.runtime)
    is_any = found.docker_count == "any" and not any([it.field == "gpu_holders" for it in lines])
    for field, is_fault, seen in (
        ("runtime", name and not is_runtime, "names no program for oci-gpu-runtime to become: it starts no container"),
        ("docker_count", is_any, "is any, and gpu-holders is not set: a container that asks for a number is refused"),
    ):
        if is_fault:
            file, _, line = [it.where for it in lines if it.field == field and not it.scope][-1].rpartition(":")
            return found, lines, failed("settings", f"{field.replace('_', '-')} {seen}", "vi", f"+{line}", file)
    return found, lines, passed("settings", some(names) if names else "none: the defaults hold")


def leases(host: HostRoot) -> list[Finding]:
    """Whether starts can read them: one that counts holders is refused otherwise."""
    try:
        read_leases(host)
    except ConfigError as err:
        return [failed("leases", err.message, "rm", f"{FOLDER}/{FILE}")]
    return []


def cgroups(version: str) -> Finding:
    if version:
        return passed("cgroups", version)
    seen = "/sys/fs/cgroup is neither v2 nor has it the devices controller of v1"
    return failed("cgroups", seen, "mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")


def ebpf(host: HostRoot, cgroups: str) -> Finding:
    if cgroups != "v2" or host.path != "/":
        return passed("eBPF", "not tried: only cgroup v2 has device programs, and only this host's root a kernel")
    try:
        kernelconfig.try_device_program()
    except OSError as err:
        if os.geteuid() != 0:
            return warned("eBPF", "only root can try it", "oci-gpu-hook", "doctor")
        seen = f"the kernel takes no device program from root: {err.strerror or err}"
        # systemd-run gives all of root's capabilities: it shows whether CAP_BPF is missing in this session only.
        return failed("eBPF", seen, "systemd-run", "--pty", "oci-gpu-hook", "doctor")
    return passed("eBPF", "device programs are taken")


def rootless(host: HostRoot, names: list[str]) -> Finding:
    """Whether users can read the files of settings, `names`, as the starts of their containers do."""
    has_ids = all([host.read(f"/etc/{name}") for name in ("subuid", "subgid")])
    if not (has_ids and find_program(host, "newuidmap")) and not containers.users_have_some(host):
        return passed("rootless", "no container of a user's runs here")
    for path in names:
        with suppress(OSError):
            if not os.stat(path).st_mode & stat.S_IROTH:
                seen = f"users cannot read {path}: their containers get no GPU"
                return warned("rootless", seen, "chmod", "a+r", path)
    return passed("rootless", "users can read the settings")


def selinux(host: HostRoot, cgroups: str, tool: str) -> list[Finding]:
    try:
        status = libselinux.status(host)
    except ConfigError:
        return [warned("SELinux", "this Python has no libselinux to ask", tool, "install", _LIBSELINUX[tool])]
    if not status.enabled:
        return [passed("SELinux", "disabled: nothing is labelled")]
    findings = [passed("SELinux", f"{'enforcing' if status.enforcing else 'permissive'}, policy {status.policy}")]
    for module in status.modules:
        check = f"SELinux module {module.name}"
        is_half = module.readable and bool(module.priorities) != module.in_force
        findings.append(failed(check, module.state, _INSTALL) if is_half else passed(check, module.state))
    for use in [use for use in status.uses if use.nodes in ("any", "made by the hook")]:
        check, seen = f"SELinux type {use.type}", f"{'can' if use.can else 'cannot'} use GPUs: {use.why}"
        remedy = then(command("dnf", "install", "container-selinux"), _INSTALL)
        is_fault = use.type == "container_t" and not use.can
        findings.append(failed(check, seen, remedy) if is_fault else passed(check, seen))
    for name in [name for name, on in status.booleans.items() if on and name in NODE_BOOLEANS]:
        seen = f"{name} is on: every container may use the host's nodes, which the hook does not need"
        findings.append(warned("SELinux boolean", seen, "setsebool", "-P", name, "off"))
    is_on = status.booleans.get(CGROUP_V1_BOOLEAN)
    if is_on and cgroups == "v2":
        seen = f"{CGROUP_V1_BOOLEAN} is on: the hook may write to every cgroup, which v2 does not need"
        findings.append(warned("SELinux boolean", seen, "setsebool", "-P", CGROUP_V1_BOOLEAN, "off"))
    if is_on is False and cgroups == "v1":
        seen = f"{CGROUP_V1_BOOLEAN} is off: the hook may not open devices in cgroup v1"
        findings.append(failed("SELinux boolean", seen, "setsebool", "-P", CGROUP_V1_BOOLEAN, "on"))
    wrong = [label for label in status.labels if not label.is_right]
    if wrong:
        seen = f"{wrong[0].path} bears {wrong[0].have}, the policy says {wrong[0].expected}"
        return [*findings, failed("SELinux labels", seen, "oci-gpu-hook", "selinux", "relabel")]
    return [*findings, passed("SELinux labels", f"{len(status.labels)} files bear what the policy says")]


def memory(host: HostRoot, lines: list[Setting], settings: Settings, devices: list[Held]) -> list[Finding]:
    """Whether gpu-memory, in the first section that sets it, can be held of `devices`, as a start judges.

    lines: of the files, of which the later one holds; settings: those of no section.
    """
    last = {((it.scope, it.pattern), it.field): it for it in lines}
    ours = [(of, it) for (of, field), it in last.items() if field == "gpu_memory" and it.value != "off"]
    if not ours:
        return []
    section, (file, _, line) = ours[0][0], ours[0][1].where.rpartition(":")
    own: dict[str, Any] = {field: it.value for (of, field), it in last.items() if of == section}
    check, cgroup = "GPU memory", DeviceCgroup(kernelconfig.cgroup_version(host))
    try:
        gpus = tuple([it.key for it in devices if "=" not in it.key])
        found = memoryshare.memory_of(Request("", gpus), settings._replace(**own), host, cgroup)
        devices = [it for it in devices if found.limit_of(it) is not None]
        why = next(filter(None, map(found.why_not, devices)), "")
    except (ConfigError, DriverError) as err:
        why = err.message
    if why:
        fix = command("vi", f"+{line}", file, note="gpu-memory = off")
        return [failed(check, f"{why}: a container with a GPU is refused", fix)]
    known = [it.title() for it in devices if found.regions_of(it)]
    unknown = [it.title() for it in devices if not found.regions_of(it)]
    for is_needed, boolean, what in ((unknown, NVML_BOOLEAN, "load NVML"), (known, MEMORY_BOOLEAN, "limit it")):
        if is_needed and libselinux.boolean(host, boolean) is False:
            return [failed(check, f"{boolean} is off: the hook may not {what}", "setsebool", "-P", boolean, "on")]
    ways = (("the kernel limits", known), ("NVML of R615 or later limits", unknown))
    seen = ", ".join([f"{way} that of {some(names)}" for way, names in ways if names])
    return [passed(check, seen or "there is no GPU to limit it of")]
