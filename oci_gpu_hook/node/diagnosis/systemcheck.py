# SPDX-License-Identifier: Apache-2.0
"""Findings about the host around the driver: kernel, Python, settings, cgroups, eBPF, SELinux, rootless.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding
from oci_gpu_hook.node.diagnosis.remedy import REBOOT, Remedy, command, then

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.errors import ConfigError
    from oci_gpu_hook.node.engines.installed import Engine
    from oci_gpu_hook.node.machine.kernelconfig import Kernel
    from oci_gpu_hook.node.machine.libselinux import Label, Module, Status, Use

OLDEST_KERNEL = (5, 14)
OLDEST_PYTHON = (3, 9)
_UPGRADE = {
    "dnf": then(command("dnf", "upgrade", "kernel"), REBOOT),
    "apt": then(command("apt", "full-upgrade"), REBOOT),
}
_NEWUIDMAP = {"dnf": "shadow-utils-subid", "apt": "uidmap"}
_LIBSELINUX = {"dnf": "python3-libselinux", "apt": "python3-selinux"}
# What sections go by and an engine's containers do not tell.
UNSAID = {"Docker": ("image", "namespace")}
_INSTALL = command("oci-gpu-hook", "selinux", "install")
_MOUNT = command("mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
_CGROUP_V1_BOOLEAN = "oci_gpu_hook_use_cgroup_v1"
_OPEN_TO_ALL_DEVICES = ("container_use_devices", "container_use_xserver_devices")


def kernel(found: Kernel, tool: str) -> list[Finding]:
    """Whether the kernel is new enough for detached mounts and their attributes."""
    numbers = tuple([int(word) for word in _digits(found.release).split(".")[:2] if word])
    if numbers >= OLDEST_KERNEL:
        return [Finding("kernel", PASS, found.release)]
    oldest = ".".join([str(number) for number in OLDEST_KERNEL])
    seen = f"{found.release or 'unknown'}, and the hook needs {oldest} or newer"
    return [Finding("kernel", FAIL, seen, _UPGRADE[tool])]


def python(interpreter: str, file: str, tool: str) -> list[Finding]:
    """The entry script's interpreter.  `file`: what its path leads to, named by the version; "" if there is none."""
    if not file:
        return [Finding("Python", FAIL, f"{interpreter or 'none'} is not there", command(tool, "install", "python3"))]
    words = _digits(file.rpartition("python")[2]).split(".")
    numbers = tuple([int(word) for word in words if word])
    if len(numbers) > 1 and numbers < OLDEST_PYTHON:
        seen = f"{interpreter} is {file}, and the hook needs 3.9 or newer"
        return [Finding("Python", FAIL, seen, command("make", "install", "PYTHON=/usr/bin/python3.9"))]
    return [Finding("Python", PASS, f"{interpreter} is {file}")]


def settings(error: ConfigError | None, path: str, is_open: bool, is_there: bool) -> list[Finding]:
    """The administrator's files: `error` is what the hook would say of them, None if they are right."""
    if error is not None:
        remedy = _fixed(error.message)
        return [Finding("settings", FAIL, error.message, remedy)]
    if is_open:
        seen = f"others than root may write {path}"
        return [Finding("settings", FAIL, seen, roots_alone(path))]
    return [Finding("settings", PASS, path if is_there else "none: the defaults hold")]


def sections(scopes: Iterable[str], engines: Iterable[str]) -> list[Finding]:
    """A warning for each engine that does not say what the settings' sections go by."""
    findings = []
    for engine in engines:
        unsaid = [scope for scope in UNSAID.get(engine, ()) if scope in scopes]
        if unsaid:
            seen = f"{engine} does not say a container's {' and '.join(unsaid)}: of sections for it the strictest hold"
            findings.append(Finding("settings", WARN, seen, command("oci-gpu-hook", "config", "show")))
    return findings


def roots_alone(*paths: str) -> Remedy:
    """Take files and folders from everybody but root."""
    return then(command("chown", "root:", *paths), command("chmod", "go-w", *paths))


def _fixed(message: str) -> Remedy:
    """The command for an error of the settings: ``FILE:LINE: why`` for a line, ``cannot read FILE: why`` for a file."""
    file, _, rest = message.partition(":")
    line = rest.partition(":")[0]
    if line.isdigit():
        return command("vi", f"+{line}", file)
    file = file.rpartition(" ")[2]
    if "Permission denied" in message:
        return command("chmod", "0644", file)
    return command("mv", file, f"{file}.broken") if "directory" in rest else command("vi", file)


def cgroups(found: Kernel, engines: tuple[Engine, ...]) -> list[Finding]:
    """The version of cgroups, and the engines' cgroup managers."""
    if not found.cgroups:
        seen = "/sys/fs/cgroup is neither v2 nor has it the devices controller of v1"
        return [Finding("cgroups", FAIL, seen, _MOUNT)]
    default = "systemd" if found.systemd else "cgroupfs"
    managers = [f"{engine.name}'s manager is {engine.cgroup_manager or default}" for engine in engines]
    wrong = [e for e in engines if e.cgroup_manager == "systemd" and not found.systemd]
    if wrong:
        seen = f"{wrong[0].name} is set to use systemd's cgroups, and systemd does not run here"
        script = "/^ *cgroup_manager *=/s/systemd/cgroupfs/"
        remedy = command("sed", "-i", script, wrong[0].manager_file)
        return [Finding("cgroups", FAIL, seen, remedy)]
    return [Finding("cgroups", PASS, "; ".join([found.cgroups, *managers]))]


def ebpf(found: Kernel, as_root: bool) -> list[Finding]:
    """Whether the kernel takes our device programs, which cgroup v2 needs."""
    if found.cgroups != "v2":
        return [Finding("eBPF", PASS, "not needed: only v2 has programs")]
    if found.bpf_refusal is None:
        return [Finding("eBPF", PASS, "not tried: another root has no kernel of its own")]
    if found.bpf_refusal and not as_root:
        return [Finding("eBPF", WARN, "only root can try it", command("sudo", "oci-gpu-hook", "doctor"))]
    if found.bpf_refusal:
        # systemd-run gives all of root's capabilities: it shows whether CAP_BPF is missing in this session only.
        remedy = command("systemd-run", "--pty", "oci-gpu-hook", "doctor")
        seen = f"the kernel takes no device program from root: {found.bpf_refusal}"
        if found.lockdown not in ("", "none"):
            seen += f" (lockdown is {found.lockdown})"
            words = ("--update-kernel=ALL", "--remove-args=lockdown=confidentiality")
            remedy = command("grubby", *words)
        return [Finding("eBPF", FAIL, seen, remedy)]
    hidden = found.sysctls.get("kernel/kptr_restrict", 0) >= 2
    hidden = hidden and found.sysctls.get("net/core/bpf_jit_harden", 0) >= 2
    seen = "device programs are taken"
    if hidden:
        seen += "; those of others are hidden, and the hook rebuilds them"
    return [Finding("eBPF", PASS, seen)]


def rootless(found: Kernel, subids: bool, newuidmap: bool, used: bool, tool: str) -> list[Finding]:
    """What rootless containers need of the host; used: whether any user has containers of his own."""
    check = "rootless"
    if not used and not (subids and newuidmap):
        return [Finding(check, PASS, "no user has containers of his own here")]
    if found.sysctls.get("user/max_user_namespaces", 1) == 0:
        seen = "the kernel gives no user namespaces"
        return [Finding(check, WARN, seen, command("sysctl", "-w", "user.max_user_namespaces=65536"))]
    if found.sysctls.get("kernel/unprivileged_userns_clone", 1) == 0:
        seen = "plain users get no user namespaces"
        return [Finding(check, WARN, seen, command("sysctl", "-w", "kernel.unprivileged_userns_clone=1"))]
    if not newuidmap:
        seen = "newuidmap is missing: users have only their own id"
        return [Finding(check, WARN, seen, command(tool, "install", _NEWUIDMAP[tool]))]
    if not subids:
        seen = "/etc/subuid or /etc/subgid has no entry"
        ids = "100000-165535"
        remedy = command("usermod", "--add-subuids", ids, "--add-subgids", ids, "USER")
        return [Finding(check, WARN, seen, remedy)]
    return [Finding(check, PASS, "user namespaces, newuidmap and ranges of ids are there")]


def selinux(status: Status | None, is_there: bool, cgroups: str, tool: str) -> list[Finding]:
    """Mode, modules, booleans, labels and container types.

    status: None if libselinux is missing; cgroups: the version of cgroups, as `Kernel` has it.
    """
    if not is_there:
        return [Finding("SELinux", PASS, "disabled: nothing is labelled")]
    if status is None:
        remedy = command(tool, "install", _LIBSELINUX[tool])
        return [Finding("SELinux", WARN, "this Python has no libselinux to ask", remedy)]
    mode = "enforcing" if status.enforcing else "permissive"
    findings = [Finding("SELinux", PASS, f"{mode}, policy {status.policy}")]
    findings += [_module(module) for module in status.modules]
    findings += [_type(use) for use in status.uses if use.nodes in ("any", "made by the hook")]
    findings += [
        Finding(
            "SELinux boolean",
            WARN,
            f"{name} is on: every container may use the host's nodes, which the hook does not need",
            command("setsebool", "-P", name, "off"),
        )
        for name, on in status.booleans
        if on and name in _OPEN_TO_ALL_DEVICES
    ]
    return [*findings, *_cgroup_boolean(dict(status.booleans), cgroups), *_labels(status.labels)]


def _cgroup_boolean(booleans: dict[str, bool], cgroups: str) -> list[Finding]:
    """Whether the hook may write cgroup v1's files, which it must on v1 and needs not on v2."""
    is_on = booleans.get(_CGROUP_V1_BOOLEAN)
    if is_on is None or not cgroups:
        return []
    check = "SELinux and cgroups"
    if is_on == (cgroups == "v1"):
        seen = f"{_CGROUP_V1_BOOLEAN} is {'on' if is_on else 'off'}, as cgroup {cgroups} needs it"
        return [Finding(check, PASS, seen)]
    if is_on:
        seen = f"{_CGROUP_V1_BOOLEAN} is on: the hook may write to every cgroup, which v2 does not need"
        return [Finding(check, WARN, seen, command("setsebool", "-P", _CGROUP_V1_BOOLEAN, "off"))]
    seen = f"{_CGROUP_V1_BOOLEAN} is off: the hook may not open devices in cgroup v1"
    return [Finding(check, FAIL, seen, command("setsebool", "-P", _CGROUP_V1_BOOLEAN, "on"))]


def _module(module: Module) -> Finding:
    check = f"SELinux module {module.name}"
    if module.readable and bool(module.priorities) != module.in_force:
        return Finding(check, FAIL, module.state, _INSTALL)
    return Finding(check, PASS, module.state)


def _type(use: Use) -> Finding:
    check = f"SELinux type {use.type}"
    if use.can or use.type != "container_t":
        return Finding(check, PASS, f"{'can' if use.can else 'cannot'} use GPUs: {use.why}")
    remedy = then(command("dnf", "install", "container-selinux"), _INSTALL)
    return Finding(check, FAIL, f"cannot use GPUs: {use.why}", remedy)


def _labels(labels: tuple[Label, ...]) -> list[Finding]:
    wrong = [label for label in labels if not label.is_right]
    if not wrong:
        return [Finding("SELinux labels", PASS, f"{len(labels)} files bear what the policy says")]
    first = wrong[0]
    seen = f"{first.path} bears {first.actual}, the policy says {first.expected}"
    paths = [label.path for label in wrong]
    return [Finding("SELinux labels", FAIL, seen, command("restorecon", "-v", *paths))]


def _digits(text: str) -> str:
    """The version that a text begins with."""
    end = next((at for at, letter in enumerate(text) if letter not in "0123456789."), len(text))
    return text[:end].strip(".")
