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
from oci_gpu_hook.planning.plan import Container, Labels, Plan, Provision, make, open_cgroup
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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
    cgroup = devicecgroup.find(process, id, is_needed=settings.device_cgroup != "off")
    scope = devicecgroup.scope_of(cgroup.top)
    container = Container(id, bundle.path, rootfs.path, cgroup, scope, rootfs.own, rootfs.is_layer)
    laid_out = _layout(bundle, request, settings, host, rootfs.fd, process)
    laid_out = laid_out._replace(caches=caches, makes_nodes=rootfs.makes_nodes)
    # What is restored has its labels.
    labels = Labels()
    if has_selinux(host) and not restores:
        labels = _labels(bundle, settings, host, rootfs, id, process, request is not None)
    if request is None:
        return Plan(container, laid_out, None, labels.operations, labels.notes, labels.context)
    from oci_gpu_hook.planning import drivers

    def provide(asked: Request) -> Provision:
        return drivers.provide(host, laid_out, asked, settings, bundle.process_label() if labels.context else "")

    request, provision = _provided(request, provide, settings, host, container, process, restores=restores)
    if spec is not None:
        from oci_gpu_hook.planning import meanings

        # In a user namespace "/" belongs to another number, and what root has saved is not read.
        meanings.check_spec(spec, provision, bundle.made(), has_names=host.roots[1] == 0)
    # A CDI spec's nodes are the engine's, and have their group from the spec (`cdispec`).
    elif any([isinstance(it, Device) and it.is_closed() for it in provision.operations]):
        from oci_gpu_hook.planning import nodegroups

        provision = nodegroups.opened(provision, bundle, may_change=settings.device_group == "container")
    # Only a program of v2 is ever made from them.
    rules = bundle.device_rules() if cgroup.version == "v2" and settings.device_cgroup != "off" else ()
    opened = open_cgroup(container, settings.device_cgroup, provision.devices, rules)
    made = make(container, laid_out, request, provision, labels, opened)
    if spec is not None:
        made = meanings.leave_to_engine(made, spec, tuple([path for path, *_ in bundle.made()]))
    return made.of_restore() if restores else made


def _labels(
    bundle: Bundle, settings: Settings, host: HostRoot, rootfs: Rootfs, id: str, process: Process | None, asks: bool
) -> Labels:
    from oci_gpu_hook.container import ipc
    from oci_gpu_hook.planning.labels import labels_of

    mounts = ipc.mounts(bundle, id, rootfs, process, host) if process else ()
    return labels_of(mounts, bundle.mount_label(), bundle.process_label(), settings, required=asks)


def _provided(
    request: Request,
    provide: Callable[[Request], Provision],
    settings: Settings,
    host: HostRoot,
    container: Container,
    process: Process | None,
    *,
    restores: bool,
) -> tuple[Request, Provision]:
    """The request with the devices that were chosen for it, and what drivers give, within the limits of memory."""
    memory = _memory(request, settings, host, container.device_cgroup)
    if not settings.gpu_holders and not host.stat(f"{statefile.FOLDER}/{statefile.UNHEALTHY}"):
        provision = provide(request)
        return request, memory.limited(provision) if memory else provision
    from oci_gpu_hook.planning.placement import Start

    is_start = process is not None and (host.remember or process.is_caller)
    return Start(host, settings, container, process if is_start else None, memory, restores).given(request, provide)


def _memory(request: Request, settings: Settings, host: HostRoot, cgroup: DeviceCgroup) -> Memory | None:
    # What is needed counts only among holders.
    if request.memory_limit or settings.gpu_memory != "off" or (request.memory_request and settings.gpu_holders):
        from oci_gpu_hook.planning import memoryshare

        return memoryshare.memory_of(request, settings, host, cgroup)
    return None


def _layout(
    bundle: Bundle, request: Request | None, settings: Settings, host: HostRoot, root_fd: int, process: Process | None
) -> layout.Layout:
    capabilities, compat = request.capabilities if request is not None else (), ""
    if settings.cuda_forward_compatibility and "compute" in capabilities:
        compat = layout.COMPAT_ORIN_FOLDER if proc.is_orin(host) else layout.COMPAT_FOLDER
    return layout.layout_of(
        root_fd,
        process,
        user_namespace=bundle.has_user_namespace(),
        compat=compat,
        draws="display" in capabilities or "graphics" in capabilities,
    )


def has_selinux(host: HostRoot) -> bool:
    return host.stat(_SELINUX) is not None
