# SPDX-License-Identifier: Apache-2.0
"""What a container gets of NVIDIA's on a Jetson or under WSL 2: no kernel module has GPUs below /proc there.

A request gets all devices, whatever it names, as by NVIDIA's runtime.  Beside a Jetson's own GPU there may be others on
PCI, which NVIDIA's module drives: there a request chooses.  Index 0 is the integrated one, as in NVML: on Thor the
module drives it, at PCI address 0000:01:00.0; on Orin nvgpu does.  /dev/nvidia2 is the integrated GPU's display.
"""

from __future__ import annotations

from oci_gpu_hook.container.layout import COMPAT_ORIN_FOLDER, Layout
from oci_gpu_hook.driver import proc
from oci_gpu_hook.driver.inventory import DriverInventory, Library, with_nodes
from oci_gpu_hook.driver.nodes import GPU_MAJOR, device
from oci_gpu_hook.errors import DriverError, RequestError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.planning import selection, vendorshare
from oci_gpu_hook.planning.plan import Held, Share
from oci_gpu_hook.request.selectors import UUID_GROUPS, Request
from oci_gpu_hook.request.words import ALL, NONE, VISIBLE_DEVICES
from oci_gpu_hook.vendors import platform, vendorhost, vendorrules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.planning.plan import Reasoned
    from oci_gpu_hook.vendors.vendorinventory import See, Vendor

    Links = tuple[tuple[str, str], ...]
    Chosen = tuple[str, tuple[tuple[proc.Gpu, str], ...]]

# The CUDA of each release of Jetson Linux, by NVIDIA's release notes: nothing on the host says it without a program.
_CUDA = {"36.2": "12.2", "36.3": "12.2", "36.4": "12.6", "36.5": "12.6", "38.2": "13.0", "38.4": "13.0", "39.2": "13.2"}
INTEGRATED = "00000000:01:00.0"
_DISPLAY_MINOR = 2
_WHOLE: tuple[Held, ...] = (Held(ALL, ALL),)
_HINT = "the container's author must ask for one that exists; index 0 is the integrated GPU"


def share(host: HostRoot, layout: Layout, request: Request, inventory: DriverInventory | None) -> tuple[Share, str]:
    """The share, and that driver's name; DriverError, RequestError.  inventory: of NVIDIA's module, if it has GPUs."""
    kind = platform.platform_of(host)
    found = platform_state(host, kind, everything=request.jetpack_all)
    # Where the engine has made the nodes that somebody chose, only files are lacking.
    devices = (NONE,) if request.devices in ((NONE,), ()) else (ALL,)
    given = vendorshare.share(layout, Request("env", devices, flag=VISIBLE_DEVICES, file=found.inventory.file), found)
    if devices == (ALL,) or request.nodes:
        nodes, holds = given.nodes, _WHOLE
        if inventory is not None:
            nodes, holds = _with_gpus_on_pci(host, request, inventory, given.nodes)
        given = given._replace(nodes=nodes, holds=holds)
    if layout.compat and kind == platform.TEGRA:
        from oci_gpu_hook.planning import compatibility

        # Orin's notes go by CUDA's version alone; its integrated GPU has no brand.
        gpus: tuple[proc.Gpu, ...] = ()
        versions = ("", _CUDA.get(".".join(found.inventory.version.split(".")[:2]), ""))
        if inventory is not None and layout.compat.folder != COMPAT_ORIN_FOLDER:
            versions, gpus = (inventory.driver_version, inventory.cuda_version), inventory.gpus
        given = compatibility.with_newer(given, layout.compat, versions, gpus, found.inventory.libraries)
    return given._replace(notes=(*given.notes, *_notes(request, kind))), title(kind, found)


def platform_state(host: HostRoot, kind: str, *, everything: bool) -> vendorhost.VendorState:
    """everything: by all of a Jetson's CSV files; DriverError if it has nothing."""
    file, name = platform.WSL_FOLDER, kind
    if kind == platform.TEGRA:
        file, name = proc.CSV_FOLDER, f"{kind}.all" if everything else kind

    def describe(see: See) -> Vendor:
        from oci_gpu_hook.vendors import tegra, wsl

        return tegra.vendor(host, everything, see)[0] if kind == platform.TEGRA else wsl.vendor(host, see)

    found = vendorhost.vendor_state(host, vendorhost.saved_or_new(host, name, file, describe))
    inventory = found.inventory
    known = {"/dev/null", *[node.path for node, _ in found.common]}
    # udev makes /dev/v4l2-nvdec a second /dev/null, for a library that opens it and asks nothing of the kernel.
    null = [
        (device(host, pattern.path, *vendorrules.NULL), pattern.group)
        for pattern in inventory.patterns
        if pattern.path not in known and (status := host.stat(pattern.path)) and vendorrules.is_null(status.st_rdev)
    ]
    if not found.common and not null:
        paths = [pattern.path for pattern in inventory.patterns]
        what = f"none of the {len(paths)} devices that {file} names is there, such as {paths[0]}"
        raise DriverError(what, "the administrator must load its kernel modules: modprobe nvgpu")
    # A Jetson's lists name what all boards have: that this one lacks some of it is not worth a sentence.
    libraries, links = joined(inventory.libraries, inventory.links)
    inventory = inventory._replace(libraries=libraries, links=links, absent=())
    return found._replace(inventory=inventory, common=(*found.common, *null), absent=())


def title(kind: str, found: vendorhost.VendorState) -> str:
    release = f"Jetson Linux {found.inventory.version or 'of an unknown release'}"
    return release if kind == platform.TEGRA else platform.NAMES[kind]


def joined(libraries: tuple[Library, ...], links: Links) -> tuple[tuple[Library, ...], Links]:
    """Libraries with the links beside them as further names, and the other links.  An image built on a Jetson has empty
    files there: a name is mounted over one.  No name is a file of its own: Windows has no links, and so copies.
    """
    files = {(it.folder, it.file) for it in libraries}
    names = [[name for name in it.names if name == it.file or (it.folder, name) not in files] for it in libraries]
    known = {(library.folder, name): number for number, library in enumerate(libraries) for name in names[number]}
    others = []
    for path, text in links:
        folder, _, name = path.rpartition("/")
        number = known.setdefault((folder, name), known.get((folder, text), -1))
        if number < 0:
            others.append((path, text))
        elif name not in names[number]:
            names[number].append(name)
    found = [library._replace(names=tuple(names[number])) for number, library in enumerate(libraries)]
    return tuple(found), tuple(others)


def _notes(request: Request, kind: str) -> tuple[str, ...]:
    name = platform.NAMES[kind]
    asked = [*request.features, *["IMEX channels"] * bool(request.imex_channels)]
    asked += ["the management of MIG"] * (request.mig_config or request.mig_monitor)
    notes = [f"{', '.join(asked)}: {name} has none"] if asked else []
    if request.requirements:
        notes.append(f"NVIDIA_REQUIRE_* is not checked: what {name} supports is not known")
    return tuple(notes)


def _with_gpus_on_pci(
    host: HostRoot, request: Request, inventory: DriverInventory, listed: Reasoned
) -> tuple[Reasoned, tuple[Held, ...]]:
    """The nodes that a request brings, of those that the lists name and those of GPUs on PCI, but for what a CDI spec
    has brought; and what it holds; RequestError.
    """
    others = tuple([gpu for gpu in inventory.gpus if gpu.bus_id != INTEGRATED])
    integrated = next((gpu for gpu in inventory.gpus if gpu.bus_id == INTEGRATED), None)
    if not others:
        return listed, _WHOLE
    wants_integrated, chosen = (_given if request.nodes else _chosen)(request, integrated, others)
    own = Held(integrated.bus_id, "0", integrated.bus_id) if integrated else Held(ALL, "0")
    held = [own] * bool(wants_integrated)
    held += [Held(gpu.bus_id, str(at), gpu.bus_id) for at, gpu in enumerate(others, 1) if gpu in dict(chosen)]
    if request.nodes:
        return (), tuple(held)
    of_gpus = {f"/dev/nvidia{gpu.minor}": gpu for gpu in inventory.gpus}
    given = [None, integrated] if wants_integrated else [None]
    found = [(node, reason) for node, reason in listed if of_gpus.get(node.path) in given]
    display = device(host, f"/dev/nvidia{_DISPLAY_MINOR}", GPU_MAJOR, _DISPLAY_MINOR)
    if wants_integrated and display.present and display.path not in of_gpus:
        found.append((display, f"display of the integrated GPU: asked for as {wants_integrated}"))
    if chosen:
        gpus, known = tuple([gpu for gpu, _ in chosen]), {node.path for node, _ in found}
        looked = with_nodes(host, inventory, selection.families(request), request.imex_channels, gpus=gpus)
        wanted = selection.nodes(request, selection.Selection(chosen, ()), looked)
        found += [(node, reason) for node, reason in wanted if node.path not in known]
    return tuple(found), tuple(held)


def _given(request: Request, integrated: proc.Gpu | None, others: tuple[proc.Gpu, ...]) -> Chosen:
    """By a spec's nodes: those that the lists name come with each GPU, Orin's display with its own alone."""
    chosen = tuple([(gpu, path) for gpu in others if (path := f"/dev/nvidia{gpu.minor}") in request.nodes])
    sign = f"/dev/nvidia{integrated.minor if integrated else _DISPLAY_MINOR}"
    return sign if sign in request.nodes or not chosen else "", chosen


def _chosen(request: Request, integrated: proc.Gpu | None, others: tuple[proc.Gpu, ...]) -> Chosen:
    """The selector that asks for the integrated GPU, "" for none, and the others, each with its selector."""
    if request.devices == (ALL,):
        return ALL, tuple([(gpu, ALL) for gpu in others])
    wants, chosen = "", dict[proc.Gpu, str]()
    for selector in request.devices:
        index = decimal(selector)
        is_own = integrated is not None and selector in (integrated.uuid, integrated.bus_id)
        # Orin's UUID is without a beginning.
        if index == 0 or is_own or [*map(len, selector.split("-"))] == UUID_GROUPS:
            wants = selector
            continue
        named = [gpu for place, gpu in enumerate(others, 1) if index == place or selector in (gpu.uuid, gpu.bus_id)]
        if not named:
            raise RequestError(f"unknown device {quoted(selector)}: this Jetson has indices 0 to {len(others)}", _HINT)
        chosen.setdefault(named[0], selector)
    return wants, tuple([(gpu, chosen[gpu]) for gpu in others if gpu in chosen])
