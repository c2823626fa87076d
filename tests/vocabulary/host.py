# SPDX-License-Identifier: Apache-2.0
"""A row of the vocabulary, a host that has everything, and the questions that rows ask of it."""

from __future__ import annotations

import platform
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Callable, NamedTuple

from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.driver import catalogue, inventory, nodes, survey
from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import nvml
from oci_gpu_hook.operations import Device, LdCache, Mount, Service, Symlink, Tmpfs
from oci_gpu_hook.planning import provision
from oci_gpu_hook.planning.plan import Plan
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from tests.unit import containers, hosts
from tests.unit.asking import by_environment
from tests.unit.containers import DEBIAN

SERVED, REFUSED = "served", "refused"


class Row(NamedTuple):
    """A row of the project's reference to NVIDIA's stack, by its section and name there.

    holds: True if the answer is as the row says.
    answer: SERVED; or REFUSED, where a sentence says so, or nothing can be asked for, and a comment says why.
    """

    section: str
    name: str
    holds: Callable[[], bool]
    answer: str = SERVED


FOLDER = f"/{hosts.LIBRARY_FOLDER}"
UUID = hosts.uuid(1)
# What must not come: libraries of another driver, and those that no row of the catalogue names.
OTHER_VERSION = "535.54.03"
# A 32-bit library.
TWIN = f"/usr/lib/i386-linux-gnu/libcuda.so.{hosts.VERSION}"
# Where a container has the driver's libraries, of 64 and of 32 bits.
GIVEN, GIVEN_32 = f"{provision.FOLDER}/lib64", f"{provision.FOLDER}/lib"
MIG_UUID = "MIG-22222222-3333-4444-5555-666666666666"
MIG = {"number": 0, "uuid": MIG_UUID, "profile": "3g.40gb"}
LAYOUT = DEBIAN._replace(library_folder=FOLDER)
FACTS = nvml.Facts(
    hosts.VERSION,
    "13.0",
    (
        nvml.GpuFacts(UUID, "00000000:07:00.0", "9.0", "Tesla", [(1, 0, MIG)]),
        nvml.GpuFacts(hosts.uuid(0), "00000000:08:00.0", "9.0", "Tesla", ()),
    ),
)
DEFAULTS = Settings()


@lru_cache(maxsize=1)
def everything() -> inventory.DriverInventory:
    """The inventory of a host with two GPUs, the first in MIG mode, and every file of the catalogue."""
    with tempfile.TemporaryDirectory() as folder:
        root = plant(Path(folder))
        found = nvml.with_facts(survey.survey(root), FACTS)
        found = inventory.with_nodes(root, found, nodes.FAMILIES, ("3", "7"))
    return found._replace(devices=(*found.devices, *_as_found()))


def plant(tree: Path) -> HostRoot:
    root = hosts.host(tree)
    majors = "195 nvidia\n505 nvidia-uvm\n506 nvidia-caps\n507 nvidia-caps-imex-channels\n"
    hosts.plant(tree, "proc/devices", f"Character devices:\n{majors}\nBlock devices:\n")
    instance = "gpu1/mig/gi1"
    capabilities = {"mig/config": 1, "mig/monitor": 2, f"{instance}/access": 30, f"{instance}/ci0/access": 31}
    for path, minor in capabilities.items():
        hosts.plant(tree, f"proc/driver/nvidia/capabilities/{path}", f"DeviceFileMinor: {minor}\n")
    for name, _ in catalogue.LIBRARIES:
        folder = f"{FOLDER}/{catalogue.SUBFOLDERS.get(name, '.')}"
        hosts.plant(tree, f"{folder}/{name}.so.{hosts.VERSION}", hosts.elf(f"{name}.so.1"))
    for name, _ in catalogue.OWN_VERSION:
        version = "1.1.2.0" if name in catalogue.NUMBERS else "1.1.2"
        hosts.plant(tree, f"{FOLDER}/{name}.so.{version}", hosts.elf(f"{name}.so.1"))
    for name, _ in catalogue.BINARIES:
        hosts.plant(tree, f"usr/bin/{name}", hosts.elf(""))
    for name, _ in catalogue.SHARED_CONFIGURATION:
        hosts.plant(tree, f"usr/share/{name}", "{}")
    for name, _ in catalogue.ETC_CONFIGURATION:
        hosts.plant(tree, f"etc/{name.replace('{machine}', platform.machine())}", "{}")
    hosts.plant(tree, f"{FOLDER}/libnvidia-encode.so.{OTHER_VERSION}", hosts.elf("x"))
    hosts.plant(tree, f"{FOLDER}/libnvidia-api.so.{hosts.VERSION}", hosts.elf("libnvidia-api.so.1"))
    hosts.plant(tree, TWIN, hosts.elf("libcuda.so.1", hosts.MACHINES["i386"]))
    hosts.plant(tree, "etc/cufile.json", "{}")
    hosts.plant(tree, f"{FOLDER}/xorg/modules/drivers/nvidia_drv.so", "")
    hosts.plant(tree, "var/run/nvidia-fabricmanager/socket", "")
    (tree / "tmp/nvidia-mps").mkdir(parents=True)
    for bus, name in ((7, "card2"), (7, "renderD129"), (8, "card1"), (8, "renderD128")):
        hosts.plant(tree, f"sys/bus/pci/devices/0000:{bus:02x}:00.0/drm/{name}/dev", "")
    return root


def _as_found() -> tuple[nodes.DeviceNode, ...]:
    """Nodes that only root could plant."""
    paths = (
        ("nvswitch", "nvidia-nvswitchctl", 508, 255),
        ("nvswitch", "nvidia-nvswitch0", 508, 0),
        ("gds", "nvidia-fs0", 509, 0),
        ("gdrcopy", "gdrdrv", 510, 0),
        ("mofed", "infiniband/uverbs0", 231, 192),
        ("mofed", "infiniband/rdma_cm", 10, 1000),
    )
    return tuple([nodes.DeviceNode(f"/dev/{it[1]}", *it[2:], 0o666, 0, 0, True, it[0]) for it in paths])


def ask(environment: dict[str, str] | None = None, *, config: Settings = DEFAULTS, **inputs: object) -> Request | None:
    """The request that a container makes."""
    cdi = sources.cdi_names(inputs.pop("annotations", {}))  # type: ignore[arg-type]
    given = sources.Inputs(environment or {}, cdi=cdi, **inputs)  # type: ignore[arg-type]
    return parse_request(given, config)[0]


def devices(value: str) -> tuple[str, ...]:
    """What NVIDIA_VISIBLE_DEVICES=value asks for; none where it asks for nothing."""
    asked = ask({"NVIDIA_VISIBLE_DEVICES": value})
    return asked.devices if asked else ()


def refused(environment: dict[str, str], words: str, **inputs: object) -> bool:
    """Whether the request is refused with a sentence that has `words`."""
    try:
        ask(environment, **inputs)  # type: ignore[arg-type]
    except RequestError as err:
        return words in str(err)
    return False


def noted(environment: dict[str, str], words: str, config: Settings = DEFAULTS) -> bool:
    """Whether something is left out with a sentence that has `words`."""
    _, notes = parse_request(sources.Inputs(environment), config)
    return any(words in note for note in notes)


def planned(visible: str = "1", capabilities: str = "", layout: Layout = LAYOUT, **more: str) -> Plan:
    """The plan for a container on the host that has everything; `more` are further variables."""
    return containers.planned(by_environment(visible, capabilities, **more), everything(), layout)


def targets(visible: str = "1", capabilities: str = "", **more: str) -> set[str]:
    """Everything that the plan brings into the container, by its path there."""
    found: set[str] = set()
    for operation in planned(visible, capabilities, LAYOUT, **more).operations:
        if isinstance(operation, Mount):
            found.update(operation.paths())
        elif isinstance(operation, (Service, Device, Symlink, Tmpfs, LdCache)):
            found.add(operation.target if isinstance(operation, Service) else operation.path)
    return found


def brings(capability: str, names: str) -> bool:
    """Whether every library of `names` comes with the capability alone, and none with utility alone."""
    folder, without = [{path.rpartition("/")[2] for path in targets("1", it)} for it in (capability, "utility")]
    files = {f"{name}.so.{hosts.VERSION}" for name in names.split()}
    return files <= folder and (capability == "utility" or not files & without)
