# SPDX-License-Identifier: Apache-2.0
"""What drivers give to a container: the host is looked at, and `provision`, `platforms` and `vendorshare` decide."""

from __future__ import annotations

from oci_gpu_hook.container import layout
from oci_gpu_hook.driver import inventory, nodes, proc
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.planning import provision, selection
from oci_gpu_hook.planning.plan import Provision, Share
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.vendors import platform


def provide(host: HostRoot, laid_out: layout.Layout, request: Request, settings: Settings, label: str) -> Provision:
    """label: of the container's process, "" without SELinux."""
    shares, version, module, on_host = [], "", None, []
    if request.devices or request.nodes or not request.vendors:
        known = known_inventory(host, settings.driver_root)
        # A Jetson's containers get what its lists say, also where NVIDIA's module has GPUs.
        if known is None or (host.stat(proc.CSV_FOLDER) and platform.platform_of(host) == platform.TEGRA):
            from oci_gpu_hook.planning import platforms

            share, version = platforms.share(host, laid_out, request, known)
        else:
            share, module = _of_gpus(host, laid_out, request, settings, known)
            version = module.driver_version
        shares.append(share)
    for asked in request.vendors:
        from oci_gpu_hook.planning import vendorshare
        from oci_gpu_hook.vendors import folders, vendorhost

        on_host.append(vendorhost.vendor_state(host, folders.vendor_inventory(host, asked.flag, asked.file)))
        shares.append(vendorshare.share(laid_out, asked, on_host[-1], "".join(label.split(":")[2:3])))
    return provision.join(laid_out, version, tuple(shares))._replace(inventory=module, vendors=tuple(on_host))


def _of_gpus(
    host: HostRoot, laid_out: layout.Layout, request: Request, settings: Settings, known: inventory.DriverInventory
) -> tuple[Share, inventory.DriverInventory]:
    if request.nodes:
        # MIG's management too, which a spec of that kind brings.
        minors = (known.mig_config_minor, known.mig_monitor_minor)
        configures, monitors = [f"{nodes.CAPS_FOLDER}/nvidia-cap{minor}" in request.nodes for minor in minors]
        request = request._replace(mig_config=configures, mig_monitor=monitors)
    selected = selection.select(request, known)
    gpus = tuple([gpu for gpu, _ in selected.gpus])
    families, mps = selection.families(request), (settings.mps_pipe_folder, settings.mps_pipe_owner)
    found = inventory.with_nodes(host, known, families, request.imex_channels, settings.driver_root, gpus, mps)
    found = inventory.with_texts(host, found, request.capabilities)
    if request.requirements:
        from oci_gpu_hook.planning import requirements

        kinds = tuple([(gpu.compute_capability, gpu.brand) for gpu in gpus])
        requirements.check(request.requirements, found.driver_version, found.cuda_version, kinds)
    return provision.of_nvidia(laid_out, request, selected, found), found


def known_inventory(host: HostRoot, driver_root: str) -> inventory.DriverInventory | None:
    """The saved inventory while it is true, else a new one; None if `platforms` has the GPUs instead."""
    known = inventory.read_saved(host, proc.stamp(host, driver_root))
    has_gpus = (known and known.gpus) or host.names(proc.GPUS)
    if not has_gpus and platform.platform_of(host) in (platform.TEGRA, platform.WSL):
        return None
    if known is None or known.misfits:
        from oci_gpu_hook.driver import survey

        look = survey.survey_and_save if host.remember else survey.survey
        known = survey.read_true(host, driver_root) or look(host, driver_root)
    # NVML alone knows their names.
    if host.remember and any([device.uuid is None for device in known.mig_devices]):
        statefile.want_refresh(host)
    return inventory.of_this_host(host, known)
