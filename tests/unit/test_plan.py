# SPDX-License-Identifier: Apache-2.0
"""Golden plans: host x container -> plan, and every refusal.

The goldens in tests/data/plans are what `oci-gpu-hook plan` prints.  After a wanted change write
them again as CONTRIBUTING.md says, and review the difference like code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import operations
from oci_gpu_hook.asking import Spec
from oci_gpu_hook.cli import options, plantext
from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.driver.inventory import DriverFile, DriverInventory
from oci_gpu_hook.errors import ApplyError, ConfigError, DriverError
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.formats.scopeunit import ScopeUnit
from oci_gpu_hook.operations import Device, LdCache, Mount, OpenCgroup, Symlink, TellSystemd, Tmpfs
from oci_gpu_hook.planning import meanings, plan, provision
from oci_gpu_hook.planning.plan import Container, Plan
from oci_gpu_hook.planning.provision import FOLDER
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import CAPABILITIES
from tests.unit import hosts
from tests.unit.asking import by_environment
from tests.unit.containers import ALPINE, CONTAINER, DEBIAN, HOSTS_DEV, ROOTLESS, planned
from tests.vocabulary.host import LAYOUT, everything

GOLDENS = Path(__file__).parent.parent / "data" / "plans"

ON_V1 = CONTAINER._replace(device_cgroup=DeviceCgroup("v1", "/d/c1", "/d/c1", ""))
OF_A_USER = CONTAINER._replace(device_cgroup=DeviceCgroup("", "", "", "rootless"))
SCOPE = ScopeUnit("crio-c1.scope", (("/dev/char/1:3", "rwm"), ("char-pts", "rwm")))
IN_SCOPE = CONTAINER._replace(scope=SCOPE)


@pytest.fixture()
def host(tmp_path: Path) -> DriverInventory:
    return hosts.surveyed(hosts.host(tmp_path, gpus=8))


def made(inventory: DriverInventory, devices: str = "1,5", capabilities: str = "", **more: Any) -> Plan:
    return planned(by_environment(devices, capabilities), inventory, **more)


@pytest.mark.parametrize(
    ("name", "devices", "capabilities", "layout", "container"),
    [
        ("debian-two-of-eight", "1,5", "", DEBIAN, CONTAINER),
        ("alpine-utility", "0", "utility", ALPINE, ON_V1),
        ("rootless-all", "all", "all", ROOTLESS, OF_A_USER),
        ("none", "none", "compute", DEBIAN, CONTAINER),
        ("hosts-dev", "0", "utility", HOSTS_DEV, CONTAINER),
        ("systemd-scope", "0", "utility", DEBIAN, IN_SCOPE),
    ],
)
def test_plans_are_as_the_goldens_say(
    host: DriverInventory,
    pytestconfig: pytest.Config,
    name: str,
    devices: str,
    capabilities: str,
    layout: Layout,
    container: Container,
) -> None:
    compare(pytestconfig, name, made(host, devices, capabilities, layout=layout, container=container))


def compare(pytestconfig: pytest.Config, name: str, plan: Plan) -> None:
    """A plan with its golden, or the golden written anew."""
    text = "\n".join([*plantext.plan_text(plan), ""]).replace(hosts.LIBRARY_FOLDER, "usr/lib/x86_64-linux-gnu")
    golden = GOLDENS / f"{name}.txt"
    if pytestconfig.getoption("--update-goldens"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        # Over a driver of the image's own lies ours, as LD_LIBRARY_PATH may name its folder.
        ("places-debian", LAYOUT._replace(has_driver=True, xorg_folder="/usr/lib/xorg/modules")),
        ("places-beside-a-volume-at-usr-local", LAYOUT._replace(local_is_volume=True)),
        ("places-musl", ALPINE._replace(has_driver=True)),
    ],
)
def test_each_kind_of_file_goes_where_it_is_looked_for(pytestconfig: pytest.Config, name: str, layout: Layout) -> None:
    """libgbm looks in its distribution's folder alone, and libvdpau for libvdpau_nvidia.so by that name."""
    host = everything()
    names = ("libcuda.", "libvdpau_nvidia.", "libnvidia-allocator.", "nvidia.icd", "cufile.json", "nvidia_drv.so")
    files = [it for it in host.files if it.path.rpartition("/")[2].startswith(names)]
    host = host._replace(
        libraries=tuple([it for it in host.libraries if it.file.startswith(names) and it.bits == 64]),
        files=(*files, DriverFile("/run/udev", "/run/udev", ("gds",), folder=True)),
        binaries=host.binaries[:1],
    )
    request = by_environment("1", "utility,compute,video,graphics", NVIDIA_GDS="enabled")
    plan = planned(request, host, layout)
    compare(pytestconfig, name, plan)
    # What an image has at the place of a link gives way.
    assert all(it.covers for it in plan.operations if isinstance(it, Symlink) and "nvidia" in it.to)


def test_a_scope_without_rules_is_not_restricted_by_us(host: DriverInventory) -> None:
    """With a first entry in DeviceAllow=, systemd would deny all other devices."""
    *_, sent = made(host, container=IN_SCOPE).operations
    assert isinstance(sent, TellSystemd) and sent.before == SCOPE.allowed
    in_crun = IN_SCOPE._replace(scope=ScopeUnit(SCOPE.name, None, "/sys/fs/bpf/crun/crio-c1_scope"))
    plan = made(host, container=in_crun)
    opened = plan.operations[-1]
    assert isinstance(opened, OpenCgroup)
    assert opened.pinned == "/sys/fs/bpf/crun/crio-c1_scope"
    assert any("also in /sys/fs/bpf/crun/crio-c1_scope" in line for line in plantext.plan_text(plan))


def test_what_an_engine_has_done_by_a_cdi_spec_is_apart(host: DriverInventory) -> None:
    """The device cgroup and what systemd knows: all of it, or where a node is left to the hook nothing of it."""
    plan = made(host, container=IN_SCOPE)
    paths = tuple([it.path for it in plan.operations if isinstance(it, Device)])
    for listed, kinds in ((paths, {Device, OpenCgroup, TellSystemd}), (paths[1:], {Device}), ((), set())):
        found = meanings.leave_to_engine(plan, Spec(("compute",), ""), listed)
        assert {type(it) for it in found.done} == kinds
        assert {*found.operations} ^ {*found.done} == {*plan.operations}


def test_the_rules_of_config_json_are_what_a_hidden_program_is_made_from(host: DriverInventory) -> None:
    rules = (DeviceRule("c", 1, 3, "rw"),)
    (opened,) = [item for item in made(host, fallback=rules).operations if isinstance(item, OpenCgroup)]
    assert opened.fallback == rules
    assert not {*rules} & {*opened.rules}


def test_no_access_has_mknod_and_every_mount_forbids_setuid_and_devices(host: DriverInventory) -> None:
    for operation in made(host, "all", "all").operations:
        if isinstance(operation, Device):
            assert operation.access == "rw"
        if isinstance(operation, OpenCgroup):
            assert {rule.access for rule in operation.rules} == {"rw"}
        if isinstance(operation, (Mount, Tmpfs)):
            assert {"nosuid", "nodev"} <= set(operation.options)


def test_a_library_that_is_cut_off_stops_only_what_needs_it(tmp_path: Path) -> None:
    """As one of another version does, and a module that is not loaded: see tests/integration/test_faults.py."""
    root = hosts.host(tmp_path)
    hosts.plant(tmp_path, f"{hosts.LIBRARY_FOLDER}/libcuda.so.{hosts.VERSION}", "")
    broken = hosts.surveyed(root)
    with pytest.raises(DriverError, match=r"is 580.65.06, but libcuda of that version is cut off or no library"):
        made(broken, "0", "compute")
    made(broken, "0", "utility")


def test_the_administrator_decides_about_the_device_cgroup(host: DriverInventory) -> None:
    off = made(host, container=IN_SCOPE, settings=Settings(device_cgroup="off"))
    assert not [operation for operation in off.operations if isinstance(operation, (OpenCgroup, TellSystemd))]
    assert off.notes == ("the device cgroup is left alone: device-cgroup = off",)
    assert made(host, container=OF_A_USER).notes == ("the device cgroup is left alone: rootless",)
    with pytest.raises(ConfigError, match="rootless"):
        made(host, container=OF_A_USER, settings=Settings(device_cgroup="on"))


def test_the_document_has_the_documented_form(host: DriverInventory) -> None:
    document = options.as_json(plantext.plan_document(made(host)))
    request = document["request"]
    assert (request["source"], request["devices"]) == ("env", ["1", "5"])
    assert request["capabilities"] == ["utility", "compute"]
    others = "requirements imex_channels features mig_config mig_monitor memory_limit memory_request vendors"
    assert request.keys() == {"source", "devices", "capabilities", *others.split()}
    operations = document["operations"]
    assert isinstance(operations, list)
    needed = {
        "mount": {"source", "target", "options", "required"},
        "device": {"path", "type", "major", "minor", "access", "required"},
        "service": {"source", "target", "options", "required"},
        "tmpfs": {"path", "options", "files", "required"},
        "ldcache": {"entries", "path", "folders", "required"},
        "symlink": {"path", "to", "covers", "required"},
        "cgroup": {"rules", "version", "required"},
    }
    for operation in operations:
        assert needed[operation["op"]] <= set(operation)
    assert {operation["op"] for operation in operations} == set(needed)


# --- the kinds of operations: what is shown of each; that each implements the protocol, mypy shows by the examples

RULE = DeviceRule("c", 195, 0, "rw")
# One of each kind.
EXAMPLES: tuple[operations.Operation, ...] = (
    Mount("/h/a", "/c/a.1", ("ro",), True, "why", names=("a",)),
    operations.Service("/h/socket", "/c/socket", 0, False, "why"),
    Device("/dev/nvidia0", "c", 195, 0, "rw", 0o666, 0, 0, "", True, "why"),
    operations.Cover("/usr/lib64", ("/usr/local/nvidia/lib64/liba.so.1",), False, "why"),
    Symlink("/dev/dri/by-path/x", "../card0", False, "why"),
    Tmpfs("/proc/driver/nvidia", ("ro",), ("gpus",), (("params", "x", 0o444),), True, "why"),
    operations.LdCache("/etc/cache", "/etc/x", ("/usr/local/nvidia",), (Entry(b"a", b"/a", 3),), True, "why"),
    operations.Relabel("/dev/shm", "a:b:c:s0", "a:b:d:s0", True, "why"),
    operations.LimitMemory("/sys/fs/cgroup/c", "/sys/fs/cgroup/c", (("nvidia/x/vidmem", 1 << 20),), True, "why"),
    OpenCgroup("v2", "/sys/fs/cgroup/c", "/sys/fs/cgroup/c", (RULE,), (RULE,), True, "why"),
    TellSystemd("c.scope", (RULE,), (("char-pts", "rwm"),), False, "why"),
)


def test_there_is_one_example_of_each_kind() -> None:
    assert [type(example) for example in EXAMPLES] == list(plantext.KINDS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_what_is_shown_of_an_operation_says_why_and_can_be_written(example: operations.Operation) -> None:
    sentence = str(ApplyError(f"cannot {example.describe()}: no"))
    assert sentence.isprintable() and example.describe()[0].islower() and not sentence.endswith(".")
    title, rows = plantext.rows(example)
    assert title and any(cells[-1] == ("why" if example.required else "why (optional)") for cells in rows)
    assert all(isinstance(cell, str) for cells in rows for cell in cells)
    document = options.as_json(plantext.document(example))
    assert json.loads(json.dumps(document)) == document
    assert (document["required"], document["reason"]) == (example.required, "why")


# --- where the driver's files go that the goldens have not, and what is said of all that is left out

COMPUTE = Request("env", ("1",), ("utility", "compute"))
GRAPHICS = Request("env", ("1",), ("graphics",))
LIB64 = f"{FOLDER}/lib64"


def test_a_file_without_its_folders_names_is_made_in_the_folder() -> None:
    paths = ("/etc/vulkan/icd.d/nvidia_icd.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    vulkan, egl = [DriverFile(f"/host{path}", path, ("graphics",), text=f"of {path}") for path in paths]
    inventory = everything()._replace(files=(vulkan, egl._replace(text="")))
    operations = planned(GRAPHICS, inventory, LAYOUT).operations
    made = operations[0]
    assert isinstance(made, Tmpfs)
    assert made.folders == ("etc/vulkan/icd.d",)
    assert made.files == (("etc/vulkan/icd.d/nvidia_icd.json", vulkan.text, 0o444),)
    led = {it.path: it.to for it in operations if isinstance(it, Symlink) and it.covers}
    names = ("etc/vulkan/icd.d/nvidia_icd.json", "share/glvnd/egl_vendor.d/10_nvidia.json")
    assert [led[path] for path in paths] == [f"{FOLDER}/{name}" for name in names]
    sources = {it.source: it.target for it in operations if isinstance(it, Mount)}
    assert vulkan.path not in sources and sources[egl.path] == f"{FOLDER}/{names[1]}"
    # Without a folder each has its own content.
    sources = {it.source: it.target for it in planned(GRAPHICS, inventory, ALPINE).operations if isinstance(it, Mount)}
    assert (sources[vulkan.path], sources[egl.path]) == paths


def left_out(request: Request, layout: Layout = LAYOUT, inventory: DriverInventory | None = None) -> tuple[str, ...]:
    """The sentences about all that a container does not get."""
    inventory = inventory or everything()
    made = planned(request, inventory, layout)
    return plantext.missing(made._replace(provision=made.provision._replace(inventory=inventory)))


def test_what_is_left_out_is_named_with_its_reason() -> None:
    assert left_out(Request("env", ("all",), CAPABILITIES, features=("gds", "nvswitch"))) == ()
    nothing = plan.Plan(CONTAINER, LAYOUT, None, (), (), provision=plan.Provision(inventory=everything()))
    assert plantext.missing(nothing) == ()
    sentences = left_out(COMPUTE)
    assert sentences[:2] == ("GPU 0, NVIDIA H100 80GB HBM3: not asked for", "MIG device 1/0 of GPU 0: not asked for")
    lacking = ("compat32 and compute or video", "graphics or display", "ngx", "video")
    assert [line.partition(": ")[2] for line in sentences[2:]] == [
        "NVIDIA_GDS is not 'enabled' or not accepted",
        *[f"{it}, not in NVIDIA_DRIVER_CAPABILITIES or not allowed" for it in lacking],
    ]
    # A container with the host's /dev has all its GPUs.
    sentences = left_out(COMPUTE, LAYOUT._replace(dev_is_hosts=True))
    assert not [line for line in sentences if line.startswith(("GPU", "MIG"))]


@pytest.mark.parametrize(
    ("capabilities", "folder", "why"),
    [
        (("utility", "compat32"), "/usr/lib", "compute, not in NVIDIA_DRIVER_CAPABILITIES or not allowed"),
        (("compute", "compat32"), "", "this container's loader runs no 32-bit programs"),
        (("compute", "compat32"), "/usr/lib", ""),
    ],
)  # fmt: skip
def test_a_32_bit_library_is_named_with_what_it_lacks(capabilities: tuple[str, ...], folder: str, why: str) -> None:
    host = everything()
    cuda = next(lib for lib in host.libraries if lib.file.startswith("libcuda.so"))
    small = cuda._replace(path="/lib32/libcuda32.so", bits=32, capabilities=("compute",))
    host = host._replace(libraries=(*host.libraries, small))
    sentences = left_out(Request("env", ("none",), capabilities), LAYOUT._replace(library_folder_32=folder), host)
    assert any("libcuda32.so" in line for line in sentences if line.endswith(f": {why}")) is bool(why)


def test_no_folder_for_a_word_size_is_none_for_its_subfolders() -> None:
    library = everything().libraries[0]._replace(bits=32, folder="", subfolder="gbm")
    for layout, there in ((LAYOUT, f"{FOLDER}/lib/gbm"), (ALPINE, "/usr/lib32/gbm")):
        assert provision.folder_of(layout._replace(library_folder_32=""), library, FOLDER) == ""
        assert provision.folder_of(layout._replace(library_folder_32="/usr/lib32"), library, FOLDER) == there


def test_each_word_size_has_its_own_folder_where_the_loaders_two_may_be_one() -> None:
    """/usr/lib64 of an image may be a link to lib: there a library of one word size would hide the other's."""
    cuda = next(library for library in everything().libraries if library.soname == "libcuda.so.1")
    small = cuda._replace(path="/lib32/libcuda", bits=32, flags=3)
    layout = LAYOUT._replace(library_folder="/usr/lib64", library_folder_32="/usr/lib")
    request = Request("env", ("none",), ("compute", "compat32"))
    operations = planned(request, everything()._replace(libraries=(cuda, small)), layout).operations
    mounts = {it.source: it.target.rpartition("/")[0] for it in operations if isinstance(it, Mount)}
    assert (mounts[cuda.path], mounts[small.path]) == (LIB64, f"{FOLDER}/lib")
    (cache,) = [it for it in operations if isinstance(it, LdCache)]
    paths = {(entry.flags, entry.path) for entry in cache.libraries if entry.soname == b"libcuda.so.1"}
    assert paths == {(it.flags, f"{mounts[it.path]}/libcuda.so.1".encode()) for it in (cuda, small)}
