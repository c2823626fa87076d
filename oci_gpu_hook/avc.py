# SPDX-License-Identifier: Apache-2.0
"""SELinux's denials, read and explained: the cause in our terms, the one remedy that keeps the container confined.

Pure.  A denial is a line ``avc:  denied  { PERMISSIONS } for  KEY=VALUE ...``, wherever the kernel's audit ends up.
No remedy here is ``label=disable`` or a permissive domain.  Never on the hook's path.
"""

from __future__ import annotations

from oci_gpu_hook import selinux
from oci_gpu_hook.record import NamedTuple

_NODE_TYPES = ("xserver_misc_device_t", "device_t", "dri_device_t")
_SERVICE_TYPES = ("nvidia_runtime_t", "nvidia_mps_t")
_ENGINE_TMPFS = ("container_engine_tmpfs_t", "container_runtime_tmpfs_t", "tmpfs_t")
_IPC = ("tmpfs", "mqueue")
_FILE_TYPE = "container_file_t"
_HOOK = "oci_gpu_hook_t"


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
        fields.setdefault(key.split(" ")[-1], value)
    return fields


def _cause(
    denial: Denial, source: selinux.Context, target: selinux.Context
) -> tuple[str, str] | None:
    """Cause and remedy; None where the denial is not ours to explain."""
    if source.type == _HOOK:
        return (
            f"the hook's own domain may not {_words(denial)} {target.type}",
            "install the policy that belongs to this hook: oci-gpu-hook selinux install; then report it",
        )
    if "container" not in source.type and source.type not in ("svirt_lxc_net_t", "spc_t"):
        return None
    if denial.device in _IPC and target.type == _FILE_TYPE:
        return _wrong_level(denial, source, target)
    if denial.device in _IPC and target.type in _ENGINE_TMPFS:
        return _wrong_type(denial, target)
    if target.type in _NODE_TYPES and denial.tclass == "chr_file":
        return (
            f"the host's own node {denial.name or 'of a GPU'} is bound into a {source.type} container",
            "let the hook make the node in the container's own /dev, by NVIDIA_VISIBLE_DEVICES; in a user "
            "namespace, run the container as nvidia_container_t: oci-gpu-hook selinux install",
        )
    if target.type in _SERVICE_TYPES:
        boolean = (
            "; for MPS: setsebool -P nvidia_container_use_mps on" if "mps" in target.type else ""
        )
        return (
            f"a {source.type} container speaks to a service of NVIDIA's on the host ({target.type})",
            f"run the container as nvidia_container_t: oci-gpu-hook selinux install{boolean}",
        )
    if target.type == _FILE_TYPE and not _within(source, target):
        return _wrong_level(denial, source, target)
    return None


def _wrong_level(
    denial: Denial, source: selinux.Context, target: selinux.Context
) -> tuple[str, str] | None:
    if _within(source, target):
        return None
    what = {"tmpfs": "/dev/shm", "mqueue": "/dev/mqueue"}.get(
        denial.device, denial.name or "a file"
    )
    return (
        f"{what} has the level {target.low}, the container runs at {source.clearance}: another "
        "container's, or left by an older one",
        "have the hook put it right at the container's start: ipc-labels = gpu for GPU containers, all "
        "for every one; for a file, mount the volume with :z or :Z",
    )


def _wrong_type(denial: Denial, target: selinux.Context) -> tuple[str, str]:
    what = "/dev/mqueue" if denial.device == "mqueue" else "/dev/shm"
    if denial.device == "mqueue" and denial.tclass == "file":
        return (
            f"a message queue is made as {target.type}: this policy lets container_t use none",
            "run the container as nvidia_container_t: oci-gpu-hook selinux install",
        )
    return (
        f"{what} has the engine's type {target.type}: it was mounted without the container's label",
        "have the hook put it right at the container's start: ipc-labels = gpu for GPU containers, all for every one",
    )


def _within(source: selinux.Context, target: selinux.Context) -> bool:
    """Whether levels are not the cause."""
    if source.clearance is None or target.low is None:
        return True
    return source.clearance.dominates(target.low)


def _words(denial: Denial) -> str:
    return f"{'/'.join(denial.permissions)} a {denial.tclass} of type"
