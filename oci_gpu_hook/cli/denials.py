# SPDX-License-Identifier: Apache-2.0
"""Explain SELinux's denials, from whichever log has the kernel's audit messages: the cause, and a remedy that keeps the
container confined.  Pure.

A denial is a line ``avc:  denied  { PERMISSIONS } for  KEY=VALUE ...``.  Names in it come from containers, so they must
be quoted for output.  No remedy here is ``label=disable`` or a permissive domain.
"""

from __future__ import annotations

import re
from collections import Counter

from oci_gpu_hook.errors import quoted
from oci_gpu_hook.formats import contexts
from oci_gpu_hook.record import NamedTuple

_DENIAL = re.compile(r"avc:\s*denied\s*\{([^{}]*)\}(.*)")
# KEY=VALUE and KEY="VALUE", as the kernel writes them: a value without quotes has no blank.
_FIELD = re.compile(r"""(?<!\S)([^\s=]+)=(?:"([^"]*)"?|(\S*))""")
_HEXADECIMAL = frozenset("0123456789ABCDEF")

_GPU_CONTAINER = "nvidia_container_t"
# The node's agents: the device plugin and the like.
_AGENT = "nvidia_agent_t"
_FEATURE_TYPE = "nvidia_feature_t"
_KUBELET = "kubelet_t"
# Of /var/lib/kubelet/pod-resources, by the policy; and what a process needs of a folder and a socket to connect.
_KUBELET_FILES = ("kubelet_var_lib_t", "container_var_lib_t")
_TO_CONNECT = {"dir": frozenset(("getattr", "search")), "sock_file": frozenset(("getattr", "write"))}
# What the module allows of features: to each container, and beyond that to agents.
_TO_READ = frozenset(("getattr", "open", "read", "search"))
_TO_CHANGE = ("create", "rename", "rmdir", "setattr", "unlink", "write")
_TO_WRITE = frozenset(("add_name", "append", "ioctl", "remove_name", *_TO_CHANGE))
_NODE_TYPE = "xserver_misc_device_t"
_OF_NVML = {"open", "read", "write", "ioctl", "map"}
_IPC = {"tmpfs": "/dev/shm", "mqueue": "/dev/mqueue"}
_FILE_TYPE = "container_file_t"
# The hook, and the script that starts it.
_HOOK = ("oci_gpu_hook_t", "oci_gpu_hook_entry_t")
# The runtime in front of the real one.
_RUNTIME = "oci_gpu_runtime_t"
_RUNTIMES_FILE = "oci_gpu_runtime_exec_t"
_HOOKS_FILES = ("oci_gpu_hook_exec_t", "oci_gpu_hook_state_t", "oci_gpu_hook_tmpfs_t", _RUNTIMES_FILE)
# systemd, its socket's file, and unit files of scopes, by their names in the targeted policy and in Debian's.
_SYSTEMD = (
    *("init_t", "init_var_run_t", "init_runtime_t"),
    *("systemd_unit_file_t", "systemd_transient_unit_t", "systemd_conf_t"),
)
# To connect; systemd's own check whether the hook may (USER_AVC); the files of a scope.
_SYSTEMD_CLASSES = ("unix_stream_socket", "service", "system", "file")
# The types of containers; container_runtime_t and container_engine_t are engines' types.  udica's are NAME.process.
_CONTAINERS = (
    *("container_t", "container_init_t", "container_kvm_t", "container_userns_t", "container_device_t"),
    *("container_logreader_t", "container_logwriter_t", "svirt_lxc_net_t", "spc_t", _GPU_CONTAINER, _AGENT),
)
_DRIVER_FILES = ("libcuda", "libnvidia-", "libnvcuvid", "libEGL_nvidia", "libGLX_nvidia", "nvidia-")

# How the nodes of other accelerators and of adapters begin.
_OTHER_NODES = ("kfd", "accel", "uverbs", "rdma_cm", "neuron", "renderD", "hl")

_INSTALL = "oci-gpu-hook selinux install"
_BELONGS = f"install the policy that belongs to this hook: {_INSTALL}"
_AS_AGENT = f"run it as {_AGENT}, if it is one of the node's agents: {_INSTALL}"
_AS_GPU_CONTAINER = f"run the container as {_GPU_CONTAINER}: {_INSTALL}"
_RELABEL_IPC = "have the hook put it right at the container's start: ipc-labels = gpu for GPU containers, all for all"


class Denial(NamedTuple):
    """times: how many equal ones there are; cause, remedy: see `explain`."""

    source: str
    target: str
    tclass: str
    permissions: tuple[str, ...]
    name: str
    device: str
    command: str
    times: int = 1
    cause: str = ""
    remedy: str = ""


def parse_denials(text: str) -> tuple[Denial, ...]:
    """The denials in a log, equal ones counted together, in the order of their first.  Other lines are skipped."""
    found = Counter([denial for line in text.splitlines() if (denial := _denial(line))])
    return tuple([denial._replace(times=times) for denial, times in found.items()])


def _denial(line: str) -> Denial | None:
    found = _DENIAL.search(line)
    # Of two with one name the first counts.
    words = reversed(_FIELD.findall(found[2])) if found else ()
    fields = {key: quoted or _decoded(key, plain) for key, quoted, plain in words}
    if found is None or not {"scontext", "tcontext", "tclass"} <= set(fields):
        return None
    contexts = fields["scontext"], fields["tcontext"], fields["tclass"]
    name = fields.get("path", fields.get("name", ""))
    return Denial(*contexts, tuple(sorted(found[1].split())), name, fields.get("dev", ""), fields.get("comm", ""))


def _decoded(key: str, value: str) -> str:
    """The value without quotes of a key: the kernel writes a name with blanks or control characters in hexadecimal."""
    if key in ("comm", "name", "path") and value and len(value) % 2 == 0 and _HEXADECIMAL.issuperset(value):
        return bytes.fromhex(value).decode("utf-8", "replace")
    return value


def explain(denials: tuple[Denial, ...]) -> tuple[Denial, ...]:
    """Those that concern containers and GPUs, each with its cause and remedy."""
    found = []
    for denial in denials:
        try:
            source = contexts.parse_context(denial.source)
            target = contexts.parse_context(denial.target)
        except contexts.MalformedContext:
            continue
        if explanation := _cause(denial, source, target):
            found.append(denial._replace(cause=explanation[0], remedy=explanation[1]))
    return tuple(found)


def _cause(denial: Denial, source: contexts.Context, target: contexts.Context) -> tuple[str, str] | None:
    """Cause and remedy; None if the denial does not concern us.  Special cases come before general ones."""
    if source.type in _HOOK:
        return _of_hook(denial, target)
    if source.type == _RUNTIME:
        return _runtime(denial, target)
    if source.type not in _CONTAINERS and not source.type.endswith(".process"):
        return _engine(source, target)
    if target.type in _HOOKS_FILES:
        cause = "the container uses the hook's own files, which belong to the host"
        return cause, "take them out of the container's volumes"
    if denial.tclass == "chr_file":
        return _node(denial, source, target)
    return (
        _ipc(denial, source, target)
        or _agent(denial, source, target)
        or _service(denial, source, target)
        or _driver_file(denial, target)
        or _wrong_level(denial, source, target)
    )


def _of_hook(denial: Denial, target: contexts.Context) -> tuple[str, str]:
    if (target.type, denial.tclass) == ("cgroup_t", "file") and "write" in denial.permissions:
        if denial.name in ("dmem.max", "cgroup.subtree_control"):
            return "the hook may not limit device memory", "setsebool -P oci_gpu_hook_limit_memory on"
        remedy = "setsebool -P oci_gpu_hook_use_cgroup_v1 on, if this host has cgroup v1: oci-gpu-hook doctor"
        return "the hook may not open devices in cgroup v1", remedy
    if (target.type, denial.tclass) == (_NODE_TYPE, "chr_file") and _OF_NVML.issuperset(denial.permissions):
        return "the hook may not ask NVML to limit GPU memory", "setsebool -P oci_gpu_hook_use_nvml on"
    is_socket = denial.tclass == "sock_file" and _base(denial.name) == "private"
    is_systemds = target.type in _SYSTEMD
    if not is_socket and not (is_systemds and denial.tclass in _SYSTEMD_CLASSES):
        return f"the hook's own domain may not {_words(denial)} {target.type}", f"{_BELONGS}; then report it"
    cause = (
        f"the hook may not set a scope's devices in systemd ({denial.tclass} {target.type}): the container loses its "
        "GPUs when systemd puts its own rules in force again"
    )
    if is_systemds:
        return cause, _BELONGS
    return cause, "give systemd's socket its label back, on the host: restorecon -v /run/systemd/private"


def _runtime(denial: Denial, target: contexts.Context) -> tuple[str, str]:
    """A denial of oci-gpu-runtime, or of a real runtime that runs in its domain because it has no label of its own."""
    started = denial.tclass == "file" and "execute" in " ".join(denial.permissions)
    if not started and target.type != _RUNTIME:
        return (f"the domain of oci-gpu-runtime may not {_words(denial)} {target.type}", f"{_BELONGS}; then report it")
    return (
        "the runtime behind oci-gpu-runtime does not have the label of an engine's program, so it gets no domain",
        "give it that label, on the host: restorecon -v for runc and crun; for others semanage fcontext -a -t "
        "container_runtime_exec_t (on Debian container_engine_exec_t) and its path, then restorecon -v",
    )


def _engine(source: contexts.Context, target: contexts.Context) -> tuple[str, str] | None:
    is_hook = target.type in ("oci_gpu_hook_exec_t", *_HOOK)
    if not is_hook and target.type not in (_RUNTIMES_FILE, _RUNTIME):
        return None
    what = "the hook" if is_hook else "oci-gpu-runtime"
    return (
        f"{source.type} may not start {what}: in the policy it is not a container engine",
        "start the engine by its service, so that it runs in its own domain, and give its program its label back "
        "with restorecon",
    )


def _ipc(denial: Denial, source: contexts.Context, target: contexts.Context) -> tuple[str, str] | None:
    if denial.device not in _IPC or denial.tclass not in ("dir", "file", "lnk_file"):
        return None
    what = _IPC[denial.device]
    if target.type == _FILE_TYPE:
        return _wrong_level(denial, source, target)
    if target.type in ("container_engine_tmpfs_t", "container_runtime_tmpfs_t"):
        cause = f"{what} has the engine's type {target.type}: it was mounted without the container's label"
        return cause, _RELABEL_IPC
    if target.type != "tmpfs_t":
        return None
    if denial.device == "mqueue" and denial.tclass == "file":
        return f"a message queue is made as {target.type}: this policy lets {source.type} use none", _AS_GPU_CONTAINER
    return (
        f"{what} is the host's own (host IPC, or a bind of it): no confined container may use what the host has there, "
        "and the hook never relabels it",
        "leave out --ipc=host (hostIPC in a pod) or the bind: containers that share memory can share a pod",
    )


def _node(denial: Denial, source: contexts.Context, target: contexts.Context) -> tuple[str, str] | None:
    if target.type == "dri_device_t":
        remedy = "setsebool -P nvidia_container_use_dri on" if source.type == _GPU_CONTAINER else _AS_GPU_CONTAINER
        return f"a {source.type} container may not use the host's /dev/dri", remedy
    if _base(denial.name).startswith(_OTHER_NODES):
        cause = f"the host's node {quoted(denial.name)}, of type {target.type}, is bound into a {source.type} container"
        remedy = "let the hook make the node in the container's own /dev, by the vendor's flag or a CDI spec of ours"
        return (cause, remedy) if target.type != _FILE_TYPE else _wrong_level(denial, source, target)
    if target.type != _NODE_TYPE and not _base(denial.name).startswith("nvidia"):
        return None
    if target.type == _FILE_TYPE:
        cause = f"this policy does not let {source.type} {_words(denial)} {target.type}, the type of its own nodes"
        return _wrong_level(denial, source, target) or (cause, _AS_GPU_CONTAINER)
    if target.type != _NODE_TYPE:
        cause = f"the host's node {quoted(denial.name)} is labelled {target.type}, and should be {_NODE_TYPE}"
        return cause, "give it its label back, on the host: restorecon -v /dev/nvidia*"
    if source.type == _GPU_CONTAINER:
        cause = f"the loaded policy has another {source.type} than this program's, which may use such nodes"
        return cause, f"{_INSTALL}, then look at: oci-gpu-hook selinux status"
    what = quoted(denial.name) if denial.name else "of a GPU"
    return (
        f"the host's own node {what} is bound into a {source.type} container",
        "let the hook make the node in the container's own /dev, by NVIDIA_VISIBLE_DEVICES; in a user "
        f"namespace, run the container as {_GPU_CONTAINER}: {_INSTALL}",
    )


def _agent(denial: Denial, source: contexts.Context, target: contexts.Context) -> tuple[str, str] | None:
    is_agent = source.type == _AGENT
    if is_agent and target.type == _AGENT and denial.tclass == "unix_stream_socket":
        cause = f"the agent runs at {source.clearance}, and the one that listens at {target.clearance}"
        return cause, "leave it so; agents that belong together run at one level"
    if target.type == _FEATURE_TYPE:
        return _features(denial, source)
    if _base(denial.name) == "features.d" and is_agent:
        remedy = "give it its label back, on the host: oci-gpu-hook selinux relabel"
        return f"the folder features.d is labelled {target.type}, and should be {_FEATURE_TYPE}", remedy
    to_connect = _TO_CONNECT.get(denial.tclass, frozenset())
    if is_agent and target.type in _KUBELET_FILES and to_connect.issuperset(denial.permissions):
        cause = f"a {source.type} container may not reach kubelet's socket in pod-resources, which is {target.type}"
        return cause, "setsebool -P nvidia_agent_use_kubelet on"
    is_kubelets = target.type == _KUBELET or _base(denial.name) == "kubelet.sock"
    if denial.tclass != "unix_stream_socket" or not is_kubelets:
        return None
    which = "kubelet" if target.type == _KUBELET else "engines_kubelet"
    remedy = f"setsebool -P nvidia_agent_use_{which} on" if is_agent else _AS_AGENT
    return f"a {source.type} container may not connect to kubelet, which is {target.type}", remedy


def _features(denial: Denial, source: contexts.Context) -> tuple[str, str]:
    cause = f"a {source.type} container may not {_words(denial)} {_FEATURE_TYPE}"
    permissions = set(denial.permissions)
    if not permissions <= _TO_READ | _TO_WRITE or denial.tclass not in ("dir", "file"):
        return (cause, "leave it so: features are plain files, which are read and written, and nothing else")
    if permissions <= _TO_READ:
        return f"{cause}, which each container may: the module is older than this program", _INSTALL
    return cause, "setsebool -P nvidia_agent_write_features on" if source.type == _AGENT else _AS_AGENT


def _service(denial: Denial, source: contexts.Context, target: contexts.Context) -> tuple[str, str] | None:
    """A denial of a socket of persistenced, fabricmanager or MPS; without its label it is known by its name."""
    is_nvidias = "nvidia" in denial.name and denial.tclass in ("sock_file", "unix_stream_socket")
    # A denial has the name of a socket's file but not its folder; both services call the file "socket".
    is_nvidias = is_nvidias or ((denial.name, denial.tclass, target.type) == ("socket", "sock_file", "var_run_t"))
    if target.type == "nvidia_mps_t":
        boolean = "setsebool -P nvidia_container_use_mps on"
        remedy = boolean if source.type == _GPU_CONTAINER else f"{_AS_GPU_CONTAINER}; then {boolean}"
        return (f"a {source.type} container may not take part in MPS, whose clients share one server", remedy)
    if target.type != "nvidia_runtime_t" and not is_nvidias:
        return None
    if source.type != _GPU_CONTAINER:
        cause = f"a {source.type} container connects to a service of NVIDIA's on the host ({target.type})"
        return cause, _AS_GPU_CONTAINER
    return (
        f"a service of NVIDIA's or its socket is {target.type}, which {source.type} may not use",
        "let systemd start the service, and give its folder its label back: oci-gpu-hook selinux relabel",
    )


def _driver_file(denial: Denial, target: contexts.Context) -> tuple[str, str] | None:
    name = _base(denial.name)
    if not name.startswith(_DRIVER_FILES) or denial.tclass not in ("file", "lnk_file") or target.type == _FILE_TYPE:
        return None
    return (
        f"the driver's file {quoted(name)} is labelled {target.type} on the host, which containers may not use",
        "give it its label back, on the host, with restorecon; if files in that folder have this label, install the "
        "driver below /usr",
    )


def _wrong_level(denial: Denial, source: contexts.Context, target: contexts.Context) -> tuple[str, str] | None:
    if target.type != _FILE_TYPE or source.clearance is None or target.low is None:
        return None
    if source.clearance.dominates(target.low):
        return None
    is_ipc = denial.device in _IPC and denial.tclass != "chr_file"
    what = _IPC[denial.device] if is_ipc else quoted(denial.name) if denial.name else "a file"
    whose = "another container's, or left by an older one"
    remedy = _RELABEL_IPC if is_ipc else "leave it so; if both are meant to use a folder, mount it as a volume with :z"
    return f"{what} has the level {target.low}, the container runs at {source.clearance}: {whose}", remedy


def _words(denial: Denial) -> str:
    return f"{'/'.join(denial.permissions)} a {denial.tclass} of type"


def _base(name: str) -> str:
    return name.rpartition("/")[2]
