# SPDX-License-Identifier: Apache-2.0
"""What drivers give to a container, looked up on the host and decided anew: no saved answer has it.

Must not change anything but what is saved: the inventories and the answer.
"""

from __future__ import annotations

from oci_gpu_hook.container import layout
from oci_gpu_hook.driver import inventory, proc
from oci_gpu_hook.driver.inventory import with_nodes
from oci_gpu_hook.planning import provision, recording, selection
from oci_gpu_hook.planning.plan import Found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.planning.answers import Question
    from oci_gpu_hook.planning.plan import Provision, Share
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.request.settings import Settings


def nvidias(
    host: HostRoot, laid_out: Layout, request: Request, settings: Settings, question: Question | None
) -> tuple[Provision, Found]:
    """What NVIDIA's driver gives, decided from the inventory."""
    root = recording.RecordingRoot(host) if question else None
    saved, is_settled = _inventory(host, settings.driver_root)
    share, version, inventory = _of_gpus(root or host, laid_out, request, settings, saved)
    provided = provision.join(laid_out, version, (share,))
    is_whole = inventory is not None and all([gpu.uuid for gpu in inventory.gpus])
    if question and root and is_settled and is_whole:
        recording.keep(question, root, provided)
    return provided, Found(inventory)


def all_of(
    host: HostRoot, laid_out: Layout, request: Request, settings: Settings, process_type: str
) -> tuple[Provision, Found]:
    """What several drivers give, or another vendor's than NVIDIA's."""
    from oci_gpu_hook.planning import vendorshare
    from oci_gpu_hook.vendors import folders, vendorhost

    shares, inventory, version = [], None, ""
    if request.devices:
        gpus, _ = _inventory(host, settings.driver_root)
        share, version, inventory = _of_gpus(host, laid_out, request, settings, gpus)
        shares = [share]
    if request.is_by_spec():
        laid_out = _as_host(laid_out, layout.library_folder(host.fd)[0])
    found = [vendorhost.look(host, folders.vendor_inventory(host, it.flag, it.file)) for it in request.vendors]
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


def _as_host(laid_out: Layout, folder: str) -> Layout:
    """The layout that a CDI spec goes by: made before any container, it puts libraries where the host has them."""
    folder_32 = layout.library_folder_32(folder, layout.GLIBC)
    return laid_out._replace(library_folder=folder, library_folder_32=folder_32)


def _inventory(host: HostRoot, driver_root: str) -> tuple[DriverInventory | None, bool]:
    """The saved inventory while it is true, else a new one; and whether it is settled: saved, and without a doubt.

    None on a Jetson and under WSL 2, which have no GPU in it: see `platforms`.
    """
    saved = inventory.read_saved(host, proc.stamp(host, driver_root))
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

    look = survey.survey_and_save if host.remember else survey.survey
    return look(host, driver_root), False
