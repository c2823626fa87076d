# SPDX-License-Identifier: Apache-2.0
"""SELinux's denials, read and explained: the cause in our terms, the one remedy that keeps the container confined.

Pure.  A denial is a line ``avc:  denied  { PERMISSIONS } for  KEY=VALUE ...``, wherever the kernel's audit ends up.
No remedy here is ``label=disable`` or a permissive domain.  Names in a denial are chosen by containers: whoever prints
one quotes it.  Never on the hook's path.
"""

from __future__ import annotations

from oci_gpu_hook import selinux
from oci_gpu_hook.errors import quoted
from oci_gpu_hook.record import NamedTuple

_GPU_CONTAINER = "nvidia_container_t"
_NODE_TYPE = "xserver_misc_device_t"
_RUNTIME_TYPE = "nvidia_runtime_t"
_MPS_TYPE = "nvidia_mps_t"
_ENGINE_TMPFS = ("container_engine_tmpfs_t", "container_runtime_tmpfs_t")
_TMPFS_TYPE = "tmpfs_t"
_IPC = {"tmpfs": "/dev/shm", "mqueue": "/dev/mqueue"}
_FILE_TYPE = "container_file_t"
# The hook, and the script that starts it.
_HOOK = ("oci_gpu_hook_t", "oci_gpu_hook_door_t")
_HOOKS_FILES = ("oci_gpu_hook_exec_t", "oci_gpu_hook_state_t", "oci_gpu_hook_tmpfs_t")
# systemd, its socket's file, and unit files of scopes: one policy's names and the other's.
_SYSTEMD = (
    "init_t",
    "init_var_run_t",
    "init_runtime_t",
    "systemd_unit_file_t",
    "systemd_transient_unit_t",
    "systemd_conf_t",
)
# Connecting, its own question whether the hook may (USER_AVC), what it has of the scope.
_SYSTEMD_CLASSES = ("unix_stream_socket", "service", "system", "file")
# Of containers; container_runtime_t and container_engine_t are engines'.  udica calls its types NAME.process.
_CONTAINERS = (
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_userns_t",
    "container_device_t",
    "container_logreader_t",
    "container_logwriter_t",
    "svirt_lxc_net_t",
    "spc_t",
    _GPU_CONTAINER,
)
_DRIVER_FILES = ("libcuda", "libnvidia-", "libnvcuvid", "libEGL_nvidia", "libGLX_nvidia", "nvidia-")
_HEXADECIMAL = frozenset("0123456789ABCDEF")

_INSTALL = "oci-gpu-hook selinux install"
_AS_GPU_CONTAINER = f"run the container as {_GPU_CONTAINER}: {_INSTALL}"
_RELABEL_IPC = "have the hook put it right at the container's start: ipc-labels = gpu for GPU containers, all for all"


class Denial(NamedTuple):
    """One denial, or several that are alike: times."""

    source: str
    target: str
    tclass: str
    permissions: tuple[str, ...]
    name: str
    device: str
    command: str
    times: int = 1


class Explanation(NamedTuple):
    """What a denial means."""

    denial: Denial
    cause: str
    remedy: str


def parse(text: str) -> tuple[Denial, ...]:
    """The denials in a log, alike ones counted together, in the order of their first; any text will do."""
    found: dict[Denial, int] = {}
    for line in text.splitlines():
        denial = _denial(line)
        if denial is not None:
            found[denial] = found.get(denial, 0) + 1
    return tuple([denial._replace(times=times) for denial, times in found.items()])


def explain(denials: tuple[Denial, ...]) -> tuple[Explanation, ...]:
    """Those that concern containers, GPUs or the hook, each with its cause and remedy."""
    found = []
    for denial in denials:
        try:
            source = selinux.parse_context(denial.source)
            target = selinux.parse_context(denial.target)
        except selinux.MalformedContext:
            continue
        told = _cause(denial, source, target)
        if told is not None:
            found.append(Explanation(denial, *told))
    return tuple(found)


def _denial(line: str) -> Denial | None:
    _, start, rest = line.partition("avc:")
    verdict, brace, rest = rest.partition("{")
    permissions, closing, rest = rest.partition("}")
    if not (start and brace and closing) or verdict.split() != ["denied"]:
        return None
    fields = _fields(rest)
    if not {"scontext", "tcontext", "tclass"} <= set(fields):
        return None
    return Denial(
        source=fields["scontext"],
        target=fields["tcontext"],
        tclass=fields["tclass"],
        permissions=tuple(sorted(permissions.split())),
        name=fields.get("path", fields.get("name", "")),
        device=fields.get("dev", ""),
        command=fields.get("comm", ""),
    )


def _decoded(key: str, value: str) -> str:
    """What the kernel may not quote, because it holds blanks or worse, it writes in hexadecimal."""
    names = key.rpartition(" ")[2] in ("comm", "name", "path")
    if names and value and len(value) % 2 == 0 and _HEXADECIMAL.issuperset(value):
        return bytes.fromhex(value).decode("utf-8", "replace")
    return value


def _fields(text: str) -> dict[str, str]:
    """KEY=VALUE and KEY="VALUE", as the kernel writes them: a value without quotes has no blank."""
    fields: dict[str, str] = {}
    while text:
        text = text.lstrip()
        key, equals, text = text.partition("=")
        if not equals:
            break
        if text.startswith('"'):
            value, _, text = text[1:].partition('"')
        else:
            value, _, text = text.partition(" ")
            value = _decoded(key, value)
        fields.setdefault(key.rpartition(" ")[2], value)
    return fields


def _cause(
    denial: Denial, source: selinux.Context, target: selinux.Context
) -> tuple[str, str] | None:
    """Cause and remedy; None where the denial is not ours to explain.  The particular stands before the general."""
    if source.type in _HOOK:
        return _systemd(denial, target) or (
            f"the hook's own domain may not {_words(denial)} {target.type}",
            f"install the policy that belongs to this hook: {_INSTALL}; then report it",
        )
    if source.type not in _CONTAINERS and not source.type.endswith(".process"):
        return _engine(source, target)
    if target.type in _HOOKS_FILES:
        return (
            "the container reaches for the hook's own files, which are the host's",
            "take them out of the container's volumes",
        )
    if denial.device in _IPC and denial.tclass in ("dir", "file", "lnk_file"):
        told = _ipc(denial, source, target)
        if told is not None:
            return told
    if denial.tclass == "chr_file":
        return _node(denial, source, target)
    return (
        _service(denial, source, target)
        or _driver_file(denial, target)
        or _wrong_level(denial, source, target)
    )


def _systemd(denial: Denial, target: selinux.Context) -> tuple[str, str] | None:
    """The hook, kept from telling systemd of a scope's devices: by the kernel, or by systemd itself."""
    socket = denial.tclass == "sock_file" and _base(denial.name) == "private"
    if not socket and (target.type not in _SYSTEMD or denial.tclass not in _SYSTEMD_CLASSES):
        return None
    cause = (
        f"the hook may not tell systemd of a scope's devices ({denial.tclass} {target.type}): the container loses its "
        "GPUs when systemd puts its own rules in force again"
    )
    if socket and target.type not in _SYSTEMD:
        return (
            cause,
            "give systemd's socket its label back, on the host: restorecon -v /run/systemd/private",
        )
    return cause, f"install the policy that belongs to this hook: {_INSTALL}"


def _engine(source: selinux.Context, target: selinux.Context) -> tuple[str, str] | None:
    if target.type not in ("oci_gpu_hook_exec_t", *_HOOK):
        return None
    return (
        f"{source.type} may not start the hook: the policy knows it as no container engine",
        "start the engine by its service, so that it runs in its own domain, and give its program its label back "
        "with restorecon",
    )


def _ipc(
    denial: Denial, source: selinux.Context, target: selinux.Context
) -> tuple[str, str] | None:
    what = _IPC[denial.device]
    if target.type == _FILE_TYPE:
        return _wrong_level(denial, source, target)
    if target.type in _ENGINE_TMPFS:
        return (
            f"{what} has the engine's type {target.type}: it was mounted without the container's label",
            _RELABEL_IPC,
        )
    if target.type != _TMPFS_TYPE:
        return None
    if denial.device == "mqueue" and denial.tclass == "file":
        return (
            f"a message queue is made as {target.type}: this policy lets {source.type} use none",
            _AS_GPU_CONTAINER,
        )
    return (
        f"{what} is the host's own (host IPC, or a bind of it), which no confined container may use and the hook never "
        "relabels",
        "leave out --ipc=host (hostIPC in a pod) or the bind: containers that share memory can share a pod",
    )


def _node(
    denial: Denial, source: selinux.Context, target: selinux.Context
) -> tuple[str, str] | None:
    if target.type == "dri_device_t":
        remedy = (
            "setsebool -P nvidia_container_use_dri on"
            if source.type == _GPU_CONTAINER
            else _AS_GPU_CONTAINER
        )
        return f"a {source.type} container may not use the host's /dev/dri", remedy
    if target.type != _NODE_TYPE and not _base(denial.name).startswith("nvidia"):
        return None
    if target.type == _FILE_TYPE:
        return _wrong_level(denial, source, target) or (
            f"this policy does not let {source.type} {_words(denial)} {target.type}, as its own nodes are",
            _AS_GPU_CONTAINER,
        )
    if target.type != _NODE_TYPE:
        return (
            f"the host's node {quoted(denial.name)} is labelled {target.type}, and should be {_NODE_TYPE}",
            "give it its label back, on the host: restorecon -v /dev/nvidia*",
        )
    if source.type == _GPU_CONTAINER:
        return (
            f"the loaded policy has another {source.type} than this program's, which may use such nodes",
            f"{_INSTALL}, then look at: oci-gpu-hook selinux status",
        )
    what = quoted(denial.name) if denial.name else "of a GPU"
    return (
        f"the host's own node {what} is bound into a {source.type} container",
        "let the hook make the node in the container's own /dev, by NVIDIA_VISIBLE_DEVICES; in a user "
        f"namespace, run the container as {_GPU_CONTAINER}: {_INSTALL}",
    )


def _service(
    denial: Denial, source: selinux.Context, target: selinux.Context
) -> tuple[str, str] | None:
    """Sockets of persistenced, fabricmanager and MPS; one that lacks its label is known by its name."""
    ours = "nvidia" in denial.name and denial.tclass in ("sock_file", "unix_stream_socket")
    # The kernel tells no folder of a socket's file; both services call it this.
    ours = ours or (denial.name, denial.tclass, target.type) == ("socket", "sock_file", "var_run_t")
    if target.type == _MPS_TYPE:
        boolean = "setsebool -P nvidia_container_use_mps on"
        remedy = (
            boolean if source.type == _GPU_CONTAINER else f"{_AS_GPU_CONTAINER}; then {boolean}"
        )
        return (
            f"a {source.type} container may not take part in MPS, whose clients share one server",
            remedy,
        )
    if target.type != _RUNTIME_TYPE and not ours:
        return None
    if source.type != _GPU_CONTAINER:
        return (
            f"a {source.type} container speaks to a service of NVIDIA's on the host ({target.type})",
            _AS_GPU_CONTAINER,
        )
    return (
        f"a service of NVIDIA's or its socket is {target.type}, which {source.type} may not use",
        "let systemd start the service, and give its folder its label back: restorecon -Rv /run/nvidia-persistenced",
    )


def _driver_file(denial: Denial, target: selinux.Context) -> tuple[str, str] | None:
    name = _base(denial.name)
    ours = name.startswith(_DRIVER_FILES) and denial.tclass in ("file", "lnk_file")
    if not ours or target.type == _FILE_TYPE:
        return None
    return (
        f"the driver's file {quoted(name)} is labelled {target.type} on the host, which containers may not use",
        "give it its label back, on the host, with restorecon; if that is the label of its place, install the driver "
        "below /usr",
    )


def _wrong_level(
    denial: Denial, source: selinux.Context, target: selinux.Context
) -> tuple[str, str] | None:
    if target.type != _FILE_TYPE or _within(source, target):
        return None
    is_ipc = denial.device in _IPC and denial.tclass != "chr_file"
    what = _IPC[denial.device] if is_ipc else quoted(denial.name) if denial.name else "a file"
    cause = (
        f"{what} has the level {target.low}, the container runs at {source.clearance}: another "
        "container's, or left by an older one"
    )
    if is_ipc:
        return cause, _RELABEL_IPC
    return cause, "keep it so; a folder that both are meant to use, mount as a volume with :z"


def _within(source: selinux.Context, target: selinux.Context) -> bool:
    """Whether levels are not the cause."""
    if source.clearance is None or target.low is None:
        return True
    return source.clearance.dominates(target.low)


def _words(denial: Denial) -> str:
    return f"{'/'.join(denial.permissions)} a {denial.tclass} of type"


def _base(name: str) -> str:
    return name.rpartition("/")[2]
