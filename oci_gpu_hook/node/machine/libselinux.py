# SPDX-License-Identifier: Apache-2.0
"""SELinux on this host.  `library` is libselinux's Python package, which not every host has.  Reads only."""

from __future__ import annotations

import posix
from contextlib import suppress
from typing import Any

from oci_gpu_hook.container.ipc import label_of
from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import S_IFDIR
from oci_gpu_hook.node.machine.filecontext import SHARED, type_of
from oci_gpu_hook.record import NamedTuple

# Each has a type of its name, which is known only while its rules are loaded.
MODULES = ("nvidia_container", "oci_gpu_hook")
# The targeted policy's booleans that let plain containers use nodes bound from the host; the narrower one first.
NODE_BOOLEANS = ("container_use_xserver_devices", "container_use_devices")
# A boolean of ours, and those of policies, Debian 13's first, that let every container do what it would forbid to ours.
_DRI_BOOLEAN = "nvidia_container_use_dri"
_DRI_OF_ALL = ("container_use_dri", "container_use_dri_devices", "container_use_devices")
# How the booleans begin that are shown: ours, and those.
_SHOWN = ("nvidia_container_", "nvidia_agent_", "oci_gpu_hook_", *NODE_BOOLEANS, *_DRI_OF_ALL)
# Whether the hook may write the rules of cgroup v1; on v2 it writes no file of a cgroup.
CGROUP_V1_BOOLEAN = "oci_gpu_hook_use_cgroup_v1"
_SELINUXFS = "/sys/fs/selinux"

# What our file contexts name: paths; and nodes, by their folder and how their names begin.
PATHS = (
    "/etc/oci-gpu-hook.conf",
    "/etc/oci-gpu-hook.conf.d",
    "/run/oci-gpu-hook",
    "/usr/bin/oci-gpu-runtime",
    "/usr/libexec/oci-gpu-hook-start",
    "/usr/libexec/oci/hooks.d/oci-gpu-hook",
    "/usr/lib/oci-gpu-hook",
    *SHARED,
)
NODES = (("/dev", "nvidia"), ("/dev/nvidia-caps", "nvidia-cap"), ("/dev/nvidia-caps-imex-channels", "channel"))

_OWN_NODE = "system_u:object_r:container_file_t:s0"
_HOSTS_NODE = "system_u:object_r:xserver_misc_device_t:s0"


class Module(NamedTuple):
    """priorities: in the store; in_force: whether the loaded policy knows its type; readable: whether the store is."""

    name: str
    priorities: tuple[str, ...]
    in_force: bool
    readable: bool = True

    @property
    def state(self) -> str:
        if not self.readable:
            return "in force (only root can see its priority)" if self.in_force else "not in force"
        if bool(self.priorities) == self.in_force:
            return "installed" if self.in_force else "not installed"
        if self.in_force:
            return "in force, and not in the store: the policy was built without it and not loaded yet"
        return "half installed: in the store, but the loaded policy does not know its type"


class Label(NamedTuple):
    path: str
    have: str
    expected: str

    @property
    def is_right(self) -> bool:
        """Whether both have the same type: restorecon compares nothing else."""
        return self.expected == "none" or type_of(self.have) == type_of(self.expected)


class Use(NamedTuple):
    type: str
    nodes: str
    can: bool
    why: str


class Status(NamedTuple):
    """void: booleans of ours that are off and forbid nothing, with the one that allows the same to all containers."""

    enabled: bool
    enforcing: bool
    policy: str
    version: int
    modules: tuple[Module, ...]
    booleans: dict[str, bool]
    void: dict[str, str]
    labels: tuple[Label, ...]
    uses: tuple[Use, ...]


def is_there(host: HostRoot) -> bool:
    """Whether the kernel has SELinux enabled.  Needs no libselinux."""
    return host.stat(f"{_SELINUXFS}/enforce") is not None


def policy_name(host: HostRoot) -> str:
    """SELINUXTYPE in a root's settings, such as targeted; "" if it is not set."""
    lines = [line.partition("=") for line in host.text("/etc/selinux/config").split("\n")]
    return {key.strip(): value.strip() for key, _, value in lines}.get("SELINUXTYPE", "")


def has_store(host: HostRoot) -> bool:
    """Whether there is a policy to install modules in.  Without one, semodule makes an empty policy and fails."""
    return bool((name := policy_name(host)) and host.names(f"/etc/selinux/{name}/policy"))


def is_store_readable(host: HostRoot) -> bool:
    """Whether we may see which modules are installed: only root may, and only where there is a policy."""
    return any([host.names(folder) for folder in _store_folders(host)])


def priorities(host: HostRoot, name: str) -> tuple[str, ...]:
    """The priorities at which the store has a module; the highest first, which counts."""
    every = [(folder, at) for folder in _store_folders(host) for at in host.names(folder) if at.isdigit()]
    found = {at for folder, at in every if name in host.names(f"{folder}/{at}")}
    return tuple(sorted(found, key=int, reverse=True))


def _store_folders(host: HostRoot) -> list[str]:
    return [f"{store}/{policy_name(host)}/active/modules" for store in ("/var/lib/selinux", "/etc/selinux")]


def status(host: HostRoot) -> Status:
    """All but `enabled` is empty if it is disabled.  ConfigError if this Python has no package ``selinux`` to ask.
    Another root than "/" is the host's, seen from a container: the kernel is the same.
    """
    if not is_there(host):
        return Status(False, False, "", 0, (), {}, {}, (), ())
    library = imported()
    if library is None:
        hint = "install python3-libselinux (dnf) or python3-selinux (apt)"
        raise ConfigError("this Python has no package selinux (libselinux)", hint)
    policy = policy_name(host)
    if host.path != "/":
        library.set_selinuxmnt(f"{host.path}{_SELINUXFS}")
        library.selinux_set_policy_root(f"{host.path}/etc/selinux/{policy}")
    names = [name for name in library.security_get_boolean_names()[1] if name.startswith(_SHOWN)]
    booleans = {name: library.security_get_boolean_active(name) == 1 for name in sorted(names)}
    of_all = [name for name in _DRI_OF_ALL if booleans.get(name)]
    is_readable = is_store_readable(host)
    modules = [Module(it, priorities(host, it), knows_type(library, f"{it}_t"), is_readable) for it in MODULES]
    return Status(
        enabled=True,
        enforcing=library.security_getenforce() == 1,
        policy=policy,
        version=library.security_policyvers(),
        modules=tuple(modules),
        booleans=booleans,
        void={_DRI_BOOLEAN: of_all[0]} if of_all and booleans.get(_DRI_BOOLEAN) is False else {},
        labels=tuple([_label(library, host, path) for path in paths(host)]),
        uses=_uses(library, booleans),
    )


def paths(host: HostRoot) -> list[str]:
    """Those of `NODES` and `PATHS` that exist and are root's: they are relabelled after an installation, and shown."""
    nodes = [f"{folder}/{name}" for folder, begin in NODES for name in host.names(folder) if name.startswith(begin)]
    there = [(path, found) for path in (*nodes, *PATHS) if (found := host.source(path))]
    return [path for path, (is_folder, fault) in there if not fault and (path in PATHS or not is_folder)]


def knows_type(library: Any, name: str) -> bool:
    with suppress(OSError):
        return bool(library.security_check_context(f"system_u:system_r:{name}:s0") == 0)
    return False


def boolean(host: HostRoot, name: str) -> bool | None:
    """Whether a boolean is on, as the kernel says; None if the policy has none so named.  Needs no libselinux."""
    words = (host.read(f"{_SELINUXFS}/booleans/{name}") or b"").split()
    return words[0] == b"1" if words else None


def _label(library: Any, host: HostRoot, path: str) -> Label:
    actual = expected = "none"
    with suppress(OSError), closing(host.open(path)) as fd:
        actual = label_of(fd) or actual
        expected = library.matchpathcon(path, posix.fstat(fd).st_mode)[1]
    return Label(path, actual, expected)


def _uses(library: Any, booleans: dict[str, bool]) -> tuple[Use, ...]:
    found = []
    for kind in ("container_t", "nvidia_container_t", "spc_t"):
        if not knows_type(library, kind):
            hint = ": oci-gpu-hook selinux install brings it" if kind == "nvidia_container_t" else ""
            found.append(Use(kind, "any", False, f"the loaded policy does not know the type{hint}"))
            continue
        for nodes, target in (("made by the hook", _OWN_NODE), ("bound from the host", _HOSTS_NODE)):
            can = _is_allowed(library, f"system_u:system_r:{kind}:s0", target)
            found.append(Use(kind, nodes, can, _why(kind, can, target == _HOSTS_NODE, booleans)))
    return tuple(found)


def _why(kind: str, can: bool, is_bound: bool, booleans: dict[str, bool]) -> str:
    if kind != "container_t" or not (can or is_bound):
        return f"the policy {'allows' if can else 'does not allow'} it"
    available = [name for name in NODE_BOOLEANS if name in booleans and is_bound]
    if can:
        on = [name for name in available if booleans[name]]
        return f"the boolean {on[0]} is on" if on else "needs no module and no boolean"
    boolean = f", or turn {available[0]} on for all containers" if available else ""
    return f"only user namespaces need such nodes: use nvidia_container_t there{boolean}"


def _is_allowed(library: Any, source: str, target: str) -> bool:
    """Whether the loaded policy, with its booleans, lets a node be used.  This question is not audited."""
    decision = library.av_decision()
    group = library.string_to_security_class("chr_file")
    wanted = sum({library.string_to_av_perm(group, it) for it in ("open", "read", "write", "ioctl")})
    with suppress(OSError):
        library.security_compute_av(source, target, group, wanted, decision)
        return bool(decision.allowed & wanted == wanted)
    return False


def imported() -> Any:
    try:
        import selinux
    except ImportError:
        return None
    return selinux


def of_engines(host: HostRoot) -> str:
    """The label that the policy gives to what engines keep in /run; "" without SELinux or this Python's libselinux."""
    library = imported() if is_there(host) else None
    with suppress(OSError):
        return str(library.matchpathcon("/run/containers/storage", S_IFDIR)[1]) if library else ""
    return ""
