# SPDX-License-Identifier: Apache-2.0
"""What libselinux says of this host: mode, modules, booleans, labels, and which containers can use GPUs.

libselinux comes by its own Python package, which the caller imports and hands in: only the command line has it, and a
test can stand in for it.  Reads only.  Never on the hook's path.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Module, and a context that exists only while its rules are loaded.
MODULES = (
    ("nvidia_container", "system_u:system_r:nvidia_container_t:s0"),
    ("oci_gpu_hook", "system_u:system_r:oci_gpu_hook_t:s0"),
)
_BOOLEANS = ("nvidia_container_", "container_use_")
_STORES = ("/var/lib/selinux", "/etc/selinux")

# What our file contexts name, in the order of the path.
PATHS = (
    "/dev/nvidiactl",
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-nvswitchctl",
    "/run/oci-gpu-hook",
    "/run/nvidia-persistenced",
    "/run/nvidia-fabricmanager",
    "/tmp/nvidia-mps",
    "/usr/libexec/oci/hooks.d/oci-gpu-hook",
    "/usr/lib/oci-gpu-hook",
)
_NODE_FOLDERS = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")

_OWN_NODE = "system_u:object_r:container_file_t:s0"
_HOSTS_NODE = "system_u:object_r:xserver_misc_device_t:s0"
_USE = ("open", "read", "write", "ioctl")


class Module(NamedTuple):
    """One of our modules.  priorities: where the store has it; in_force: whether the loaded policy knows its type."""

    name: str
    priorities: tuple[str, ...]
    in_force: bool

    @property
    def state(self) -> str:
        """In words."""
        if bool(self.priorities) == self.in_force:
            return "installed" if self.in_force else "not installed"
        if self.in_force:
            return (
                "in force, and not in the store: the policy was built without it and not loaded yet"
            )
        return "half installed: in the store, but the loaded policy does not know its type"


class Label(NamedTuple):
    """A file's label, and the one that the file contexts give it."""

    path: str
    have: str
    expected: str


class Use(NamedTuple):
    """Whether containers of a type can use GPUs, and why."""

    type: str
    nodes: str
    can: bool
    why: str


class Status(NamedTuple):
    """All of it.  The rest is empty where SELinux is disabled."""

    enabled: bool
    enforcing: bool
    policy: str
    version: int
    modules: tuple[Module, ...]
    booleans: tuple[tuple[str, bool], ...]
    labels: tuple[Label, ...]
    uses: tuple[Use, ...]


def status(library: Any, root: HostRoot) -> Status:
    """The status of the running policy; `library` is the package ``selinux``."""
    if library.is_selinux_enabled() != 1:
        return Status(False, False, "", 0, (), (), (), ())
    policy = library.selinux_getpolicytype()[1]
    return Status(
        enabled=True,
        enforcing=library.security_getenforce() == 1,
        policy=policy,
        version=library.security_policyvers(),
        modules=tuple([_module(library, root, policy, *item) for item in MODULES]),
        booleans=_booleans(library),
        labels=tuple([_label(library, path) for path in paths(root)]),
        uses=_uses(library),
    )


def paths(root: HostRoot) -> list[str]:
    """Those of our paths that exist: what is relabelled after an installation, and shown."""
    found = [
        f"/dev/{name}" for name in root.names("/dev") if name[:6] == "nvidia" and name[6:].isdigit()
    ]
    for folder in _NODE_FOLDERS:
        found += [f"{folder}/{name}" for name in root.names(folder)]
    return [*found, *[path for path in PATHS if root.stat(path) is not None]]


def _module(library: Any, root: HostRoot, policy: str, name: str, context: str) -> Module:
    priorities = []
    for store in _STORES:
        folder = f"{store}/{policy}/active/modules"
        for priority in root.names(folder):
            if name in root.names(f"{folder}/{priority}"):
                priorities.append(priority)
    return Module(name, tuple(priorities), _is_known(library, context))


def _is_known(library: Any, context: str) -> bool:
    try:
        return bool(library.security_check_context(context) == 0)
    except OSError:
        return False


def _booleans(library: Any) -> tuple[tuple[str, bool], ...]:
    names = library.security_get_boolean_names()[1]
    ours = sorted([name for name in names if name.startswith(_BOOLEANS)])
    return tuple([(name, library.security_get_boolean_active(name) == 1) for name in ours])


def _label(library: Any, path: str) -> Label:
    try:
        have = library.lgetfilecon(path)[1]
    except OSError:
        have = "none"
    try:
        expected = library.matchpathcon(path, posix.lstat(path).st_mode)[1]
    except OSError:
        expected = "none"
    return Label(path, have, expected)


def _uses(library: Any) -> tuple[Use, ...]:
    found = []
    for kind in ("container_t", "nvidia_container_t", "spc_t"):
        context = f"system_u:system_r:{kind}:s0"
        if not _is_known(library, context):
            why = "the loaded policy does not know the type"
            if kind == "nvidia_container_t":
                why += ": oci-gpu-hook selinux install brings it"
            found.append(Use(kind, "any", False, why))
            continue
        for nodes, target in (
            ("made by the hook", _OWN_NODE),
            ("bound from the host", _HOSTS_NODE),
        ):
            can = _is_allowed(library, context, target)
            found.append(Use(kind, nodes, can, _why(kind, nodes, can)))
    return tuple(found)


def _why(kind: str, nodes: str, can: bool) -> str:
    if can:
        return "the policy allows it"
    if kind == "container_t" and nodes == "bound from the host":
        return "only user namespaces need it; nvidia_container_t can, or the boolean container_use_devices"
    return "the policy does not allow it"


def _is_allowed(library: Any, source: str, target: str) -> bool:
    """Whether the policy as it is now, booleans included, lets a node be used: asked, nothing is audited."""
    decision = library.av_decision()
    group = library.string_to_security_class("chr_file")
    wanted = 0
    for permission in _USE:
        wanted |= library.string_to_av_perm(group, permission)
    try:
        library.security_compute_av(source, target, group, wanted, decision)
    except OSError:
        return False
    return bool(decision.allowed & wanted == wanted)
