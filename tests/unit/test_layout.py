# SPDX-License-Identifier: Apache-2.0
"""How an image is laid out: its loader's library folders, a driver that lies there, its X server's modules."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from oci_gpu_hook.container import layout
from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.kernel.descriptors import closing
from tests.unit import hosts

FEDORAS, DEBIANS = "/usr/lib64/xorg/modules", "/usr/lib/xorg/modules"


def layout_of(root: Path, *, draws: bool = True) -> Layout:
    with closing(os.open(root, os.O_PATH)) as fd:
        return layout.layout_of(fd, None, user_namespace=False, makes_nodes=True, compat="", draws=draws)


@pytest.mark.parametrize(
    ("folders", "found"),
    [((DEBIANS,), DEBIANS), ((FEDORAS,), FEDORAS), ((DEBIANS, FEDORAS), FEDORAS), (("/usr/lib/xorg",), "")],
)
def test_an_x_servers_modules_are_looked_for_where_servers_are_built_to_look(
    tmp_path: Path, folders: tuple[str, ...], found: str
) -> None:
    for folder in folders:
        (tmp_path / folder[1:]).mkdir(parents=True)
    assert layout_of(tmp_path).xorg_folder == found
    assert layout_of(tmp_path, draws=False).xorg_folder == ""


@pytest.mark.parametrize(
    ("path", "has_driver"),
    [
        ("/usr/lib64/libcuda.so.1", True),
        ("/usr/lib64/libnvidia-ml.so.1", True),
        ("/usr/lib64/libcuda.so", False),
        ("/usr/local/cuda/lib64/stubs/libcuda.so.1", False),
    ],
)
def test_a_driver_in_the_library_folder_is_known_by_its_first_libraries(
    tmp_path: Path, path: str, has_driver: bool
) -> None:
    hosts.plant(tmp_path, "/usr/lib64/libc.so.6", "")
    # What is left of an earlier start is empty.
    hosts.plant(tmp_path, path, "")
    assert layout_of(tmp_path).has_driver == has_driver


@pytest.mark.parametrize(("is_arch", "twins"), [(True, "/usr/lib32"), (False, "/usr/lib")])
def test_the_folder_of_32_bit_libraries_is_not_that_of_64_bit_ones(tmp_path: Path, is_arch: bool, twins: str) -> None:
    """In /usr/lib of Arch's images, to which lib64 is a link, a 32-bit file would lie over a 64-bit one."""
    hosts.plant(tmp_path, f"/usr/{'lib' if is_arch else 'lib64'}/libc.so.6", "")
    if is_arch:
        (tmp_path / "usr/lib64").symlink_to("lib")
    found = layout_of(tmp_path)
    assert found.library_folder == "/usr/lib64"
    assert found.library_folder_32 == (twins if platform.machine() == "x86_64" else "")
