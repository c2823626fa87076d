# SPDX-License-Identifier: Apache-2.0
"""Explain SELinux's denials: the cause, and a remedy that keeps the container confined.  Pure.

A denial is a line ``avc:  denied  { PERMISSIONS } for  KEY=VALUE ...``, in any log.  Names in it come from containers,
so they must be quoted for output.  No remedy here is ``label=disable`` or a permissive domain.
"""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import translate
from functools import cache

from oci_gpu_hook.errors import quoted
from oci_gpu_hook.formats import contexts
from oci_gpu_hook.record import NamedTuple

_DENIAL = re.compile(r"avc:\s*denied\s*\{([^{}]*)\}(.*)")
# KEY=VALUE and KEY="VALUE", as the kernel writes them: a value without quotes has no blank.
_FIELD = re.compile(r"""(?<!\S)([^\s=]+)=(?:"([^"]*)"?|(\S*))""")
_HEXADECIMAL = frozenset("0123456789ABCDEF")

# The types of containers; container_runtime_t and container_engine_t are engines' types.  udica's are NAME.process.
_CONTAINERS = (
    *("container_t", "container_init_t", "container_kvm_t", "container_userns_t", "container_device_t"),
    *("container_logreader_t", "container_logwriter_t", "svirt_lxc_net_t", "spc_t"),
    *("nvidia_container_t", "nvidia_agent_t"),
)
_OURS = {"oci_gpu_hook_t": "hook", "oci_gpu_hook_entry_t": "hook", "oci_gpu_runtime_t": "runtime"}
_IPC = {"tmpfs": "/dev/shm", "mqueue": "/dev/mqueue"}
# systemd, its socket's file, and unit files of scopes, by their names in the targeted policy and in Debian's; to
# connect, systemd's own check whether the hook may (USER_AVC), the files of a scope.
_SYSTEMD = (
    "init_t|init_var_run_t|init_runtime_t|systemd_unit_file_t|systemd_transient_unit_t|systemd_conf_t "
    "unix_stream_socket|sock_file|service|system|file"
)
# How the nodes of other accelerators and of adapters begin.
_OTHER_NODES = "kfd*|accel*|uverbs*|rdma_cm*|neuron*|renderD*|hl*"
_DRIVER_FILES = "libcuda*|libnvidia-*|libnvcuvid*|libEGL_nvidia*|libGLX_nvidia*|nvidia-*"
_READ = "getattr|open|read|search"
_WRITE = f"{_READ}|add_name|append|create|ioctl|remove_name|rename|rmdir|setattr|unlink|write"
_KUBELET_FILES = "kubelet_var_lib_t|container_var_lib_t"
# A denial has the name of a socket's file but not its folder; persistenced and fabricmanager call theirs "socket".
_SERVICE = (
    "{0} nvidia_runtime_t, {0} * sock_file|unix_stream_socket * *nvidia*, {0} var_run_t sock_file * socket".format
)

_MAY_NOT = "a {source} container may not"
_LEVELS = "has the level {level}, the container runs at {clearance}: another container's, or left by an older one"
_SCOPE = (
    "the hook may not set a scope's devices in systemd ({tclass} {target}): the container loses its GPUs when systemd "
    "puts its own rules in force again"
)
_INSTALL = "oci-gpu-hook selinux install"
_BELONGS = f"install the policy that belongs to this hook: {_INSTALL}"
_AS_AGENT = f"run it as nvidia_agent_t, if it is one of the node's agents: {_INSTALL}"
_AS_GPU_CONTAINER = f"run the container as nvidia_container_t: {_INSTALL}"
_RELABEL_IPC = "have the hook put it right at the container's start: ipc-labels = gpu for GPU containers, all for all"
_IN_ITS_DEV = "let the hook make the node in the container's own /dev, by"
_TURN_ON = "setsebool -P {} on".format

# The first that fits explains a denial.  It fits by columns of alternatives, in which * stands for any text: what acts
# (`_OURS`, "container", "engine", or its type); the target's type, or "other-level"; the class; a permission; the name
# or its last part; the filesystem.
_RULES: tuple[tuple[str, str, str], ...] = (
    ("hook cgroup_t file write dmem.max|cgroup.subtree_control",
     "the hook may not limit device memory", _TURN_ON("oci_gpu_hook_limit_memory")),
    ("hook cgroup_t file write", "the hook may not open devices in cgroup v1",
     f"{_TURN_ON('oci_gpu_hook_use_cgroup_v1')}, if this host has cgroup v1: oci-gpu-hook doctor"),
    ("hook xserver_misc_device_t chr_file open|read|write|ioctl|map",
     "the hook may not ask NVML to limit GPU memory", _TURN_ON("oci_gpu_hook_use_nvml")),
    (f"hook {_SYSTEMD}", _SCOPE, _BELONGS),
    ("hook * sock_file * private", _SCOPE,
     "give systemd's socket its label back, on the host: restorecon -v /run/systemd/private"),
    # A real runtime that has no label of its own runs in that domain.
    ("runtime * file execute*, runtime oci_gpu_runtime_t",
     "the runtime behind oci-gpu-runtime does not have the label of an engine's program, so it gets no domain",
     "give it that label, on the host: restorecon -v for runc and crun; for others semanage fcontext -a -t "
     "container_runtime_exec_t (on Debian container_engine_exec_t) and its path, then restorecon -v"),
    ("hook|runtime", "the {kind}'s own domain may not {words} {target}", f"{_BELONGS}; then report it"),
    ("engine oci_gpu_hook_*exec_t|oci_gpu_hook_entry_t|oci_gpu_hook_t|oci_gpu_runtime_exec_t|oci_gpu_runtime_t",
     "{source} may not start the hook or oci-gpu-runtime, {target}: in the policy it is not a container engine",
     "start the engine by its service, so that it runs in its own domain, and give its program its label back with "
     "restorecon"),
    ("container oci_gpu_hook_*exec_t|oci_gpu_hook_state_t|oci_gpu_hook_tmpfs_t|oci_gpu_runtime_exec_t",
     "the container uses the hook's own files, which belong to the host", "take them out of the container's volumes"),
    # Nodes.
    ("nvidia_container_t dri_device_t chr_file",
     f"{_MAY_NOT} use the host's /dev/dri", _TURN_ON("nvidia_container_use_dri")),
    ("container dri_device_t chr_file", f"{_MAY_NOT} use the host's /dev/dri", _AS_GPU_CONTAINER),
    ("container other-level chr_file", f"{{name}} {_LEVELS}", "leave it so"),
    ("container container_file_t chr_file * nvidia*",
     "this policy does not let {source} {words} {target}, the type of its own nodes", _AS_GPU_CONTAINER),
    ("container container_file_t chr_file", "", ""),
    (f"container * chr_file * {_OTHER_NODES}",
     "the host's node {name}, of type {target}, is bound into a {source} container",
     f"{_IN_ITS_DEV} the vendor's flag or a CDI spec of ours"),
    ("nvidia_container_t xserver_misc_device_t chr_file",
     "the loaded policy has another {source} than this program's, which may use such nodes",
     f"{_INSTALL}, then look at: oci-gpu-hook selinux status"),
    ("container xserver_misc_device_t chr_file",
     "the host's own node {name} is bound into a {source} container",
     f"{_IN_ITS_DEV} NVIDIA_VISIBLE_DEVICES; in a user namespace, {_AS_GPU_CONTAINER}"),
    ("container * chr_file * nvidia*",
     "the host's node {name} is labelled {target}, and should be xserver_misc_device_t",
     "give it its label back, on the host: restorecon -v /dev/nvidia*"),
    # Shared memory and message queues.
    ("container other-level dir|file|lnk_file * * tmpfs|mqueue", f"{{ipc}} {_LEVELS}", _RELABEL_IPC),
    ("container container_engine_tmpfs_t|container_runtime_tmpfs_t dir|file|lnk_file * * tmpfs|mqueue",
     "{ipc} has the engine's type {target}: it was mounted without the container's label", _RELABEL_IPC),
    ("container tmpfs_t file * * mqueue",
     "a message queue is made as {target}: this policy lets {source} use none", _AS_GPU_CONTAINER),
    ("container tmpfs_t dir|file|lnk_file * * tmpfs|mqueue",
     "{ipc} is the host's own (host IPC, or a bind of it): no confined container may use what the host has there, and "
     "the hook never relabels it",
     "leave out --ipc=host (hostIPC in a pod) or the bind: containers that share memory can share a pod"),
    # Agents, kubelet and features.
    ("nvidia_agent_t nvidia_agent_t unix_stream_socket",
     "the agent runs at {clearance}, and the one that listens at {listens}",
     "leave it so; agents that belong together run at one level"),
    (f"container nvidia_feature_t dir|file {_READ}",
     f"{_MAY_NOT} {{words}} {{target}}, which each container may: the module is older than this program", _INSTALL),
    (f"nvidia_agent_t nvidia_feature_t dir|file {_WRITE}",
     f"{_MAY_NOT} {{words}} {{target}}", _TURN_ON("nvidia_agent_write_features")),
    (f"container nvidia_feature_t dir|file {_WRITE}", f"{_MAY_NOT} {{words}} {{target}}", _AS_AGENT),
    ("container nvidia_feature_t", f"{_MAY_NOT} {{words}} {{target}}",
     "leave it so: features are plain files, which are read and written, and nothing else"),
    ("nvidia_agent_t * * * features.d",
     "the folder features.d is labelled {target}, and should be nvidia_feature_t",
     "give it its label back, on the host: oci-gpu-hook selinux relabel"),
    (f"nvidia_agent_t {_KUBELET_FILES} dir getattr|search, nvidia_agent_t {_KUBELET_FILES} sock_file getattr|write",
     f"{_MAY_NOT} reach kubelet's socket in pod-resources, which is {{target}}", _TURN_ON("nvidia_agent_use_kubelet")),
    ("nvidia_agent_t kubelet_t unix_stream_socket",
     f"{_MAY_NOT} connect to kubelet, which is {{target}}", _TURN_ON("nvidia_agent_use_kubelet")),
    ("nvidia_agent_t * unix_stream_socket * kubelet.sock",
     f"{_MAY_NOT} connect to kubelet, which is {{target}}", _TURN_ON("nvidia_agent_use_engines_kubelet")),
    ("container kubelet_t unix_stream_socket, container * unix_stream_socket * kubelet.sock",
     f"{_MAY_NOT} connect to kubelet, which is {{target}}", _AS_AGENT),
    # NVIDIA's services and files.
    ("nvidia_container_t nvidia_mps_t",
     f"{_MAY_NOT} take part in MPS, whose clients share one server", _TURN_ON("nvidia_container_use_mps")),
    ("container nvidia_mps_t", f"{_MAY_NOT} take part in MPS, whose clients share one server",
     f"{_AS_GPU_CONTAINER}; then {_TURN_ON('nvidia_container_use_mps')}"),
    (_SERVICE("nvidia_container_t"), "a service of NVIDIA's or its socket is {target}, which {source} may not use",
     "let systemd start the service, and give its folder its label back: oci-gpu-hook selinux relabel"),
    (_SERVICE("container"), "a {source} container connects to a service of NVIDIA's on the host ({target})",
     _AS_GPU_CONTAINER),
    ("container other-level", f"{{name}} {_LEVELS}",
     "leave it so; if both are meant to use a folder, mount it as a volume with :z"),
    ("container container_file_t", "", ""),
    (f"container * file|lnk_file * {_DRIVER_FILES}",
     "the driver's file {name} is labelled {target} on the host, which containers may not use",
     "give it its label back, on the host, with restorecon; if files in that folder have this label, install the "
     "driver below /usr"),
)  # fmt: skip


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
    """Those that concern us, with cause and remedy."""
    return tuple([denial for denial in map(_explained, denials) if denial.cause])


def _explained(denial: Denial) -> Denial:
    """As it is, without a cause, if it does not concern us."""
    try:
        source, target = contexts.parse_context(denial.source), contexts.parse_context(denial.target)
    except ValueError:
        return denial
    is_container = source.type in _CONTAINERS or source.type.endswith(".process")
    kind = _OURS.get(source.type, "container" if is_container else "engine")
    is_foreign = source.clearance and target.low and not source.clearance.dominates(target.low)
    level = "other-level" if is_foreign and target.type == "container_file_t" else ""
    names = (denial.name, denial.name.rpartition("/")[2])
    columns = ((kind, source.type), (target.type, level), (denial.tclass,), denial.permissions, names, (denial.device,))
    cause, remedy = next(((cause, remedy) for rule, cause, remedy in _RULES if _fits(rule, columns)), ("", ""))
    words, name = f"{'/'.join(denial.permissions)} a {denial.tclass} of type", quoted(denial.name or "(no name)")
    types = {"kind": kind, "source": source.type, "target": target.type, "tclass": denial.tclass}
    levels = {"level": target.low, "clearance": source.clearance, "listens": target.clearance}
    said = cause.format(words=words, name=name, ipc=_IPC.get(denial.device), **types, **levels)
    return denial._replace(cause=said, remedy=remedy)


def _fits(rule: str, columns: tuple[tuple[str, ...], ...]) -> bool:
    """Of the permissions all must fit: a remedy that allows one of two does not help."""
    fits = [any, any, any, all, any, any]
    return any(
        all(one(map(pattern.match, words)) for one, pattern, words in zip(fits, way, columns)) for way in _ways(rule)
    )


@cache
def _ways(rule: str) -> list[list[re.Pattern[str]]]:
    """Compiled once for a log: users can fill one."""
    return [[re.compile("|".join(map(translate, it.split("|")))) for it in way.split()] for way in rule.split(",")]
