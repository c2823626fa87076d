# SPDX-License-Identifier: Apache-2.0
"""DriverInventory: what this host's driver has for containers, as `survey` has found and saved it.

A start loads the saved one while its stamp is current (`proc.stamp`).  Must not open a GPU, ask NVML or write.
"""

from __future__ import annotations

from oci_gpu_hook.driver import nodes, proc
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

FILE = "inventory"
SAVED = f"{statefile.FOLDER}/{FILE}"

# The number is made of the sources that say what is saved (tests/unit/test_headings.py): what another version has saved
# is not read.
HEADING = b"oci-gpu-hook inventory d591c56e\n"

# In `DriverInventory.unknown`: what NVML said was true when it was asked, and only NVML knows whether it still is.
MAY_BE_MADE_AGAIN = "whether MIG devices were created again since NVML named them: run 'oci-gpu-hook inventory refresh'"

# Real ones have one KiB.
_LARGEST_MANIFEST = 1 << 16


class Library(NamedTuple):
    """path: of the versioned file on the host; names: of the file in a container, its own first; flags: of its entry in
    ld.so.cache; subfolder: of the library folder; folder: in a container, "" for the usual one.
    """

    path: str
    file: str
    soname: str
    names: tuple[str, ...]
    flags: int
    bits: int
    subfolder: str
    capabilities: tuple[str, ...]
    folder: str = ""


class DriverFile(NamedTuple):
    """A file, or a folder with its content.  capabilities: () for every request; text: what a container gets in its
    place, "" for its own content: see `without_folders`; module: of the X server, its path below that server's folder.
    """

    path: str
    target: str
    capabilities: tuple[str, ...]
    folder: bool = False
    text: str = ""
    module: str = ""


class Misfit(NamedTuple):
    """found: its version, the driver's own if the file is damaged or left out, "" for none; why: it is left out."""

    name: str
    capability: str
    found: str
    why: str = ""


class MigDevice(NamedTuple):
    """gpu: the parent's nvml_index; number: NVML's index on that GPU; gi, ci: GPU and compute instance; the minors are
    of /dev/nvidia-caps/nvidia-capN.  Without NVML, and in doubt (`read_saved`), number and uuid are None and profile
    is "".
    """

    gpu: int
    number: int | None
    uuid: str | None
    profile: str
    gi: int
    ci: int
    gi_minor: int
    ci_minor: int


class DriverInventory(NamedTuple):
    """The survey leaves the last four fields empty, see `nodes`.  unknown: a sentence for each fact that could not be
    found out; unlisted: the PCI addresses of GPUs that the kernel module has and NVML does not list; elsewhere: of
    those that this host, a container, was not given: none of `gpus`.
    """

    driver_version: str
    cuda_version: str
    gpus: tuple[Gpu, ...]
    mig_devices: tuple[MigDevice, ...]
    mig_config_minor: int | None
    mig_monitor_minor: int | None
    libraries: tuple[Library, ...]
    misfits: tuple[Misfit, ...]
    binaries: tuple[DriverFile, ...]
    files: tuple[DriverFile, ...]
    firmware: tuple[DriverFile, ...]
    proc_files: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    unlisted: tuple[str, ...] = ()
    devices: tuple[nodes.DeviceNode, ...] = ()
    links: tuple[nodes.DeviceLink, ...] = ()
    ipc_paths: tuple[nodes.IpcPath, ...] = ()
    elsewhere: tuple[str, ...] = ()


_INNER = {
    **{"gpus": Gpu, "mig_devices": MigDevice, "misfits": Misfit, "libraries": Library},
    **dict.fromkeys(("binaries", "files", "firmware"), DriverFile),
}


def read_saved(host: HostRoot, now: proc.Stamp) -> DriverInventory | None:
    """None if there is none that is whole, of this format, and stamped as `now`.  In doubt whose NVML's names are now
    (`proc.stamp`) the MIG devices have none, and that is first of what is unknown.
    """
    try:
        (same, shown), rows = statefile.load(host, FILE, HEADING)
        if same != now[0]:
            return None
        found = statefile.nested(DriverInventory, rows, _INNER)
        # Of another mount's times nothing follows.
        is_in_doubt = any([then != it for then, it in zip(shown, now[1]) if then[0] == it[0]])
    except (ValueError, TypeError):
        return None
    # A GPU gets its UUID at its first use, which does not change the stamp.
    unused = [f"{proc.GPUS}/{gpu.proc}/information" for gpu in found.gpus if not gpu.uuid]
    if any([proc.uuid_in(proc.information(host, path)) for path in unused]):
        return None
    if is_in_doubt and any([device.uuid for device in found.mig_devices]):
        return found._replace(
            mig_devices=tuple([it._replace(number=None, uuid=None, profile="") for it in found.mig_devices]),
            unknown=(MAY_BE_MADE_AGAIN, *found.unknown),
        )
    return found


def of_this_host(host: HostRoot, found: DriverInventory) -> DriverInventory:
    """The inventory without the GPUs that are not this host's (`nodes.gpus_here`): they have no numbers."""
    here = nodes.gpus_here(host, found.gpus)
    if here == found.gpus:
        return found
    numbers = {gpu.nvml_index: number for number, gpu in enumerate(here)}
    return found._replace(
        gpus=tuple([gpu._replace(nvml_index=numbers[gpu.nvml_index]) for gpu in here]),
        mig_devices=tuple([it._replace(gpu=numbers[it.gpu]) for it in found.mig_devices if it.gpu in numbers]),
        elsewhere=tuple([gpu.bus_id for gpu in found.gpus if gpu not in here]),
    )


def with_nodes(
    host: HostRoot,
    inventory: DriverInventory,
    families: tuple[str, ...] = (),
    channels: tuple[str, ...] = (),
    driver_root: str = "/",
    gpus: tuple[Gpu, ...] | None = None,
    mps: tuple[str, int] = nodes.MPS,
) -> DriverInventory:
    """As they are now; gpus: those whose nodes are needed, None for all."""
    gpus = inventory.gpus if gpus is None else gpus
    devices = nodes.devices(host, gpus)
    if families:
        minors = [inventory.mig_config_minor, inventory.mig_monitor_minor]
        minors += [minor for it in inventory.mig_devices for minor in (it.gi_minor, it.ci_minor)]
        known = tuple([minor for minor in dict.fromkeys(minors) if minor is not None])
        devices += nodes.of_families(host, families, gpus, known, channels)
    return inventory._replace(
        devices=devices, links=nodes.links(devices, gpus), ipc_paths=nodes.ipc_paths(host, driver_root, mps)
    )


def with_texts(host: HostRoot, inventory: DriverInventory, capabilities: tuple[str, ...]) -> DriverInventory:
    """The inventory with the texts of these capabilities' files as they are now: the administrator may change them."""
    wanted = {*capabilities}
    files = [
        it._replace(text=without_folders(host, it.path)) if it.text and not wanted.isdisjoint(it.capabilities) else it
        for it in inventory.files
    ]
    return inventory._replace(files=tuple(files))


def without_folders(host: HostRoot, path: str) -> str:
    """Empty if no library has a folder, which is the host's.  Loaders of Vulkan, EGL and OpenCL take bare names."""
    # In JSON each string stands between quotes; an .icd file is one name.
    text = host.text(path)
    if len(text) > _LARGEST_MANIFEST:
        return ""
    names = [(word, word.rpartition("/")[2]) for word in text.split('"')]
    bare = '"'.join([name if name.startswith("lib") and ".so" in name else word for word, name in names])
    return bare if bare != text else ""
