# SPDX-License-Identifier: Apache-2.0
"""Everything that is read for one container, and the plan that comes of it.

The container and the host are looked at, what the driver gives is taken from a saved answer or decided anew, and `plan`
puts it together.  What only some starts need is imported where they need it.  Must not change anything but saved
answers and the inventory.
"""

from __future__ import annotations

from oci_gpu_hook.container import devicecgroup, layout, systemdscope
from oci_gpu_hook.container.identity import Container
from oci_gpu_hook.planning import answers, plan
from oci_gpu_hook.planning.plan import Found, Labels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.asking import Spec
    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.container.process import Process
    from oci_gpu_hook.container.rootfs import Rootfs
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.planning.answers import Question
    from oci_gpu_hook.planning.plan import Plan, Provision, Share
    from oci_gpu_hook.request.bundle import Bundle
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.request.settings import Settings

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
) -> Plan:
    """The plan for a bundle; saved answers are used, and new ones saved, only by a `host` that remembers.

    Without a `process` the container does not exist yet: what only its process tells is taken from config.json.
    spec: the CDI spec of ours that has started the hook: DriverError if it is for another driver.
    """
    device_cgroup = devicecgroup.look(process, id)
    container = Container(
        id=id,
        bundle=bundle.path,
        rootfs=bundle.rootfs(),
        device_cgroup=device_cgroup,
        scope=systemdscope.find(device_cgroup.top),
        own_mounts=rootfs.own,
    )
    capabilities = request.capabilities if request else ()
    laid_out = layout.look(
        rootfs.fd,
        process,
        user_namespace=bundle.has_user_namespace(),
        compat=settings.cuda_forward_compatibility and "compute" in capabilities,
    )
    labels = _labels(bundle, host, rootfs, settings, id=id, process=process, required=request is not None)
    if request is None:
        return plan.make_labels(container, laid_out, labels)
    process_type = _type_of(bundle) if request.vendors and labels.context else ""
    provision, found = _provision(host, laid_out, request, settings, process_type)
    # Only a program of v2 is ever made from them.
    falls_back = device_cgroup.version == "v2" and settings.device_cgroup != "off"
    rules = bundle.device_rules() if falls_back else ()
    made = plan.make(container, laid_out, request, provision, labels, settings, rules)._replace(found=found)
    if spec is None:
        return made
    from oci_gpu_hook.planning import carriedout

    return carriedout.apart(made, spec, bundle)


def has_selinux(host: HostRoot) -> bool:
    """Whether SELinux runs on this host."""
    return host.stat(_SELINUX) is not None


def _provision(
    host: HostRoot, laid_out: Layout, request: Request, settings: Settings, process_type: str
) -> tuple[Provision, Found]:
    """What the container gets, and what of the host was looked at for it.

    process_type: the SELinux type of the container's process, "" if it has none.
    """
    if request.vendors:
        return _provide_all(host, laid_out, request, settings, process_type)
    question = answers.question(host, request, laid_out, settings) if host.remember else None
    recalled = answers.recall(host, question) if question else None
    if recalled is not None:
        return recalled, Found()
    return _provide(host, laid_out, request, settings, question)


def _provide(
    host: HostRoot, laid_out: Layout, request: Request, settings: Settings, question: Question | None
) -> tuple[Provision, Found]:
    """What NVIDIA's driver gives, decided from the inventory."""
    from oci_gpu_hook.planning import provision, recording

    root = recording.RecordingRoot(host) if question else None
    saved, is_settled = _inventory(host, settings.driver_root)
    share, version, inventory = _of_gpus(root or host, laid_out, request, settings, saved)
    provided = provision.join(laid_out, version, (share,))
    is_whole = inventory is not None and all([gpu.uuid for gpu in inventory.gpus])
    if question and root and is_settled and is_whole:
        recording.keep(question, root, provided)
    return provided, Found(inventory)


def _provide_all(
    host: HostRoot, laid_out: Layout, request: Request, settings: Settings, process_type: str
) -> tuple[Provision, Found]:
    """What several drivers give, or another vendor's than NVIDIA's."""
    from oci_gpu_hook.planning import provision, vendorshare
    from oci_gpu_hook.vendors import current, vendorhost

    shares, inventory, version = [], None, ""
    if request.devices:
        gpus, _ = _inventory(host, settings.driver_root)
        share, version, inventory = _of_gpus(host, laid_out, request, settings, gpus)
        shares = [share]
    if request.is_by_spec():
        laid_out = _as_host(laid_out, layout.library_folder(host.fd)[0])
    found = [vendorhost.look(host, current.vendor_inventory(host, it.flag, it.file)) for it in request.vendors]
    for asked, on_host in zip(request.vendors, found):
        shares.append(vendorshare.share(laid_out, asked, on_host, process_type))
    return provision.join(laid_out, version, tuple(shares)), Found(inventory, tuple(found))


def _of_gpus(
    host: HostRoot, laid_out: Layout, request: Request, settings: Settings, found: DriverInventory | None
) -> tuple[Share, str, DriverInventory | None]:
    """What NVIDIA_VISIBLE_DEVICES brings: the share, the driver's version, the inventory if it is NVIDIA's module."""
    if found is None:
        from oci_gpu_hook.planning import platforms

        if request.is_by_spec():
            laid_out = _as_host(laid_out, layout.library_folder(host.fd)[0])
        share, version = platforms.share(host, laid_out, request)
        return share, version, None
    from oci_gpu_hook.driver.inventory import with_nodes
    from oci_gpu_hook.planning import provision, selection

    selected = selection.select(request, found)
    inventory = with_nodes(
        host,
        found,
        selection.families(request),
        request.imex_channels,
        settings.driver_root,
        tuple([gpu for gpu, _ in selected.gpus]),
        (settings.mps_pipe_folder, settings.mps_pipe_owner),
    )
    if request.is_by_spec():
        laid_out = _as_host(laid_out, inventory.library_folder)
    if request.requirements:
        from oci_gpu_hook.planning import requirements

        gpus = tuple([(gpu.compute_capability, gpu.brand) for gpu, _ in selected.gpus])
        facts = requirements.HostFacts(inventory.driver_version, inventory.cuda_version, gpus)
        requirements.check(request.requirements, facts)
    share = provision.of_nvidia(laid_out, request, selected, inventory)
    return share, inventory.driver_version, inventory


def _type_of(bundle: Bundle) -> str:
    """The SELinux type of the container's process; "" if the engine gives none."""
    words = bundle.process_label().split(":")
    return words[2] if len(words) > 2 else ""


def _as_host(laid_out: Layout, folder: str) -> Layout:
    """The layout that a CDI spec goes by: made before any container, it puts libraries where the host has them."""
    folder_32 = layout.library_folder_32(folder, layout.GLIBC)
    return laid_out._replace(library_folder=folder, library_folder_32=folder_32)


def _inventory(host: HostRoot, driver_root: str) -> tuple[DriverInventory | None, bool]:
    """The saved inventory while it is true, else a new one; and whether it is settled: saved, and without a doubt.

    None on a Jetson and under WSL 2, which have no GPU in it: see `platforms`.
    """
    from oci_gpu_hook.driver import inventory, proc, stamp

    saved = inventory.read_saved(host, stamp.now(host, driver_root))
    if saved is not None and saved.gpus:
        if host.remember and any([device.uuid is None for device in saved.mig_devices]):
            from oci_gpu_hook.host.saved import want_refresh

            want_refresh(host)
        return saved, inventory.MAY_BE_MADE_ANEW not in saved.unknown
    if not host.names(proc.GPUS):
        from oci_gpu_hook.vendors import platform

        if platform.look(host) in (platform.TEGRA, platform.WSL):
            return None, False
    if saved is not None:
        return saved, True
    from oci_gpu_hook.driver import survey

    look = survey.anew if host.remember else survey.survey
    return look(host, driver_root), False


def _labels(
    bundle: Bundle,
    host: HostRoot,
    rootfs: Rootfs,
    settings: Settings,
    *,
    id: str,
    process: Process | None,
    required: bool,
) -> Labels:
    """What SELinux needs; a host without it loads nothing for it."""
    if not has_selinux(host):
        return Labels()
    from oci_gpu_hook.container import ipc
    from oci_gpu_hook.planning import labels

    mounts = ipc.mounts(bundle, id, rootfs, process, host) if process else ()
    mount_label, process_label = bundle.mount_label(), bundle.process_label()
    return labels.decide(mounts, mount_label, process_label, settings, required=required)
