# SPDX-License-Identifier: Apache-2.0
"""Findings about the host around the driver: kernel, Python, settings, cgroups, eBPF, SELinux, rootless.  Pure."""

from __future__ import annotations

from oci_gpu_hook.diagnosis import FAIL, PASS, WARN, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.errors import ConfigError
    from oci_gpu_hook.host.engines import Engine
    from oci_gpu_hook.host.kernel import Kernel
    from oci_gpu_hook.host.libselinux import Label, Module, Status, Use

OLDEST_KERNEL = (5, 14)
OLDEST_PYTHON = (3, 9)
_UPGRADE = {
    "dnf": "dnf upgrade kernel && systemctl reboot",
    "apt": "apt full-upgrade && systemctl reboot",
}
_PYTHON = {"dnf": "dnf install python3", "apt": "apt install python3"}
# What sections go by and an engine's containers do not tell; in podman there are no namespaces.
UNSAID = {"Docker": ("image", "namespace"), "podman": ("image",)}
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
    """The entry script's interpreter.  `file`: what its path leads to, named by the version; "" where there is none."""
    if not file:
        return [Finding("Python", FAIL, f"{interpreter or 'none'} is not there", _PYTHON[tool])]
    words = _digits(file.rpartition("python")[2]).split(".")
    numbers = tuple([int(word) for word in words if word])
    if len(numbers) > 1 and numbers < OLDEST_PYTHON:
        seen = f"{interpreter} is {file}, and the hook needs 3.9 or newer"
        return [Finding("Python", FAIL, seen, "make install PYTHON=/usr/bin/python3.9")]
    return [Finding("Python", PASS, f"{interpreter} is {file}")]


def settings(error: ConfigError | None, path: str, is_open: bool, is_there: bool) -> list[Finding]:
    """The administrator's files: `error` is what the hook would say of them, None where they are right."""
    if error is not None:
        remedy = _mended(error.message)
        return [Finding("settings", FAIL, error.message, remedy)]
    if is_open:
        seen = f"others than root may write {path}"
        return [Finding("settings", FAIL, seen, f"chown root: {path} && chmod go-w {path}")]
    return [Finding("settings", PASS, path if is_there else "none: the defaults hold")]


def sections(scopes: Iterable[str], engines: Iterable[str]) -> list[Finding]:
    """A warning for each engine that does not say what the settings' sections go by."""
    findings = []
    for engine in engines:
        unsaid = [scope for scope in UNSAID.get(engine, ()) if scope in scopes]
        if unsaid:
            seen = f"{engine} does not say a container's {' and '.join(unsaid)}: of sections for it the strictest hold"
            findings.append(Finding("settings", WARN, seen, "oci-gpu-hook config show"))
    return findings


def _mended(message: str) -> str:
    """The command for an error of the settings: ``FILE:LINE: why`` for a line, ``cannot read FILE: why`` for a file."""
    file, _, rest = message.partition(":")
    line = rest.partition(":")[0]
    if line.isdigit():
        return f"vi +{line} {file}"
    file = file.rpartition(" ")[2]
    if "Permission denied" in message:
        return f"chmod 0644 {file}"
    return f"mv {file} {file}.broken" if "directory" in rest else f"vi {file}"


def cgroups(found: Kernel, engines: tuple[Engine, ...]) -> list[Finding]:
    """The version of cgroups, and the engines' cgroup managers."""
    if not found.cgroups:
        seen = "/sys/fs/cgroup is neither v2 nor has it the devices controller of v1"
        return [Finding("cgroups", FAIL, seen, "mount -t cgroup2 none /sys/fs/cgroup")]
    default = "systemd" if found.systemd else "cgroupfs"
    managers = [
        f"{engine.name}'s manager is {engine.cgroup_manager or default}" for engine in engines
    ]
    wrong = [e for e in engines if e.cgroup_manager == "systemd" and not found.systemd]
    if wrong:
        seen = f"{wrong[0].name} is set to use systemd's cgroups, and systemd does not run here"
        remedy = f"sed -i '/^ *cgroup_manager *=/s/systemd/cgroupfs/' {wrong[0].manager_file}"
        return [Finding("cgroups", FAIL, seen, remedy)]
    return [Finding("cgroups", PASS, "; ".join([found.cgroups, *managers]))]


def ebpf(found: Kernel, as_root: bool) -> list[Finding]:
    """Whether the kernel takes our device programs, which cgroup v2 needs."""
    if found.cgroups != "v2":
        return [Finding("eBPF", PASS, "not needed: only v2 has programs")]
    if found.bpf_refusal is None:
        return [Finding("eBPF", PASS, "not tried: another root has no kernel of its own")]
    if found.bpf_refusal and not as_root:
        return [Finding("eBPF", WARN, "only root can try it", "sudo oci-gpu-hook doctor")]
    if found.bpf_refusal:
        # systemd-run gives all of root's capabilities: it shows whether CAP_BPF is missing in this session only.
        remedy = "systemd-run --pty oci-gpu-hook doctor"
        seen = f"the kernel takes no device program from root: {found.bpf_refusal}"
        if found.lockdown not in ("", "none"):
            seen += f" (lockdown is {found.lockdown})"
            remedy = "grubby --update-kernel=ALL --remove-args=lockdown=confidentiality"
        return [Finding("eBPF", FAIL, seen, remedy)]
    hidden = found.sysctls.get("kernel/kptr_restrict", 0) >= 2
    hidden = hidden and found.sysctls.get("net/core/bpf_jit_harden", 0) >= 2
    seen = "device programs are taken"
    if hidden:
        seen += "; those of others are hidden, and the hook rebuilds them"
    return [Finding("eBPF", PASS, seen)]


def rootless(found: Kernel, subids: bool, newuidmap: bool, used: bool) -> list[Finding]:
    """What rootless containers need of the host; used: whether any user has containers of his own."""
    check = "rootless"
    if not used and not (subids and newuidmap):
        return [Finding(check, PASS, "no user has containers of his own here")]
    if found.sysctls.get("user/max_user_namespaces", 1) == 0:
        seen = "the kernel gives no user namespaces"
        return [Finding(check, WARN, seen, "sysctl -w user.max_user_namespaces=65536")]
    if found.sysctls.get("kernel/unprivileged_userns_clone", 1) == 0:
        seen = "plain users get no user namespaces"
        return [Finding(check, WARN, seen, "sysctl -w kernel.unprivileged_userns_clone=1")]
    if not newuidmap:
        seen = "newuidmap is missing: users have only their own id"
        return [Finding(check, WARN, seen, "dnf install shadow-utils-subid || apt install uidmap")]
    if not subids:
        seen = "/etc/subuid or /etc/subgid names nobody"
        remedy = "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
        return [Finding(check, WARN, seen, remedy)]
    return [Finding(check, PASS, "user namespaces, newuidmap and ranges of ids are there")]


def selinux(status: Status | None, is_there: bool) -> list[Finding]:
    """Mode, modules, booleans, labels and container types; `status` is None where libselinux is missing."""
    if not is_there:
        return [Finding("SELinux", PASS, "disabled: nothing is labelled")]
    if status is None:
        remedy = "dnf install python3-libselinux || apt install python3-selinux"
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
            f"setsebool -P {name} off",
        )
        for name, on in status.booleans
        if on and name in _OPEN_TO_ALL_DEVICES
    ]
    return findings + _labels(status.labels)


def _module(module: Module) -> Finding:
    check = f"SELinux module {module.name}"
    if module.readable and bool(module.priorities) != module.in_force:
        return Finding(check, FAIL, module.state, "oci-gpu-hook selinux install")
    return Finding(check, PASS, module.state)


def _type(use: Use) -> Finding:
    check = f"SELinux type {use.type}"
    if use.can or use.type != "container_t":
        return Finding(check, PASS, f"{'can' if use.can else 'cannot'} use GPUs: {use.why}")
    remedy = "dnf install container-selinux && oci-gpu-hook selinux install"
    return Finding(check, FAIL, f"cannot use GPUs: {use.why}", remedy)


def _labels(labels: tuple[Label, ...]) -> list[Finding]:
    wrong = [label for label in labels if not label.is_right]
    if not wrong:
        return [Finding("SELinux labels", PASS, f"{len(labels)} files bear what the policy says")]
    first = wrong[0]
    seen = f"{first.path} bears {first.actual}, the policy says {first.expected}"
    paths = " ".join([label.path for label in wrong])
    return [Finding("SELinux labels", FAIL, seen, f"restorecon -v {paths}")]


def _digits(text: str) -> str:
    """The version that a text begins with."""
    end = next((at for at, letter in enumerate(text) if letter not in "0123456789."), len(text))
    return text[:end].strip(".")
