# SPDX-License-Identifier: Apache-2.0
"""WSL 2 as a vendor: the device, the libraries that Windows shows, and the driver's packages that they need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.vendors import wsl
from tests.unit import hosts

LIB = "/usr/lib/wsl/lib"
STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_feedb8c0271ca811"
NOTEBOOK = "/usr/lib/wsl/drivers/nvltwi.inf_amd64_0b1c"


@pytest.fixture()
def host(tmp_path: Path) -> HostRoot:
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.1.1", "libdxcore.so", "nvidia-smi"):
        hosts.plant(tmp_path, f"{LIB}/{name}", "")
    for name in ("libcuda.so.1.1", "libnvidia-ml.so.1", "nvcubins.bin", "nvidia-smi", "nvapi.dll"):
        hosts.plant(tmp_path, f"{STORE}/{name}", "")
    # Drivers of others, and one of NVIDIA's that has nothing for Linux.
    for name in ("iigd_dch.inf_amd64_9f", "nvhda.inf_amd64_77", "nvblank.inf_amd64_1"):
        hosts.plant(tmp_path, f"/usr/lib/wsl/drivers/{name}/some.dll", "")
    return HostRoot(str(tmp_path))


def test_the_vendor_is_the_device_the_libraries_and_the_driver_store(host: HostRoot) -> None:
    """A container that has them: tests/integration/test_platforms.py."""
    seen: list[str] = []
    found = wsl.vendor(host, seen.append)
    # All places where an answer could change.
    assert seen[:3] == ["/usr/lib/wsl", LIB, "/usr/lib/wsl/drivers"] and STORE in seen[3:]
    assert (found.flag, found.kind, found.file) == ("NVIDIA_VISIBLE_DEVICES", "nvidia.com/gpu", "/usr/lib/wsl")
    main, store = found.groups
    assert [item.required for item in main.libraries] == [True, True, False]
    assert [item.path.rpartition("/")[0] for item in store.files] == [STORE] * 3


def test_hundreds_of_packages_are_not(host: HostRoot, tmp_path: Path) -> None:
    for number in range(100):
        hosts.plant(tmp_path, f"{NOTEBOOK}{number:03}/libcuda.so.1.1", "")
    assert len(wsl.stores(host)) == 16


@pytest.mark.parametrize("name", ["libcuda.so.1", "libdxcore.so"])
def test_a_windows_without_nvidias_driver_is_named_with_the_remedy(host: HostRoot, name: str) -> None:
    os.unlink(f"{host.path}{LIB}/{name}")
    with pytest.raises(DriverError) as caught:
        wsl.vendor(host)
    assert caught.value.exit_code == 6
    said = f"this WSL 2 has no driver of NVIDIA's: {LIB}/{name} is missing (the administrator of the Windows host must "
    assert str(caught.value).startswith(said)
