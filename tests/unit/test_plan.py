# SPDX-License-Identifier: Apache-2.0
"""Golden plans: host x container -> plan, and every refusal.

The goldens in tests/data/plans are what `oci-gpu-hook plan` prints.  After a wanted change run
``pytest --update-goldens`` and review the difference like code.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from oci_gpu_hook import cdi, ldmerge, plan, provision, render, request, selection, sources
from oci_gpu_hook.config import Config
from oci_gpu_hook.container.cgroup import DeviceCgroup
from oci_gpu_hook.errors import ConfigError, DriverError, RequestError
from oci_gpu_hook.host import inventory
from oci_gpu_hook.oci import DeviceRule
from oci_gpu_hook.operations import (
    AllowDevices,
    Device,
    DeviceAllow,
    Labels,
    LdCache,
    Mount,
    Tmpfs,
    mount_paths,
)
from oci_gpu_hook.rootfs import Container
from oci_gpu_hook.systemd import ScopeUnit
from tests.unit import hosts

NO_LABELS = Labels("", (), ())
GOLDENS = Path(__file__).parent.parent / "data" / "plans"

DEBIAN = Container(
    id="c1",
    bundle="/b",
    rootfs="/b/rootfs",
    library_folder="/usr/lib/x86_64-linux-gnu",
    library_folder_32="/usr/lib/i386-linux-gnu",
    compat_names=(),
    loader="glibc",
    user_namespace=False,
    dev_is_hosts=False,
    device_cgroup=DeviceCgroup("v2", "/sys/fs/cgroup/c1", "/sys/fs/cgroup/c1", ""),
)
ALPINE = DEBIAN._replace(
    library_folder="/usr/lib",
    library_folder_32="",
    loader="musl",
    device_cgroup=DeviceCgroup("v1", "/d/c1", "/d/c1", ""),
)
SCOPE = ScopeUnit("crio-c1.scope", (("/dev/char/1:3", "rwm"), ("char-pts", "rwm")))
ROOTLESS = DEBIAN._replace(user_namespace=True, device_cgroup=DeviceCgroup("", "", "", "rootless"))


@pytest.fixture()
def host(tmp_path: Path) -> inventory.DriverInventory:
    return hosts.surveyed(hosts.host(tmp_path, gpus=8))


def asked(devices: str, capabilities: str = "") -> request.Request:
    environment = {"NVIDIA_VISIBLE_DEVICES": devices, "NVIDIA_DRIVER_CAPABILITIES": capabilities}
    found, _ = request.parse(sources.Inputs(environment), Config())
    assert found is not None
    return found


def made(
    host: inventory.DriverInventory,
    devices: str = "1,5",
    capabilities: str = "",
    container: Container = DEBIAN,
    config: Config = Config(),  # noqa: B008  a record cannot be changed
) -> plan.Plan:
    wanted = asked(devices, capabilities)
    chosen = selection.select(wanted, host)
    given = provision.make(container, wanted, chosen, host)
    return plan.make(container, wanted, given, config, NO_LABELS)


@pytest.mark.parametrize(
    ("name", "devices", "capabilities", "container"),
    [
        ("debian-two-of-eight", "1,5", "", DEBIAN),
        ("alpine-utility", "0", "utility", ALPINE),
        ("rootless-all", "all", "all", ROOTLESS),
        ("none", "none", "compute", DEBIAN),
        ("hosts-dev", "0", "utility", DEBIAN._replace(dev_is_hosts=True)),
        ("systemd-scope", "0", "utility", DEBIAN._replace(scope=SCOPE)),
    ],
)
def test_plans_are_as_the_goldens_say(
    host: inventory.DriverInventory,
    pytestconfig: pytest.Config,
    name: str,
    devices: str,
    capabilities: str,
    container: Container,
) -> None:
    text = render.plan_text(made(host, devices, capabilities, container)) + "\n"
    text = text.replace(hosts.LIBRARY_FOLDER, "usr/lib/x86_64-linux-gnu")
    golden = GOLDENS / f"{name}.txt"
    if pytestconfig.getoption("--update-goldens"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_systemd_is_told_of_what_is_opened_and_after_it(host: inventory.DriverInventory) -> None:
    container = DEBIAN._replace(scope=SCOPE)
    *_, opened, told = made(host, container=container).operations
    assert isinstance(opened, AllowDevices)
    assert isinstance(told, DeviceAllow)
    assert told[:4] == (SCOPE.name, opened.rules, SCOPE.allowed, False)
    off = made(host, container=container, config=Config(device_cgroup="off"))
    assert not [item for item in off.operations if isinstance(item, DeviceAllow)]


def test_systemd_is_told_by_a_cdi_spec_through_the_engine(host: inventory.DriverInventory) -> None:
    told = made(host, container=DEBIAN._replace(scope=SCOPE)).operations[-1]
    assert isinstance(told, DeviceAllow)
    assert cdi.edit_can_say(told)


def test_exactly_the_requested_devices_are_there(host: inventory.DriverInventory) -> None:
    # NVML's indices 1 and 5 are minors 6 and 2 on this host.
    operations = made(host).operations
    nodes = [operation.path for operation in operations if isinstance(operation, Device)]
    assert nodes == [
        "/dev/nvidiactl",
        "/dev/nvidia6",
        "/dev/nvidia2",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    (cgroup,) = [operation for operation in operations if isinstance(operation, AllowDevices)]
    assert cgroup.rules == (
        DeviceRule("c", 195, 255, "rw"),
        DeviceRule("c", 195, 6, "rw"),
        DeviceRule("c", 195, 2, "rw"),
        DeviceRule("c", 505, 0, "rw"),
        DeviceRule("c", 505, 1, "rw"),
    )
    folders = [
        operation.target
        for operation in operations
        if isinstance(operation, Mount) and "/gpus/" in operation.target
    ]
    assert folders == [
        "/proc/driver/nvidia/gpus/0000:08:00.0",
        "/proc/driver/nvidia/gpus/0000:0c:00.0",
    ]


def test_utility_alone_brings_no_compute(host: inventory.DriverInventory) -> None:
    operations = made(host, "all", "utility").operations
    text = repr(operations)
    assert "libnvidia-ml.so.1" in text
    assert "libcuda" not in text and "uvm" not in text and "mps" not in text


def test_no_access_ever_has_mknod(host: inventory.DriverInventory) -> None:
    for operation in made(host, "all", "all").operations:
        if isinstance(operation, Device):
            assert operation.access == "rw"
        if isinstance(operation, AllowDevices):
            assert {rule.access for rule in operation.rules} == {"rw"}


def test_every_mount_forbids_setuid_and_devices(host: inventory.DriverInventory) -> None:
    for operation in made(host, "all", "all").operations:
        if isinstance(operation, (Mount, Tmpfs)):
            assert {"nosuid", "nodev"} <= set(operation.options)


def test_libraries_are_read_only_and_under_all_their_names(host: inventory.DriverInventory) -> None:
    mounts = [operation for operation in made(host).operations if isinstance(operation, Mount)]
    names = {path for mount in mounts if "ro" in mount.options for path in mount_paths(mount)}
    folder = "/usr/lib/x86_64-linux-gnu"
    assert {
        f"{folder}/libcuda.so",
        f"{folder}/libcuda.so.1",
        f"{folder}/libcuda.so.{hosts.VERSION}",
    } <= names


def test_the_cache_lists_what_is_mounted(host: inventory.DriverInventory) -> None:
    operations = made(host).operations
    mounts = [operation for operation in operations if isinstance(operation, Mount)]
    targets = {path for mount in mounts for path in mount_paths(mount)}
    (cache,) = [operation for operation in operations if isinstance(operation, LdCache)]
    assert {entry.path.decode() for entry in ldmerge.entries_of(cache.additions)} <= targets
    assert b"libcuda.so.1" in {entry.soname for entry in ldmerge.entries_of(cache.additions)}


def test_params_forbid_making_nodes_and_keep_the_rest(host: inventory.DriverInventory) -> None:
    (tmpfs,) = [operation for operation in made(host).operations if isinstance(operation, Tmpfs)]
    params = {file.name: file.content for file in tmpfs.files}["params"]
    assert params == hosts.PARAMS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")


@pytest.mark.parametrize("devices", ["8", "0,8", hosts.uuid(99), "0000:70:00.0"])
def test_an_unknown_device_is_refused(host: inventory.DriverInventory, devices: str) -> None:
    with pytest.raises(RequestError, match=r"unknown device .* this host has indices 0 to 7"):
        made(host, devices)


@pytest.mark.parametrize("selector", ["2", hosts.uuid(5), "0000:09:00.0", "9:9:0.0"])
def test_index_uuid_and_address_find_the_same_gpu(
    host: inventory.DriverInventory, selector: str
) -> None:
    if selector == "9:9:0.0":
        with pytest.raises(RequestError):
            selection.select(asked(selector), host)
        return
    ((gpu, by),) = selection.select(asked(selector), host).gpus
    assert (gpu.minor, by) == (5, asked(selector).devices[0])


def test_one_gpu_asked_for_twice_is_there_once(host: inventory.DriverInventory) -> None:
    assert len(selection.select(asked(f"2,{hosts.uuid(5)}"), host).gpus) == 1


def test_a_half_installed_driver_stops_only_what_needs_it(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    folder = tmp_path / hosts.LIBRARY_FOLDER
    (folder / f"libcuda.so.{hosts.VERSION}").rename(folder / "libcuda.so.535.54.03")
    broken = hosts.surveyed(root)
    with pytest.raises(
        DriverError, match=r"the kernel module is 580.65.06, but libcuda is there as 535.54.03"
    ):
        made(broken, "0", "compute")
    made(broken, "0", "utility")


def test_a_library_that_is_cut_off_is_not_said_to_be_of_another_version(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    (tmp_path / hosts.LIBRARY_FOLDER / f"libcuda.so.{hosts.VERSION}").write_bytes(b"")
    why = "is 580.65.06, but libcuda of that version is cut off or no library"
    with pytest.raises(DriverError, match=why):
        made(hosts.surveyed(root), "0", "compute")


def test_compute_without_unified_memory_is_a_driver_error(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    hosts.plant(tmp_path, "proc/devices", hosts.DEVICES.replace("505 nvidia-uvm\n", ""))
    without = hosts.surveyed(root)
    with pytest.raises(DriverError, match="modprobe nvidia-uvm"):
        made(without, "0", "compute")
    made(without, "0", "utility")


def test_a_driver_without_a_gpu_is_a_driver_error(tmp_path: Path) -> None:
    root = hosts.host(tmp_path, gpus=0)
    with pytest.raises(DriverError, match="drives no GPU"):
        made(hosts.surveyed(root), "all")


def test_the_administrator_decides_about_the_device_cgroup(host: inventory.DriverInventory) -> None:
    off = made(host, config=Config(device_cgroup="off"))
    assert not [operation for operation in off.operations if isinstance(operation, AllowDevices)]
    assert off.notes == ("the device cgroup is left alone: device-cgroup = off",)
    assert made(host, container=ROOTLESS).notes == ("the device cgroup is left alone: rootless",)
    with pytest.raises(ConfigError, match="rootless"):
        made(host, container=ROOTLESS, config=Config(device_cgroup="on"))


def test_the_document_has_the_documented_form(host: inventory.DriverInventory) -> None:
    document = render.plan_document(made(host))
    assert document["container"] == {"id": "c1", "bundle": "/b", "rootfs": "/b/rootfs"}
    assert document["request"] == {
        "source": "env",
        "devices": ["1", "5"],
        "capabilities": ["utility", "compute"],
        "requirements": [],
        "imex_channels": [],
        "features": [],
        "mig_config": False,
        "mig_monitor": False,
    }
    operations = document["operations"]
    assert isinstance(operations, list)
    needed = {
        "mount": {"source", "target", "options", "required"},
        "device": {"path", "type", "major", "minor", "access", "required"},
        "tmpfs": {"path", "options", "files", "required"},
        "ldcache": {"entries", "path", "required"},
        "cgroup": {"rules", "version", "required"},
    }
    for operation in operations:
        assert needed[operation["op"]] <= set(operation)
    assert {operation["op"] for operation in operations} == set(needed)
