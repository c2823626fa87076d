# SPDX-License-Identifier: Apache-2.0
"""What is read for one container, and its plan.  Must not change anything but what is saved of drivers."""

from __future__ import annotations

from oci_gpu_hook.asking import Spec
from oci_gpu_hook.container import devicecgroup, layout
from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.container.rootfs import Rootfs
from oci_gpu_hook.driver import proc
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import Device
from oci_gpu_hook.planning import plan
from oci_gpu_hook.planning.plan import Container, Labels, Plan, Provision
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from oci_gpu_hook.planning.memoryshare import Memory

# selinuxfs is mounted where SELinux runs, and only there (selinux(8)).
_SELINUX = "/sys/fs/selinux/enforce"


def decide(
    bundle: Bundle,
    request: Request | None,
    settings: Settings,
    host: HostRoot,
    rootfs: Rootfs,
    *,
    id: str,
    process: Process | None,
    spec: Spec | None = None,
    caches: bool = True,
    restores: bool = False,
) -> Plan:
    """spec: what has started the hook; caches: see `Layout`; restores: whether the process is CRIU's.  Without a
    `process` the container does not exist yet: what only its process tells is taken from config.json.
    """
    device_cgroup = devicecgroup.find(process, id)
    scope = devicecgroup.scope_of(device_cgroup.top)
    container = Container(id, bundle.path, rootfs.path, device_cgroup, scope, rootfs.own, rootfs.is_layer)
    laid_out = _layout(bundle, request, settings, host, rootfs, process)._replace(caches=caches)
    # What is restored has its labels.
    labels = Labels()
    if not restores:
        labels = _labels(bundle, settings, host, rootfs, id, process, required=request is not None)
    if request is None:
        return Plan(container, laid_out, None, labels.operations, labels.notes, labels.context)
    from oci_gpu_hook.planning import drivers

    process_label = bundle.process_label() if labels.context else ""

    def provide(asked: Request) -> Provision:
        return drivers.provide(host, laid_out, asked, settings, process_label)

    memory = _memory(request, settings, host, process, device_cgroup)
    request, provision = _given(request, provide, settings, host, container, process, memory, restores=restores)
    provision = memory.limited(provision, host) if memory else provision
    if spec is not None:
        from oci_gpu_hook.planning import meanings

        # In a user namespace "/" belongs to another number, and what root has saved is not read.
        meanings.check_spec(spec, provision, bundle.devices(), has_names=host.roots[1] == 0)
    # A CDI spec's nodes are the engine's, and have their group from the spec (`cdispec`).
    elif any([isinstance(it, Device) and it.is_closed() for it in provision.operations]):
        from oci_gpu_hook.planning import nodegroups

        provision = nodegroups.opened(provision, bundle, may_change=settings.device_group == "container")
    # Only a program of v2 is ever made from them.
    falls_back = device_cgroup.version == "v2" and settings.device_cgroup != "off"
    rules = bundle.device_rules() if falls_back else ()
    made = plan.make(container, laid_out, request, provision, labels, settings.device_cgroup, rules)
    made = made if spec is None else meanings.leave_to_engine(made, spec, [path for path, *_ in bundle.devices()])
    return made.of_restore() if restores else made


def _memory(
    request: Request, settings: Settings, host: HostRoot, process: Process | None, cgroup: DeviceCgroup
) -> Memory | None:
    # What is needed counts only among holders.
    if request.memory_limit or settings.gpu_memory != "off" or (request.memory_request and settings.gpu_holders):
        from oci_gpu_hook.planning import memoryshare

        return memoryshare.memory_of(request, settings, host, process, cgroup)
    return None


def _given(
    request: Request,
    provide: Callable[[Request], Provision],
    settings: Settings,
    host: HostRoot,
    container: Container,
    process: Process | None,
    memory: Memory | None,
    *,
    restores: bool,
) -> tuple[Request, Provision]:
    """The request with the devices that the node chooses, and what `provide` gives for it; a start's are leased."""
    if not settings.gpu_holders and not host.stat(f"{statefile.FOLDER}/{statefile.UNHEALTHY}"):
        return request, provide(request)
    from oci_gpu_hook.planning import placement

    dumped = None
    if restores and process is not None:
        from oci_gpu_hook.container import restore

        dumped = restore.dumped(process)
    is_start = process is not None and (host.remember or process.is_caller)
    start = placement.Start(host, settings, container, process if is_start else None, dumped, memory)
    return start.given(request, provide)


def _labels(
    bundle: Bundle,
    settings: Settings,
    host: HostRoot,
    rootfs: Rootfs,
    id: str,
    process: Process | None,
    *,
    required: bool,
) -> Labels:
    if not has_selinux(host):
        return Labels()
    from oci_gpu_hook.container import ipc
    from oci_gpu_hook.planning import labels

    mounts = ipc.mounts(bundle, id, rootfs, process, host) if process else ()
    return labels.decide(mounts, bundle.mount_label(), bundle.process_label(), settings, required=required)


def _layout(
    bundle: Bundle, request: Request | None, settings: Settings, host: HostRoot, rootfs: Rootfs, process: Process | None
) -> layout.Layout:
    capabilities = request.capabilities if request is not None else ()
    compat = ""
    if settings.cuda_forward_compatibility and "compute" in capabilities:
        compat = layout.COMPAT_ORIN_FOLDER if proc.is_orin(host) else layout.COMPAT_FOLDER
    return layout.layout_of(
        *(rootfs.fd, process),
        user_namespace=bundle.has_user_namespace(),
        makes_nodes=rootfs.makes_nodes,
        compat=compat,
        draws="display" in capabilities or "graphics" in capabilities,
    )


def has_selinux(host: HostRoot) -> bool:
    return host.stat(_SELINUX) is not None
