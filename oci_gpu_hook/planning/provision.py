# SPDX-License-Identifier: Apache-2.0
"""What a container gets from drivers, as operations: what is done, what is required, and why.  Pure.

`join` makes one provision of what NVIDIA's driver gives, which is decided here, and of other vendors' shares.

A driver's files lie in a filesystem of ours, at `FOLDER`; ld.so.cache names the libraries there, and a link leads from
each fixed path: so nothing of a driver is left in an image.  musl reads no cache: files lie where they are looked for.
"""

from __future__ import annotations

from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.driver.inventory import DriverInventory, Library
from oci_gpu_hook.driver.proc import DRIVER, LD_SO_CACHE
from oci_gpu_hook.errors import ConfigError, DriverError
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.operations import Cover, Device, LdCache, Mount, Service, Symlink, Tmpfs
from oci_gpu_hook.planning import selection
from oci_gpu_hook.planning.plan import Provision, Share
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.words import MIG_MANAGEMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.driver.nodes import DeviceLink
    from oci_gpu_hook.operations import Operation
    from oci_gpu_hook.planning.plan import Reasoned

READ_ONLY = ("ro", "nosuid", "nodev")
READ_ONLY_DATA = (*READ_ONLY, "noexec")
COMPAT32 = "compat32"

# Where nvidia-docker 1 and Google's nodes have mounted the driver.  CUDA's images name it in LD_LIBRARY_PATH (lib, for
# 32 bits, and lib64), in /etc/ld.so.conf.d and in PATH (bin): an ldconfig in the container finds the driver, too.
FOLDER = "/usr/local/nvidia"
# Of sites that give each container their own /usr/local.
_ELSEWHERE = "/usr/lib/oci-gpu-hook"
# Named so that it comes before the image's own.  With another vendor's flag: by CDI a container has several starts of
# the hook, and none may hide from ldconfig what an earlier one has brought.
_LD_SO_CONF = "/etc/ld.so.conf.d/000-oci-gpu-hook{}.conf"

# The mask that it carries has 64 bits (NVIDIA's README, "Application Profiles", and EGLVisibleDGPUDevices).
_PROFILE_MINORS = 64


def of_nvidia(layout: Layout, request: Request, selected: selection.Selection, inventory: DriverInventory) -> Share:
    """DriverError if it cannot meet the request."""
    check_driver(request, inventory)
    nodes = selection.nodes(request, selected, inventory)
    folder = own_folder(layout, FOLDER)
    libraries = brought(layout, request, inventory)
    files, texts = file_operations(request, inventory, folder, layout.xorg_folder)
    services, untrusted = _services(request, inventory)
    operations = (
        *links(layout, nodes, inventory.links),
        *library_mounts(libraries),
        *(_links_in_place(layout, folder, libraries) if folder else ()),
        *files,
        *services,
        *_proc_driver(request, selected, inventory),
        *_application_profile(request, selected),
    )
    notes = selection.absent_features(request, inventory)
    notes += [f"{it} is not numbered: this host is a container without its node" for it in inventory.elsewhere]
    if COMPAT32 in request.capabilities and not layout.library_folder_32:
        notes.append(f"{COMPAT32} brings nothing: this container's loader runs no 32-bit programs")
    notes += untrusted
    entries, holds = cache_entries(libraries), selection.holds(selected, inventory)
    made = Share("NVIDIA's driver", folder, nodes, operations, entries, tuple(notes), texts, holds)
    if layout.compat:
        from oci_gpu_hook.planning import compatibility

        gpus, versions = tuple([gpu for gpu, _ in selected.gpus]), (inventory.driver_version, inventory.cuda_version)
        return compatibility.with_newer(made, layout.compat, versions, gpus, inventory.libraries)
    return made


def join(layout: Layout, version: str, shares: tuple[Share, ...]) -> Provision:
    """ConfigError if two shares want different things at one path."""
    # What is at each path, and at each path below a driver's folder: who gives it, and what it is.
    taken: dict[str, tuple[str, object]] = {}
    names: dict[str, tuple[str, object]] = {}
    operations: list[Operation] = [*_folders(shares)]
    for share in shares:
        given = [*_devices(layout, share.nodes), *share.operations]
        if len(shares) > 1:
            given = [it for it in given if _is_new(taken, share.giver, _things(it))]
            # The loader takes the first of two libraries of one name.
            libraries = [it for it in share.operations if isinstance(it, Mount)]
            for it in [it for it in libraries if it.target.startswith(f"{share.folder}/lib")]:
                inside = [path.removeprefix(f"{share.folder}/") for path in it.paths()]
                _is_new(names, share.giver, dict.fromkeys(inside, it.source))
        operations += given
    entries = tuple(dict.fromkeys([entry for share in shares for entry in share.entries]))
    if entries and layout.finds_by_cache():
        folders = tuple(dict.fromkeys([share.folder for share in shares if share.folder]))
        reason, name = "the loader and 'ldconfig -p' find the libraries", folders[0].rpartition("/")[2]
        configuration = _LD_SO_CONF.format("" if FOLDER.endswith(name) else f"-{name}")
        operations.append(LdCache(LD_SO_CACHE, configuration, folders, entries, required=True, reason=reason))
    devices = dict.fromkeys([(node.major, node.minor) for share in shares for node, _ in share.nodes])
    notes = tuple([note for share in shares for note in share.notes])
    holds = tuple([held for share in shares for held in share.holds])
    return Provision(version, tuple(devices), tuple(operations), notes, holds)


def own_folder(layout: Layout, folder: str) -> str:
    """Empty if the loader does not find libraries in it; beside a volume at /usr/local."""
    if not layout.finds_by_cache():
        return ""
    return f"{_ELSEWHERE}/{folder.rpartition('/')[2]}" if layout.local_is_volume else folder


def _folders(shares: tuple[Share, ...]) -> list[Tmpfs]:
    texts: dict[str, tuple[tuple[str, str, int], ...]] = {}
    for share in shares:
        if share.folder:
            files = tuple([(name, text, 0o444) for name, text in share.texts])
            texts[share.folder] = (*texts.get(share.folder, ()), *files)
    reason = "the driver's own files: nothing of it stays in the image"
    return [_tmpfs(folder, (), files, reason) for folder, files in texts.items()]


def _tmpfs(
    path: str, folders: tuple[str, ...], files: tuple[tuple[str, str, int], ...], reason: str, required: bool = True
) -> Tmpfs:
    """folders: those below it beside its files' own."""
    inner = dict.fromkeys([*folders, *[name.rpartition("/")[0] for name, _, _ in files]])
    return Tmpfs(path, READ_ONLY_DATA, tuple(filter(None, inner)), files, required, reason)


def _is_new(taken: dict[str, tuple[str, object]], giver: str, things: dict[str, object]) -> bool:
    """Takes the paths.  ConfigError if two givers want different things there."""
    for path, thing in things.items():
        earlier, there = taken.setdefault(path, (giver, thing))
        if there != thing and earlier != giver:
            hint = "the administrator must change one of them, or a container must not ask for both"
            raise ConfigError(f"{earlier} and {giver} both want {path} in the container, for different things", hint)
    return not things or giver in [taken[path][0] for path in things]


def _things(operation: Operation) -> dict[str, object]:
    """What lies at which paths, as far as two drivers can give the same."""
    if isinstance(operation, (Mount, Service)):
        paths = operation.paths() if isinstance(operation, Mount) else (operation.target,)
        return dict.fromkeys(paths, operation.source)
    if isinstance(operation, Symlink):
        return {operation.path: operation.to}
    return {operation.path: (operation.major, operation.minor)} if isinstance(operation, Device) else {}


def check_driver(request: Request, inventory: DriverInventory) -> None:
    for misfit in [it for it in inventory.misfits if it.capability in request.capabilities]:
        if misfit.why:
            raise DriverError(misfit.why, "the administrator must make it root's alone, and save the inventory")
        found = f"is there as {misfit.found}" if misfit.found else "is missing"
        if misfit.found == inventory.driver_version:
            found = "of that version is cut off or no library"  # a full disk can leave such a file
        why = f"the kernel module is {inventory.driver_version}, but {misfit.name} {found}"
        raise DriverError(why, "the administrator must install all parts of one version")


def _devices(layout: Layout, nodes: Reasoned) -> list[Device]:
    if layout.dev_is_hosts:
        return []
    return [
        Device(
            *(node.path, "c", node.major, node.minor, "rw", node.mode, node.uid, node.gid),
            source=node.path if layout.user_namespace or not layout.makes_nodes else "",
            # Display servers need modeset, CUDA does not; on a host without one the node may not exist.
            required=node.family != "modeset",
            reason=reason,
        )
        for node, reason in nodes
    ]


def links(layout: Layout, nodes: Reasoned, found: tuple[DeviceLink, ...]) -> list[Symlink]:
    """By PCI address: programs find a GPU's node by them."""
    if layout.dev_is_hosts:
        return []
    paths = {node.path for node, _ in nodes}
    given = [link for link in found if link.node in paths]
    return [Symlink(link.path, link.to, False, f"name by PCI address of {link.node}") for link in given]


def _proc_driver(request: Request, selected: selection.Selection, inventory: DriverInventory) -> list[Tmpfs | Mount]:
    folders = {f"gpus/{gpu.proc}": f"GPU {gpu.nvml_index}: asked for as {selector}" for gpu, selector in selected.gpus}
    managed = [name for name, asked in zip(MIG_MANAGEMENT, (request.mig_config, request.mig_monitor)) if asked]
    files = {} if managed else _mig_files(selected)
    if managed:
        folders["capabilities"] = f"all MIG capabilities: {managed[0]}=all"
    texts = [(name, _masked(text) if name == "params" else text, 0o444) for name, text in inventory.proc_files]
    texts += [(path, "", 0o444) for path in files]
    reason = "hides the other GPUs; libraries make no nodes"
    found: list[Tmpfs | Mount] = [_tmpfs(DRIVER, tuple(folders) or ("gpus",), tuple(texts), reason)]
    for name, reason in {**folders, **files}.items():
        path = f"{DRIVER}/{name}"
        found.append(Mount(path, path, READ_ONLY_DATA, True, reason, name in folders))
    return found


def _mig_files(selected: selection.Selection) -> dict[str, str]:
    minors = {gpu.nvml_index: gpu.minor for gpu, _ in selected.gpus}
    files: dict[str, str] = {}
    for device, selector in selected.mig_devices:
        instance = f"capabilities/gpu{minors[device.gpu]}/mig/gi{device.gi}"
        reason = f"MIG device {device.gi}/{device.ci} of GPU {device.gpu}: asked for as {selector}"
        for path in (f"{instance}/access", f"{instance}/ci{device.ci}/access"):
            files.setdefault(path, reason)
    return files


def _masked(text: str) -> str:
    """The text of params, with ModifyDeviceFiles at 0: at 1 the driver's libraries would make nodes for all GPUs."""
    key = "ModifyDeviceFiles:"
    return "\n".join([f"{key} 0" if line.startswith(key) else line for line in text.split("\n")])


def _application_profile(request: Request, selected: selection.Selection) -> list[Tmpfs]:
    """A profile that lists the GPUs for EGL: without it, EGL tries the nodes of all GPUs of the host."""
    drawing = "graphics" in request.capabilities or "display" in request.capabilities
    mask = sum({1 << gpu.minor for gpu, _ in selected.gpus if gpu.minor < _PROFILE_MINORS})
    if not drawing or not mask:
        return []
    text = (
        '{"profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", '
        f'{mask:#x}]}}], "rules": [{{"pattern": [], "profile": "_container_"}}]}}\n'
    )
    path = "/etc/nvidia/nvidia-application-profiles-rc.d"
    reason = "EGL sees the requested GPUs only: graphics or display"
    # Not required: the image or a pod may have put something of its own at /etc/nvidia, read-only.
    return [_tmpfs(path, (), (("10-container.conf", text, 0o444),), reason, required=False)]


def brought_by(library: Library, request: Request) -> str:
    if library.bits == 32 and COMPAT32 not in request.capabilities:
        return ""
    # Of the driver's hundred libraries a request brings some twenty: no generator is made for each.
    for name in library.capabilities:
        if name in request.capabilities:
            return name
    return ""


def brought(layout: Layout, request: Request, inventory: DriverInventory) -> list[tuple[Library, str, str]]:
    return [
        (library, folder, capability)
        for library in inventory.libraries
        if (capability := brought_by(library, request)) and (folder := folder_of(layout, library, FOLDER))
    ]


def library_mounts(placed: list[tuple[Library, str, str]]) -> list[Mount]:
    mounts = []
    for library, folder, capability in placed:
        reason = f"library: {capability}" if library.bits == 64 else f"32-bit library: {COMPAT32}, {capability}"
        target = f"{folder}/{library.names[0]}"
        mounts.append(Mount(library.path, target, READ_ONLY, True, reason, names=library.names[1:]))
    return mounts


def _links_in_place(layout: Layout, own: str, placed: list[tuple[Library, str, str]]) -> list[Symlink | Cover]:
    """What leads to our folder from where libraries are looked for without the loader's cache."""
    found: list[Symlink | Cover] = []
    if not layout.loader:
        # Loaders such as Nix's read no cache and know no folder: LD_LIBRARY_PATH names this one there.
        reason = "an image without a libc in the usual place may read no ld.so.cache"
        found.append(Symlink(layout.library_folder, f"{own}/lib64", False, reason))
    names = []
    for library, folder, capability in placed:
        loaders = layout.library_folder if library.bits == 64 else layout.library_folder_32
        if library.subfolder:
            # Programs look for these in a subfolder of the loader's folder, and nowhere else.
            inner, reason = f"{loaders}/{library.subfolder}", f"library: {capability}"
            found += [Symlink(f"{inner}/{it}", f"{folder}/{it}", False, reason, covers=True) for it in library.names]
        elif library.bits == 64:
            names += [f"{folder}/{name}" for name in library.names]
    if layout.has_driver:
        # A driver in the image, or empty files where one was made of a container: LD_LIBRARY_PATH may name its folder.
        found.append(Cover(layout.library_folder, tuple(names), False, "in the place of a driver in the image"))
    return found


def file_operations(
    request: Request, inventory: DriverInventory, folder: str = "", xorg_folder: str = ""
) -> tuple[tuple[Mount | Symlink, ...], tuple[tuple[str, str], ...]]:
    """Also texts of files in `folder`; without one each is mounted at its fixed path.  xorg_folder: see `Layout`."""
    requested = (*request.capabilities, *request.features)
    mounts: list[Mount] = []
    links: list[Symlink] = []
    texts = []
    for file in (*inventory.binaries, *inventory.files, *inventory.firmware):
        word = next((name for name in file.capabilities if name in requested), "")
        if file.capabilities and not word:
            continue
        is_program = "/bin/" in file.target
        # The X server maps its modules to execute them.
        options = READ_ONLY if is_program or file.module else READ_ONLY_DATA
        of_word = f"{'program' if is_program else 'configuration'}: {word}"
        reason = of_word if word else "GPU system processor's firmware: every request"
        if not folder or file.folder or not word:
            mounts.append(Mount(file.path, file.target, options, False, reason, file.folder))
            continue
        # /usr/bin is bin there, /usr/share share, and /etc etc.
        name = f"xorg/{file.module}" if file.module else file.target[1:].removeprefix("usr/")
        if file.text:
            texts.append((name, file.text))
        else:
            mounts.append(Mount(file.path, f"{folder}/{name}", options, False, reason))
        paths = [file.target, *([f"{xorg_folder}/{file.module}"] if file.module and xorg_folder else [])]
        links += [Symlink(it, f"{folder}/{name}", False, reason, covers=True) for it in dict.fromkeys(paths)]
    return (*mounts, *links), tuple(texts)


def _services(request: Request, inventory: DriverInventory) -> tuple[list[Service], list[str]]:
    asked = [it for it in inventory.ipc_paths if it.capability in request.capabilities]
    notes = [f"the host's {it.source} is left out: {it.fault}" for it in asked if it.fault]
    named = [(it, f"service of the host: {it.capability}") for it in asked if not it.fault]
    return [Service(it.source, it.path, it.owner, False, reason, it.folder) for it, reason in named], notes


def cache_entries(placed: list[tuple[Library, str, str]]) -> tuple[Entry, ...]:
    """By all names but that of the versioned file, as in ldconfig's."""
    files = [(it, folder) for it, folder, _ in placed if not it.subfolder]
    named = [(it, folder, name) for it, folder in files for name in it.names if name == it.soname or name != it.file]
    return tuple([Entry(name.encode(), f"{folder}/{name}".encode(), it.flags) for it, folder, name in named])


def folder_of(layout: Layout, library: Library, driver_folder: str) -> str:
    if library.folder:
        return library.folder
    folder = layout.library_folder if library.bits == 64 else layout.library_folder_32
    if folder and (own := own_folder(layout, driver_folder)):
        folder = f"{own}/{'lib64' if library.bits == 64 else 'lib'}"
    return f"{folder}/{library.subfolder}" if folder and library.subfolder else folder
