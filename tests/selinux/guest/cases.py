# SPDX-License-Identifier: Apache-2.0
"""The cases, as data: which containers start, with which labels, and what must be seen.

One `Row` is a line of the table that the run prints.  Its containers start in their order; one that holds stays until
the row ends.  `hostile` has more of them.  Must not do anything: `engine` carries the rows out, `supervisor` judges
them.

The policy is Debian's: its own container_t may not open message queues whatever their labels, so those are asserted
for nvidia_container_t and spc_t.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from . import policy
from .traps import Trap

OWN = "s0:c1,c2"
OTHER = "s0:c3,c4"

# What an unprivileged user sees where a label is wrong: the level hides the folder, so that glibc finds no name
# (ENOENT); the type forbids to write in it (EACCES).
DENIED = "ENOENT|EACCES"
WORKS = "ok"
_RECORDED = r"container \S+ got all GPUs: \d+ .*"
# crun tells the hook's exit code and not what it said.
REFUSED = r"oci-gpu-hook: .*/dev/shm|oci-gpu-hook.*exit code: [1-7]\b"

RUNC, CRUN = ("runc",), ("crun",)
DASK = ("/usr/bin/python3", "-I", "/app/story.py")
# The container of a row that BuildKit makes.
BUILT = "built"


class Container(NamedTuple):
    """One start.

    type, level: of the process.  labelled: whether the engine gives a mountLabel, of this level.
    shm: who mounts /dev/shm, and with which label:
        ``runtime``        the runtime, as runc and crun do, with the mountLabel
        ``other``          the engine, labelled with another container's level
        ``engine``         the engine, which leaves its own type there
        ``context-other``  the engine, with another container's level as a mount option, which cannot be changed
        ``pod``            the row's own, shared by its containers
        ``host``           the host's, with the host's IPC namespace
    mqueue: ``runtime``, or ``other``: labelled with another container's level before our hook runs.
    gpu: whether the container asks for a GPU; hook: whether ours is registered.
    mapped: the host's number of its root, in a user namespace of its own; 0 for none.
    devices, capabilities: of NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES.
    asks: what else is asked in the environment.
    command: in the container; () is the probe with the names in `expect`.
    expect: check -> regular expression of what it prints.
    refused: regular expression of the sentence where the start must fail, else "".
    agent: whether it is root, without a capability, on a read-only root.
    mounts: paths of the host that the engine binds, as PATH or PATH:TARGET.
    hold: stay; the probe leaves a file, a segment and a queue.
    after: the label that /dev/shm must have when the container has started, "" for any.
    avcs: how many denials there may be: 0, or None for any.
    """

    type: str
    level: str = OWN
    labelled: bool = True
    shm: str = "runtime"
    mqueue: str = "runtime"
    gpu: bool = True
    hook: bool = True
    mapped: int = 0
    devices: str = "all"
    capabilities: str = "compute,utility"
    asks: Mapping[str, str] = MappingProxyType({})
    privileged: bool = False
    agent: bool = False
    mounts: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    expect: Mapping[str, str] = MappingProxyType({})
    refused: str = ""
    hold: bool = False
    after: str = ""
    avcs: int | None = 0


class Row(NamedTuple):
    """One line of the table."""

    name: str
    containers: tuple[Container, ...]
    # /etc/oci-gpu-hook.conf while it runs.
    settings: str = ""
    # The same of a file in /etc/oci-gpu-hook.conf.d.
    drop_in: str = ""
    # Where the runtime decides nothing, one of them is enough.
    runtimes: tuple[str, ...] = ("runc", "crun")
    # Whether the inventory is refreshed first, as its unit does: MIG devices have their numbers from NVML alone.
    refreshed: bool = False
    # A pod as CRI-O has it: the first container is its sandbox, all share its IPC namespace and /dev/shm.
    pod: bool = False
    # Whether systemd makes the cgroup, as the runtimes ask it to with --systemd-cgroup.
    scope: bool = False
    # Whether the bundle lies where BuildKit has its own, and the engine is dockerd, by whose domain it runs.
    buildkit: bool = False
    # Whether kubelet runs; it stays for the rows that follow.
    kubelet: bool = False
    # What lies in wait for the hook.
    trap: Trap | None = None
    # The copy of the hook that runs: one of `tree.UNCHECKED`, which lacks a check of its own.
    unchecked: str = ""
    # What SELinux must deny, as "DOMAIN TYPE:CLASS PERMISSION".
    denied: str = ""
    # A boolean of the policy that is on while it runs.
    boolean: str = ""
    # Whether the trap's folder changes all the same.
    caught: bool = False


_NODES = {"nodes": "ENXIO", "lib": WORKS, "smi": WORKS}
_IPC = {"sem": WORKS, "shm": WORKS}
_QUEUED = {**_IPC, "mq": WORKS}
_ALL = {**_NODES, **_QUEUED}
_IPC_DENIED = {"sem": DENIED, "shm": DENIED, "mq": DENIED}

_CONFINED = Container("nvidia_container_t")
# What an engine that labels by the sandbox leaves: another container's level.
_LABELLED = _CONFINED._replace(shm="other", mqueue="other")
# The other GPU has MIG devices.
_LIMITED = _CONFINED._replace(devices="1", asks={"NVIDIA_GPU_MEMORY_LIMIT": "1024"}, expect=_ALL)
_HOLDS = {"hold": WORKS, "hold-mq": WORKS}
_NEIGHBOUR = _CONFINED._replace(
    level=OTHER, avcs=None, expect={f"read:/victim/{it}": "EACCES" for it in ("secret", "shm/secret", "mqueue/secret")}
)

# Of the simulated node's GPU with MIG devices.
_CAPABILITY = "read:/proc/driver/nvidia/capabilities/gpu1/mig/gi{}/access"
_MIG = {**_NODES, _CAPABILITY.format(1): WORKS, _CAPABILITY.format(5): "ENOENT"}
_DASK = Container("container_t", shm="other", command=DASK)
_READ = "EACCES" if policy.HERE.executor_is_closed else WORKS
_STEP = Container("container_t", hook=False, mounts=(f"{policy.HERE.executor}:/victim/executor",), avcs=None)


def _file(level: str) -> str:
    return f"system_u:object_r:container_file_t:{level}"


_LABELS = {**_HOLDS, "labels": _file(OWN)}
ROWS = (
    Row("container_t c1,c2: GPU", (Container("container_t", expect={**_NODES, **_IPC}),)),
    Row("nvidia_container_t c1,c2: GPU", (Container("nvidia_container_t", expect=_ALL),)),
    Row("nvidia_container_t c1,c2: a user namespace at 100000", (_CONFINED._replace(mapped=100_000, expect=_ALL),)),
    # The entry script answers, and Python is never started.
    Row("container_t c1,c2: no request", (Container("container_t", gpu=False, expect={"nodes": "none", **_IPC}),)),
    Row(
        "container_t c1,c2: a MIG device",
        (Container("container_t", devices="0:0", expect=_MIG),),
        refreshed=True,
        runtimes=CRUN,
    ),
    # The second start reads the lease of the first, and looks whether its cgroup has a process.
    Row(
        "container_t c1,c2: any GPU, gpu-holders = 1; then c3,c4",
        (
            _CONFINED._replace(devices="any", hold=True, expect=_HOLDS),
            _CONFINED._replace(level=OTHER, devices="any", refused=r"GPU 1 is held by|oci-gpu-hook.*exit code: 5\b"),
        ),
        "gpu-holders = 1\n",
    ),
    Row("a limit of GPU memory by NVML", (_LIMITED,), "gpu-memory-by = nvml\n", boolean="oci_gpu_hook_use_nvml"),
    Row("spc_t: GPU", (Container("spc_t", "s0", privileged=True, expect=_ALL),), runtimes=CRUN),
    Row("another's level", (_LABELLED._replace(expect=_QUEUED, after=_file(OWN)),)),
    Row(
        "another's level, no GPU",
        (_LABELLED._replace(gpu=False, expect=_IPC_DENIED, after=_file(OTHER)),),
        runtimes=RUNC,
    ),
    Row(
        "another's level, no GPU, ipc-labels = all in a drop-in",
        (_LABELLED._replace(gpu=False, expect=_QUEUED, after=_file(OWN)),),
        drop_in="ipc-labels = all\n",
        runtimes=RUNC,
    ),
    Row("context= another's level", (_CONFINED._replace(shm="context-other", refused=REFUSED, after=_file(OTHER)),)),
    Row(
        "a pod of c1,c2 and c1,c3",
        (
            _CONFINED._replace(shm="pod", hold=True, expect=_HOLDS, after=_file(OWN)),
            _CONFINED._replace(
                level="s0:c1,c3", shm="pod", after=_file("s0:c1"), expect={**_QUEUED, "read:/dev/shm/secret": WORKS}
            ),
            _CONFINED._replace(shm="pod", expect=_QUEUED, after=_file("s0:c1")),
        ),
        pod=True,
    ),
    Row(
        "host IPC",
        (_CONFINED._replace(shm="host", expect=_NODES, after="system_u:object_r:tmpfs_t:s0"),),
        runtimes=RUNC,
    ),
    Row("labels of what the hook made", (_CONFINED._replace(hold=True, expect=_LABELS),)),
    # Without a mountLabel /dev/null has the engine's type too, which is the engine's doing and is denied: any denials.
    Row(
        "labels of what the hook made, and the engine's type",
        (_CONFINED._replace(labelled=False, shm="engine", hold=True, expect=_LABELS, after=_file(OWN), avcs=None),),
    ),
    Row(
        "a scope of systemd's",
        (_CONFINED._replace(hold=True, expect={**_HOLDS, "scope": "told", "journal": _RECORDED}),),
        # crun asks for it over the message bus, which is not here.
        runtimes=RUNC,
        scope=True,
    ),
    Row("neighbour c3,c4", (_CONFINED._replace(shm="pod", mqueue="other", hold=True, expect=_HOLDS), _NEIGHBOUR)),
    Row(
        "dask.distributed, without the hook",
        (_DASK._replace(hook=False, expect={"dask": "FileNotFoundError in SemLock"}),),
        runtimes=CRUN,
    ),
    Row("dask.distributed", (_DASK._replace(expect={"dask": "14"}),), runtimes=RUNC),
    # By what BuildKit starts in the place of runc.
    Row(
        "BuildKit's folder, by oci-gpu-runtime",
        (_STEP._replace(expect={**_NODES, f"read:/victim/executor/{BUILT}/config.json": _READ}),),
        buildkit=True,
        denied=f"container_t {policy.HERE.configs_type}:file read" if policy.HERE.executor_is_closed else "",
        runtimes=("oci-gpu-runtime",),
    ),
)

# --- other vendors' hardware, by the files that we ship: see `vendors`

_NO_DEVICE = "ENXIO"
_OTHERS = _CONFINED._replace(gpu=False)
_UNMODIFIED = Container("container_t", gpu=False)
_ONLOAD = {f"read:/dev/{name}": _NO_DEVICE for name in ("onload", "onload_epoll", "sfc_char")}
# AMD's first by PCI address is the second that its driver found.
_AMD = {
    "read:/dev/kfd": _NO_DEVICE,
    "read:/dev/dri/renderD131": _NO_DEVICE,
    "read:/dev/dri/renderD130": "ENOENT",
    "read:/opt/rocm-6.2.0/.info/version": WORKS,
    "load:libhsa-runtime64.so.1": WORKS,
    "load:libamdhip64.so.6": WORKS,
}
_ADAPTERS = {
    **_NODES,
    "read:/dev/infiniband/uverbs1": _NO_DEVICE,
    "read:/dev/infiniband/uverbs0": "ENOENT",
    "read:/dev/infiniband/rdma_cm": "ENXIO|ENODEV",
    "read:/etc/libibverbs.d/mlx5.driver": WORKS,
    "load:libibverbs.so.1": WORKS,
    **_ONLOAD,
    "load:libonload_ext.so.1": WORKS,
    "read:/usr/libexec/onload/profiles/latency.opf": WORKS,
}
_EVERYTHING = {
    **_ONLOAD,
    "read:/dev/infiniband/uverbs0": _NO_DEVICE,
    "read:/dev/infiniband/uverbs1": "ENOENT",
    "read:/opt/libraries/libamdhip64.so.6": WORKS,
    "load:libamdhip64.so.6": WORKS,
    "read:/opt/rocm/bin/rocminfo": WORKS,
    "read:/usr/sbin/onload_tool": WORKS,
    "read:/etc/libdrm/amdgpu.ids": WORKS,
}

VENDORS = (
    Row("container_t c1,c2: a vendor's GPU", (_UNMODIFIED._replace(asks={"OCI_AMD": "0"}, expect=_AMD),)),
    Row(
        "container_t c1,c2: a GPU, a vendor's adapter and a third's",
        (Container("container_t", asks={"OCI_RDMA": "mlx5_1", "OCI_SOLARFLARE": "all"}, expect=_ADAPTERS),),
        runtimes=CRUN,
    ),
    Row(
        "container_t c1,c2: all that a vendor's file can say",
        (_UNMODIFIED._replace(asks={"OCI_EVERYTHING": "mlx5_0"}, expect=_EVERYTHING),),
        runtimes=RUNC,
    ),
    Row(
        "labels of vendors' nodes",
        (_OTHERS._replace(asks={"OCI_SOLARFLARE": "all", "OCI_AMD": "0", "OCI_RDMA": "0"}, hold=True, expect=_LABELS),),
        runtimes=CRUN,
    ),
    Row(
        "nvidia_container_t c1,c2: a vendor's GPU in a user namespace",
        (_OTHERS._replace(mapped=100_000, asks={"OCI_INTEL": "0"}, expect={"read:/dev/dri/renderD132": _NO_DEVICE}),),
        runtimes=CRUN,
    ),
)
