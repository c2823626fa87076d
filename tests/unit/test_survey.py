# SPDX-License-Identifier: Apache-2.0
"""The survey of a host: what is found, what is not, and that no path leads out of the host's root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oci_gpu_hook.driver import files, inventory, nodes, proc, survey
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import drivercheck
from oci_gpu_hook.planning import provision
from oci_gpu_hook.request.selectors import Request
from tests.unit import hosts

# CUDA's release notes, and for the last what that driver's nvidia-smi says.
CUDA = {"470.42.01": "11.4", "580.65.06": "13.0", "595.45.04": "13.2", "610.57.04": "13.3", "615.71.09": "13.4"}


@pytest.mark.parametrize("version", CUDA)
def test_both_flavours_of_the_module_tell_the_version_and_its_branch_the_cuda(tmp_path: Path, version: str) -> None:
    for flavour in (f"x86_64 Kernel Module  {version}  Thu Oct  9", f"Open Kernel Module for aarch64  {version}  (x)"):
        hosts.plant(tmp_path, proc.VERSION, f"NVRM version: NVIDIA UNIX {flavour}\nGCC 12.2.0\n")
        found = survey.survey(HostRoot(str(tmp_path)))
        assert (found.driver_version, found.cuda_version) == (version, CUDA[version])
    for text in ("", "no version here\n", "NVRM version: 580\nGCC 12.2.0\n"):
        hosts.plant(tmp_path, proc.VERSION, text)
        assert survey.driver_version(HostRoot(str(tmp_path))) is None


def test_addresses_sort_as_numbers(tmp_path: Path) -> None:
    for bus in (0xC1, 0x07, 0x4B):
        hosts.plant_gpu(tmp_path, bus, bus)
    hosts.plant(tmp_path, "proc/driver/nvidia/gpus/10000:01:00.0/information", "Device Minor: 9\n")
    assert [gpu.minor for gpu in survey.list_gpus(HostRoot(str(tmp_path)))] == [0x07, 0x4B, 0xC1, 9]


def test_an_excluded_gpu_is_not_counted_and_one_that_was_never_initialised_has_no_uuid(tmp_path: Path) -> None:
    hosts.plant_gpu(tmp_path, 7, 0, extra="GPU Excluded: Yes\n")
    # Since 590 the module writes no line of one that it does not know yet.
    for bus, text in (("08", f"GPU UUID: {hosts.NO_UUID}\nDevice Minor: 1\n"), ("09", "Device Minor: 2\n")):
        hosts.plant(tmp_path, f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information", text)
    assert [(gpu.minor, gpu.uuid) for gpu in survey.list_gpus(HostRoot(str(tmp_path)))] == [(1, None), (2, None)]


def test_one_major_is_the_one_that_all_of_them_have(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    names = ("mem", "nvidia", "nvidiactl", "nvidia-uvm", "uvm", "none", "virtblk", "")
    majors = proc.character_majors(root)
    assert (majors["nvidia-uvm"], "virtblk" in majors) == (505, False)
    assert [proc.character_major(root, name) for name in names] == [majors.get(name) for name in names]
    hosts.plant(tmp_path, "proc/devices", "Character devices:\n 10 a nvidia-uvm\nx nvidia-caps\n")
    assert proc.character_major(root, "nvidia-uvm") is proc.character_major(root, "nvidia-caps") is None


def test_in_a_driver_root_links_lead_within_it_and_paths_are_the_hosts(tmp_path: Path) -> None:
    hosts.plant(tmp_path, "proc/driver/nvidia/version", hosts.NVRM)
    tree = tmp_path / "run/driver"
    real = f"/opt/real/libcuda.so.{hosts.VERSION}"
    hosts.plant_library(tree, real, "libcuda.so.1")
    hosts.link(tree, f"{hosts.LIBRARY_FOLDER}/libcuda.so.{hosts.VERSION}", real)
    hosts.plant(tree, "/opt/real/nvidia-smi", hosts.elf(""))
    hosts.link(tree, "/usr/bin/nvidia-smi", "/opt/real/nvidia-smi")
    hosts.plant(tree, "/opt/icd/nvidia.icd", "")
    hosts.link(tree, "/etc/OpenCL/vendors", "/opt/icd")
    # The host's own, which are another driver's, count for nothing.
    hosts.plant_library(tmp_path, f"/{hosts.LIBRARY_FOLDER}/libnvidia-ml.so.{hosts.VERSION}")
    hosts.plant(tmp_path, "usr/bin/nvidia-debugdump", "")
    found = survey.survey(HostRoot(str(tmp_path)), "/run/driver")
    (library,) = found.libraries
    assert (library.path, library.file) == (f"/run/driver{real}", f"libcuda.so.{hosts.VERSION}")
    assert (library.subfolder, library.folder) == ("", "")
    targets = [(file.path, file.target) for file in (*found.binaries, *found.files)]
    assert targets == [
        ("/run/driver/opt/real/nvidia-smi", "/usr/bin/nvidia-smi"),
        ("/run/driver/opt/icd/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
    ]
    assert [misfit.name for misfit in found.misfits] == ["libnvidia-ml"]


def test_no_link_of_a_driver_root_leads_to_the_host(tmp_path: Path) -> None:
    hosts.plant(tmp_path, "proc/driver/nvidia/version", hosts.NVRM)
    hosts.plant_library(tmp_path, f"/opt/libcuda.so.{hosts.VERSION}")
    up = "../" * 20
    for name, to in (("libcuda", f"/opt/libcuda.so.{hosts.VERSION}"), ("libnvidia-ml", f"{up}opt/x")):
        hosts.link(tmp_path, f"/run/driver/{hosts.LIBRARY_FOLDER}/{name}.so.{hosts.VERSION}", to)
    assert survey.survey(HostRoot(str(tmp_path)), "/run/driver").libraries == ()


def test_a_library_folder_is_named_as_it_is_and_not_by_the_link_to_it(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    (tmp_path / "lib").rename(tmp_path / "old-lib")
    (tmp_path / "lib").symlink_to("usr/lib")
    folder = f"/{hosts.LIBRARY_FOLDER}".removeprefix("/usr")
    hosts.plant_cache(tmp_path, f"{folder}/libcuda.so.1")
    libraries = survey.survey(root).libraries
    assert {library.path.rpartition("/")[0] for library in libraries} == {f"/{hosts.LIBRARY_FOLDER}"}


def test_programs_lie_beside_the_libraries_where_the_hosts_own_are_scripts(tmp_path: Path) -> None:
    """On nodes that mount the driver at /usr/local/nvidia, a script in /usr/bin starts nvidia-smi by that path."""
    root = hosts.host(tmp_path)
    hosts.plant(tmp_path, "usr/bin/nvidia-smi", "#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n")
    hosts.plant_cache(tmp_path, "/usr/local/nvidia/lib64/libcuda.so.1")
    hosts.plant_library(tmp_path, f"usr/local/nvidia/lib64/libcuda.so.{hosts.VERSION}", "libcuda.so.1")
    hosts.plant(tmp_path, "usr/local/nvidia/bin/nvidia-smi", hosts.elf(""))
    (smi, *_) = survey.survey(root).binaries
    assert (smi.path, smi.target) == ("/usr/local/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-smi")


def test_a_program_of_others_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a link to a device, or lie in their own filesystem."""
    root, read, real = hosts.host(tmp_path), [], HostRoot.open

    def opened(self: HostRoot, path: str, flags: int) -> int:
        read.extend([path] if path.startswith("/usr/bin/") and not flags & os.O_PATH else [])
        return real(self, path, flags)

    (tmp_path / "usr/bin/nvidia-smi").chmod(0o757)
    (tmp_path / "usr/bin/nvidia-persistenced").unlink()
    os.mkfifo(tmp_path / "usr/bin/nvidia-persistenced")
    monkeypatch.setattr(HostRoot, "open", opened)
    found = survey.survey(root)
    assert read == [it.path for it in found.binaries] == ["/usr/bin/nvidia-cuda-mps-control"]
    assert [text for text in found.unknown if text.startswith("/usr/bin/nvidia-smi is left out: ")]


def test_a_folder_that_others_may_fill_is_left_out(tmp_path: Path) -> None:
    """An administrator may have told ldconfig to look there."""
    root = hosts.host(tmp_path)
    hosts.plant_cache(tmp_path, "/opt/lib/libcuda.so.1")
    (tmp_path / "opt/lib").mkdir(parents=True)
    assert files.find_driver(root, "", hosts.VERSION).cached == ("/opt/lib",)
    (tmp_path / "opt").chmod(0o777)
    found = files.find_driver(root, "", hosts.VERSION)
    assert found.cached == ()
    (sentence,) = found.untrusted
    assert sentence.startswith("/opt/lib is left out: 'lib' lies in a folder that others than root")
    assert sentence in survey.survey(root).unknown


@pytest.mark.parametrize(
    ("path", "mode", "left"),
    [
        (f"{hosts.LIBRARY_FOLDER}/libcuda.so.{hosts.VERSION}", 0o666, "libraries"),
        (f"{hosts.LIBRARY_FOLDER}", 0o775, "libraries"),
        ("usr", 0o777, "libraries"),
        ("usr/bin/nvidia-smi", 0o757, "binaries"),
        ("usr/bin", 0o775, "binaries"),
        (f"lib/firmware/nvidia/{hosts.VERSION}", 0o777, "firmware"),
    ],
)
@pytest.mark.parametrize("driver_root", ["", "run/driver"])
def test_what_others_could_exchange(tmp_path: Path, path: str, mode: int, left: str, driver_root: str) -> None:
    """It would run in every container; a driver's root is no exception."""
    root = hosts.host(tmp_path)
    if driver_root:
        (tmp_path / driver_root).mkdir(parents=True)
        for name in ("usr", "lib"):
            (tmp_path / name).rename(tmp_path / driver_root / name)
    whole = survey.survey(root, f"/{driver_root}")
    (tmp_path / driver_root / path).chmod(mode)
    found = survey.survey(root, f"/{driver_root}")
    assert len(getattr(found, left)) < len(getattr(whole, left))
    assert any(" is left out: " in sentence for sentence in found.unknown), found.unknown


def test_a_file_that_others_could_exchange_hides_no_good_one(tmp_path: Path) -> None:
    """As in /usr/local/lib, where a distribution's staff may write, and which is in the loader's cache."""
    root = hosts.host(tmp_path)
    file = f"libcuda.so.{hosts.VERSION}"
    hosts.plant_library(tmp_path, f"/usr/local/lib/{file}", "libcuda.so.1")
    hosts.plant_cache(tmp_path, f"/usr/local/lib/{file}")
    (tmp_path / "usr/local/lib").chmod(0o775)
    found = survey.survey(root)
    assert [it.path for it in found.libraries if it.file == file] == [f"/{hosts.LIBRARY_FOLDER}/{file}"]
    assert found.misfits == ()
    (tmp_path / hosts.LIBRARY_FOLDER / file).chmod(0o666)
    (misfit,) = survey.survey(root).misfits
    assert misfit.why == f"/{hosts.LIBRARY_FOLDER}/{file} is left out: others than root may write to it"
    with pytest.raises(DriverError, match="is left out: others than root may write to it"):
        provision.check_driver(Request("env", ("all",), ("compute",)), survey.survey(root))
    (finding,) = [it for it in drivercheck.check_driver(root, "/", "apt")[0] if it.check == "libraries"]
    assert finding.remedy == f"chmod go-w /{hosts.LIBRARY_FOLDER}/{file} && oci-gpu-hook inventory refresh"


def test_the_sockets_of_a_driver_container_come_before_the_hosts(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    path, own = "/var/run/nvidia-persistenced/socket", "/run/nvidia/driver/run/nvidia-persistenced/socket"
    hosts.plant(tmp_path, own, "")
    hosts.link(tmp_path, "/run/nvidia/driver/var/run", "/run")
    for driver_root, source in (("/", path), ("/run/nvidia/driver", own), ("/not/there", path)):
        assert [(it.path, it.source) for it in nodes.ipc_paths(root, driver_root)] == [(path, source)]
    (tmp_path / own[1:]).unlink()
    assert [it.source for it in nodes.ipc_paths(root, "/run/nvidia/driver")] == [path]


def test_on_nixos_another_drivers_folder_makes_the_saved_inventory_another(tmp_path: Path) -> None:
    """All else that does so is in tests/integration/test_inventory_truth.py; there is no ld.so.cache."""
    root = hosts.host(tmp_path)
    hosts.saved(root)
    assert inventory.read_saved(root, proc.stamp(root, "/")) is not None
    hosts.plant(tmp_path, "run/opengl-driver/lib/libcuda.so.1", "")
    assert inventory.read_saved(root, proc.stamp(root, "/")) is None


def test_another_mount_of_procfs_makes_no_doubt_of_a_mig_device(tmp_path: Path) -> None:
    """It has the same inode numbers, and times of its own: an engine with ProtectProc= may have one."""
    root = hosts.host(tmp_path)
    hosts.plant(tmp_path, "proc/driver/nvidia/capabilities/gpu1/mig/gi5/ci0/access", "")
    hosts.saved(root)
    now = proc.stamp(root, "/")
    device = inventory.MigDevice(0, 0, "MIG-27d4e8c1-9b36-5f02-8e7a-c15f90a3b46d", "", 5, 0, 30, 31)
    survey.save(root, now, survey.survey(root)._replace(mig_devices=(device,)))
    ((number, time),) = now[1]
    for mount, unknown in ((number, True), (number + 1, False)):
        found = inventory.read_saved(root, (now[0], ((mount, time + 1),)))
        assert found is not None and (found.mig_devices[0].uuid is None) is unknown
        assert (inventory.MAY_BE_MADE_AGAIN in found.unknown) is unknown


def test_a_container_without_a_gpus_node_only_looks(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    gpus = survey.list_gpus(root)
    for path in ("run/.containerenv", "dev/null", "dev/nvidia-uvm"):
        hosts.plant(tmp_path, path, "")
    assert nodes.gpus_here(root, gpus) == gpus != ()
    # With one that is not any GPU's, it has none.
    hosts.plant(tmp_path, "dev/nvidia0", "")
    assert nodes.gpus_here(root, gpus) == ()
