# SPDX-License-Identifier: Apache-2.0
"""The survey of a host: what is found, what is not, and that no path leads out of the host's root."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from oci_gpu_hook import ldso
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host import inventory, nodes, proc, saved, stamp, survey
from oci_gpu_hook.host.root import HostRoot
from tests.unit import hosts


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Thu Oct  9 00:00:00 UTC 2025\nGCC 12.2.0\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  Release Build  (x)\n",
    ],
)
def test_the_version_is_read_from_both_flavours_of_the_module(tmp_path: Path, text: str) -> None:
    hosts.plant(tmp_path, proc.VERSION, text)
    assert proc.driver_version(HostRoot(str(tmp_path))) == "580.65.06"


@pytest.mark.parametrize("text", ["", "no version here\n", "NVRM version: 580\n"])
def test_a_version_file_without_a_version_is_no_driver(tmp_path: Path, text: str) -> None:
    hosts.plant(tmp_path, proc.VERSION, text)
    assert proc.driver_version(HostRoot(str(tmp_path))) is None


def test_gpus_come_in_nvmls_order_with_the_kernels_minors(tmp_path: Path) -> None:
    root = hosts.host(tmp_path, gpus=3)
    assert [(gpu.nvml_index, gpu.minor, gpu.bus_id) for gpu in proc.gpus(root)] == [
        (0, 2, "00000000:07:00.0"),
        (1, 1, "00000000:08:00.0"),
        (2, 0, "00000000:09:00.0"),
    ]
    assert proc.gpus(root)[0].uuid == hosts.uuid(2)


def test_addresses_sort_as_numbers(tmp_path: Path) -> None:
    for bus in (0xC1, 0x07, 0x4B):
        hosts.plant_gpu(tmp_path, bus, bus)
    hosts.plant(tmp_path, "proc/driver/nvidia/gpus/10000:01:00.0/information", "Device Minor: 9\n")
    assert [gpu.minor for gpu in proc.gpus(HostRoot(str(tmp_path)))] == [0x07, 0x4B, 0xC1, 9]


def test_an_excluded_gpu_is_not_counted(tmp_path: Path) -> None:
    hosts.plant_gpu(tmp_path, 7, 0, extra="GPU Excluded: Yes\n")
    hosts.plant_gpu(tmp_path, 8, 1)
    assert [gpu.minor for gpu in proc.gpus(HostRoot(str(tmp_path)))] == [1]


def test_a_gpu_that_was_never_initialised_has_no_uuid(tmp_path: Path) -> None:
    text = "GPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: 0\n"
    hosts.plant(tmp_path, "proc/driver/nvidia/gpus/0000:07:00.0/information", text)
    assert proc.gpus(HostRoot(str(tmp_path)))[0].uuid is None


def test_majors_are_those_of_character_devices(tmp_path: Path) -> None:
    majors = proc.character_majors(hosts.host(tmp_path))
    assert (majors["nvidia-uvm"], "virtblk" in majors) == (505, False)


def test_the_survey_finds_the_driver(tmp_path: Path) -> None:
    found = survey.survey(hosts.host(tmp_path))
    assert found.driver_version == hosts.VERSION
    assert {library.soname for library in found.libraries} == set(hosts.SONAMES.values())
    cuda = next(library for library in found.libraries if library.soname == "libcuda.so.1")
    assert cuda.names == (f"libcuda.so.{hosts.VERSION}", "libcuda.so.1", "libcuda.so")
    assert cuda.path == f"/{hosts.LIBRARY_FOLDER}/libcuda.so.{hosts.VERSION}"
    assert found.misfits == ()
    assert [file.path for file in found.firmware] == [
        f"/lib/firmware/nvidia/{hosts.VERSION}/gsp_ga10x.bin"
    ]
    assert found.binaries[0].path == "/usr/bin/nvidia-smi"
    assert dict(found.proc_files)["params"] == hosts.PARAMS


def test_no_kernel_module_is_a_driver_error(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="no NVIDIA driver"):
        survey.survey(HostRoot(str(tmp_path)))
    hosts.plant(tmp_path, "dev/nvidiactl", "")
    with pytest.raises(DriverError, match="module is not loaded"):
        survey.survey(HostRoot(str(tmp_path)))


def test_nodes_have_the_kernels_numbers(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    numbers = {node.path: (node.major, node.minor) for node in nodes.devices(root, proc.gpus(root))}
    assert numbers == {
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia0": (195, 0),
        "/dev/nvidia1": (195, 1),
        "/dev/nvidia-uvm": (505, 0),
        "/dev/nvidia-uvm-tools": (505, 1),
    }


def test_only_sockets_that_exist_are_found(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    assert [ipc.path for ipc in nodes.ipc_paths(root)] == ["/var/run/nvidia-persistenced/socket"]


def test_the_sockets_of_a_driver_container_come_before_the_hosts(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    driver = tmp_path / "run/nvidia/driver"
    (driver / "run/nvidia-persistenced").mkdir(parents=True)
    (driver / "run/nvidia-persistenced/socket").touch()
    (driver / "var").mkdir()
    (driver / "var/run").symlink_to("/run")
    path, below = "/var/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket"
    (found,) = nodes.ipc_paths(root, "/run/nvidia/driver")
    assert (found.path, found.source) == (path, f"/run/nvidia/driver{below}")
    (driver / "run/nvidia-persistenced/socket").unlink()
    (found,) = nodes.ipc_paths(root, "/run/nvidia/driver")
    assert (found.path, found.source) == (path, path)
    (found,) = nodes.ipc_paths(root, "/not/there")
    assert found.source == path


def test_a_saved_inventory_comes_back_whole(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    (tmp_path / "run").mkdir()
    found = survey.survey(root)
    path = survey.save(root, stamp.now(root, "/"), found)
    assert Path(path).stat().st_mode & 0o777 == 0o644
    saved = inventory.read_saved(root, stamp.now(root, "/"))
    assert saved is not None
    assert saved == found
    assert [type(library) for library in saved.libraries] == [inventory.Library] * len(
        saved.libraries
    )
    assert sorted(item.name for item in Path(path).parent.iterdir()) == ["inventory"]


def change_driver(tree: Path) -> None:
    hosts.plant(tree, proc.VERSION, hosts.NVRM.replace(hosts.VERSION, "590.10.01"))


def change_gpus(tree: Path) -> None:
    hosts.plant_gpu(tree, 0x70, 7)


def change_boot(tree: Path) -> None:
    hosts.plant(tree, "proc/sys/kernel/random/boot_id", "another\n")


def change_mig(tree: Path) -> None:
    hosts.plant(tree, "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "")


def change_ld_so_cache(tree: Path) -> None:
    hosts.plant(tree, "etc/ld.so.cache", "new")


def writable_by_others(tree: Path) -> None:
    (tree / inventory.SAVED[1:]).chmod(0o666)


def a_link_in_its_place(tree: Path) -> None:
    saved = tree / inventory.SAVED[1:]
    saved.rename(saved.with_suffix(".real"))
    saved.symlink_to(saved.with_suffix(".real").name)


def bind_anew(tree: Path) -> None:
    """A GPU that was taken from the driver and given back: a new entry in sysfs, of the old name."""
    bound = tree / "sys/bus/pci/drivers/nvidia/0000:07:00.0"
    bound.rename(bound.with_name("old"))
    bound.touch()
    bound.with_name("old").unlink()


def a_folder_that_others_may_write_to(tree: Path) -> None:
    (tree / saved.FOLDER[1:]).chmod(0o777)


def a_link_in_its_folders_place(tree: Path) -> None:
    folder = tree / saved.FOLDER[1:]
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def longer_than_any(tree: Path) -> None:
    """Yet with a form: its content is followed by what marshal does not read, and its length is true."""
    file = tree / inventory.SAVED[1:]
    begin = len(inventory.HEADING) + inventory.LENGTH_BYTES
    content = file.read_bytes()[begin:].ljust(saved.LARGEST)
    length = len(content).to_bytes(inventory.LENGTH_BYTES, "little")
    file.write_bytes(inventory.HEADING + length + content)


@pytest.mark.parametrize(
    "spoil",
    [
        bind_anew,
        a_folder_that_others_may_write_to,
        a_link_in_its_folders_place,
        longer_than_any,
        change_driver,
        change_gpus,
        change_boot,
        change_mig,
        change_ld_so_cache,
        writable_by_others,
        a_link_in_its_place,
    ],
)
def test_a_saved_inventory_that_may_be_wrong_is_not_used(tmp_path: Path, spoil: object) -> None:
    root = hosts.host(tmp_path)
    (tmp_path / "run").mkdir()
    hosts.plant(tmp_path, "sys/bus/pci/drivers/nvidia/0000:07:00.0", "")
    survey.save(root, stamp.now(root, "/"), survey.survey(root))
    assert inventory.read_saved(root, stamp.now(root, "/")) is not None
    assert callable(spoil)
    spoil(tmp_path)
    assert inventory.read_saved(root, stamp.now(root, "/")) is None


def test_a_start_saves_what_it_had_to_survey_if_the_folder_is_there(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    survey.anew(root, "/")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/oci-gpu-hook").mkdir(0o755)
    survey.anew(root, "/")
    assert inventory.read_saved(root, stamp.now(root, "/")) is not None


def test_a_gpu_is_known_by_its_uuid_once_the_kernel_knows_it(tmp_path: Path) -> None:
    """It does so when the GPU is first used, long after a survey may have been saved."""
    root = hosts.host(tmp_path)
    information = tmp_path / "proc/driver/nvidia/gpus/0000:07:00.0/information"
    text = information.read_text()
    information.write_text(text.replace(hosts.uuid(1), "GPU-????????-????-????-????-????????????"))
    (tmp_path / "run").mkdir()
    survey.save(root, stamp.now(root, "/"), survey.survey(root))
    saved = inventory.read_saved(root, stamp.now(root, "/"))
    assert saved is not None and saved.gpus[0].uuid is None
    information.write_text(text)
    assert inventory.read_saved(root, stamp.now(root, "/")) is None


def test_a_start_leaves_what_was_saved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``inventory refresh`` may end while a start surveys; it has asked NVML, and the start has not."""
    root = hosts.host(tmp_path)
    (tmp_path / "run").mkdir()
    look = survey.survey
    told = look(root)._replace(cuda_version="13.1")

    def survey_while_another_saves(root: HostRoot, driver_root: str) -> inventory.DriverInventory:
        survey.save(root, stamp.now(root, "/"), told)
        return look(root, driver_root)

    monkeypatch.setattr(survey, "survey", survey_while_another_saves)
    survey.anew(root, "/")
    assert inventory.read_saved(root, stamp.now(root, "/")) == told


def test_a_file_that_a_killed_one_of_the_same_number_left_is_replaced(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    hosts.plant(tmp_path, f"{inventory.SAVED}.{os.getpid()}", inventory.HEADING)
    (tmp_path / saved.FOLDER[1:]).chmod(0o755)
    survey.anew(root, "/")
    assert inventory.read_saved(root, stamp.now(root, "/")) is not None
    assert [path.name for path in (tmp_path / saved.FOLDER[1:]).iterdir()] == [inventory.FILE]


def test_this_machine_is_one_that_we_know() -> None:
    assert platform.machine() in ldso.MULTIARCH
