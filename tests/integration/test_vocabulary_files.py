# SPDX-License-Identifier: Apache-2.0
"""The driver's files in a container: graphics, 32-bit twins, forward compatibility, and a driver root of any layout."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, on_node
from tests.integration.inside import COMPUTE, Seen, asks, attempt, look, refused
from tests.integration.test_vocabulary import gpu

NATIVE = f"/usr/lib/{roots.MULTIARCH}"
TWINS = "/usr/lib/i386-linux-gnu"
HAS_TWINS = platform.machine() == "x86_64"
COMPAT = "/usr/local/cuda/compat"
GLVND = {
    "usr/share/glvnd/egl_vendor.d/50_mesa.json": '{"ICD": {"library_path": "libEGL_mesa.so.0"}}',
    "etc/vulkan/icd.d/mesa_icd.json": '{"ICD": {"library_path": "libvulkan_mesa.so"}}',
}


def add(bundle: Bundle, files: dict[str, str]) -> Bundle:
    """Files of the image's own."""
    for name, text in files.items():
        path = bundle.rootfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return bundle


def mounted(seen: Seen, *names: str) -> None:
    """Each of these is a mount that cannot be written, and the loader's cache is its own file again."""
    for name in names:
        assert {"ro", "nosuid", "nodev"} <= seen.mounts.get(name, set()), name


@pytest.mark.parametrize("own", [{}, GLVND], ids=["no-folders", "glvnd-folders"])
@pytest.mark.parametrize("kind", ["debian", "busybox"])
def test_graphics_come_beside_the_images_own(
    installed: Installed, bundle: Maker, kind: str, own: dict[str, str]
) -> None:
    card = gpu("h100mig", 1)
    made = add(asks(bundle(kind), "graphics", NVIDIA_VISIBLE_DEVICES="1"), own)
    read = """
cat /usr/share/glvnd/egl_vendor.d/*.json /etc/vulkan/icd.d/*.json
cat /etc/nvidia/nvidia-application-profiles-rc.d/*
for link in /dev/dri/by-path/*; do busybox readlink -f $link; echo $link; done
"""
    seen = look(installed, made, read, description="h100mig")
    nodes = [f"/dev/dri/{name}{n}" for name, n in zip(("card", "renderD"), card["dri"])]
    seen.has_exactly("/dev/nvidiactl", f"/dev/nvidia{card['minor']}", *nodes)
    folder = NATIVE if kind == "debian" else "/usr/lib64"
    mounted(seen, *[f"{folder}/lib{name}_nvidia.so.590.48.01" for name in ("EGL", "GLX")])
    mounted(seen, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    assert f"{folder}/libcuda.so.1" not in seen.mounts
    for words in ("libEGL_nvidia.so.0", "libGLX_nvidia.so.0", *own.values()):
        assert words in seen.told
    assert f'"EGLVisibleDGPUDevices", {1 << card["minor"]:#x}' in seen.told
    for node, name in zip(nodes, ("card", "render")):
        assert f"{node}\n/dev/dri/by-path/pci-{card['bus_id']}-{name}\n" in seen.told
    assert seen.told.count("/by-path/") == 2
    for name, text in own.items():
        assert (made.rootfs / name).read_text() == text


def test_display_brings_mode_setting_and_the_x_servers_modules(
    installed: Installed, bundle: Maker
) -> None:
    made = asks(bundle("debian"), "display", NVIDIA_VISIBLE_DEVICES="1")
    seen = look(installed, made, description="h100mig")
    assert "/dev/nvidia-modeset" in seen.allowed
    assert [path for path in seen.mounts if path.endswith("/nvidia_drv.so")]
    made = asks(bundle("debian"), "graphics", NVIDIA_VISIBLE_DEVICES="1")
    assert "/dev/nvidia-modeset" in look(installed, made, description="h100mig").denied


def test_a_mig_device_brings_no_drm_node(installed: Installed, bundle: Maker) -> None:
    """Its parent's would open the whole GPU."""
    made = asks(bundle("busybox"), "all", NVIDIA_VISIBLE_DEVICES="0:0")
    seen = look(installed, made, description="h100mig")
    assert not [node for node in seen.allowed if node.startswith("/dev/dri/")]
    assert not [node for node in seen.nodes if node.startswith("/dev/dri/")]


# The class of an ELF file is its fifth byte: 1 is 32-bit.
ELF_CLASS = "for file in {files}; do busybox hexdump -s 4 -n 1 -e '1/1 \"%d \"' $file; done"


@pytest.mark.skipif(not HAS_TWINS, reason="this machine's programs have no 32-bit twins")
def test_compat32_brings_the_32_bit_twins_beside_the_others(
    installed: Installed, bundle: Maker
) -> None:
    made = asks(bundle("debian"), "compute,compat32", NVIDIA_VISIBLE_DEVICES="0")
    read = ELF_CLASS.format(files=f"{TWINS}/libcuda.so.1 {NATIVE}/libcuda.so.1")
    seen = look(installed, made, f"{read}; /app/cuda")
    assert seen.told == "1 2 cuInit 0, 1 devices\n"
    assert seen.libraries["libcuda.so.1", 32] == [f"{TWINS}/libcuda.so.1"]
    assert seen.libraries["libcuda.so.1", 64] == [f"{NATIVE}/libcuda.so.1"]
    assert f"{TWINS}/libEGL_nvidia.so.0" not in seen.mounts, "nobody asked for graphics"
    made = asks(bundle("debian"), "compute", NVIDIA_VISIBLE_DEVICES="0")
    seen = look(installed, made)
    assert not [path for path in seen.mounts if path.startswith(TWINS)]
    assert ("libcuda.so.1", 32) not in seen.libraries


def test_compat32_where_the_loader_runs_no_such_program_is_left_out_and_said(
    installed: Installed, bundle: Maker
) -> None:
    made = asks(bundle("musl"), "compute,compat32", NVIDIA_VISIBLE_DEVICES="0")
    seen = look(installed, made, "/app/cuda")
    assert seen.told == "cuInit 0, 1 devices\n"
    assert not [path for path in seen.mounts if "i386" in path]
    told = on_node(installed, f"oci-gpu-hook plan --bundle {made.path}").out
    assert "compat32 brings nothing: this container's loader runs no 32-bit programs" in told


LAYOUTS = ("host", "multiarch", "lib64", "current")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("root", ["/run/nvidia/driver", ""])
@pytest.mark.parametrize("kind", ["debian", "musl"])
def test_the_driver_is_found_in_any_layout_below_any_root(
    installed: Installed, bundle: Maker, kind: str, root: str, layout: str
) -> None:
    made = asks(bundle(kind), "all", NVIDIA_VISIBLE_DEVICES="1,5")
    how: dict[str, Any] = {"driver_root": root, "layout": layout}
    how["settings"] = f"driver-root = {root}\n" if root else ""
    seen = look(installed, made, "/app/cuda && nvidia-smi -L", **how)
    nodes = [f"/dev/nvidia{gpu('h100x8', index)['minor']}" for index in (1, 5)]
    seen.has_exactly(*COMPUTE, *nodes, "/dev/nvidia-modeset")
    assert seen.told.startswith("cuInit 0, 2 devices\n")
    assert all(gpu("h100x8", index)["uuid"] in seen.told for index in (1, 5))
    folder = NATIVE if kind == "debian" else "/usr/lib"
    mounted(seen, f"{folder}/libcuda.so.580.65.06")
    merged = "/usr" if kind == "debian" else ""
    mounted(seen, "/usr/bin/nvidia-smi", f"{merged}/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin")
    mounted(seen, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    for service in ("persistenced", "fabricmanager"):
        assert "nodev" in seen.mounts.get(f"/var/run/nvidia-{service}/socket", ()), service
    if kind == "debian":
        assert seen.libraries["libcuda.so.1", 64] == [f"{NATIVE}/libcuda.so.1"]
        assert ("libcuda.so.1", 32) in seen.libraries or not HAS_TWINS


def test_a_driver_root_that_is_not_there_is_said(installed: Installed, bundle: Maker) -> None:
    made = asks(bundle("busybox"), NVIDIA_VISIBLE_DEVICES="0")
    settings = "driver-root = /run/nvidia/driver\n"
    said = refused(installed, made, settings=settings, refresh=False)
    assert "the driver root /run/nvidia/driver is not there" in said


def newer(bundle: Bundle, driver: Path, *, number: str = "580.65.06") -> Bundle:
    """The image with CUDA's libraries of that release, as its cuda-compat package has them."""
    folder = bundle.rootfs / COMPAT.lstrip("/")
    folder.mkdir(parents=True)
    library = next(driver.rglob("libcuda.so.580.65.06"))
    shutil.copy(library, folder / f"libcuda.so.{number}")
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{number}")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return bundle


# The container's own loader says which file it takes.
RESOLVED = (
    "$(ls /lib64/ld-linux-* /lib/ld-linux-* 2>/dev/null | head -n1) --list /app/cuda; /app/cuda"
)


def test_cudas_newer_libraries_in_the_image_are_named_and_never_mounted(
    installed: Installed, bundle: Maker, driver: Path
) -> None:
    made = newer(asks(bundle("debian"), NVIDIA_VISIBLE_DEVICES="0"), driver)
    before = roots.listing(made.rootfs / COMPAT.lstrip("/"))
    seen = look(installed, made, RESOLVED, description="v100")
    assert f"libcuda.so.1 => {COMPAT}/libcuda.so.1 " in seen.told
    assert "cuInit 0, 1 devices" in seen.told
    names = [f"{COMPAT}/libcuda.so.1", f"{NATIVE}/libcuda.so.1"]
    assert seen.libraries["libcuda.so.1", 64] == names
    assert not [path for path in seen.mounts if path.startswith("/usr/local")]
    assert roots.listing(made.rootfs / COMPAT.lstrip("/")) == before
    assert b"compat" not in (made.rootfs / "etc/ld.so.cache").read_bytes(), "the image's own cache"


@pytest.mark.parametrize(
    ("node", "number", "settings"),
    [
        ("h100mig", "580.65.06", ""),
        ("h100x8", "580.65.06", ""),
        ("v100", "535.183.06", ""),
        ("v100", "580.65.06", "cuda-forward-compatibility = no\n"),
    ],
    ids=["older", "same", "same-branch", "off"],
)
def test_cudas_libraries_that_are_no_newer_or_not_wanted_are_not_named(
    installed: Installed, bundle: Maker, driver: Path, node: str, number: str, settings: str
) -> None:
    made = newer(asks(bundle("debian"), NVIDIA_VISIBLE_DEVICES="0"), driver, number=number)
    seen = look(installed, made, RESOLVED, description=node, settings=settings)
    assert f"libcuda.so.1 => {NATIVE}/libcuda.so.1 " in seen.told
    assert seen.libraries["libcuda.so.1", 64] == [f"{NATIVE}/libcuda.so.1"]


def test_a_compat_folder_that_leads_out_of_the_image_brings_nothing_of_the_host(
    installed: Installed, bundle: Maker, tmp_path: Path
) -> None:
    """The way of CVE-2024-0132: the image's folder is a link, and the host's folder of that name is not the image's."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host/libcuda.so.999.1.1").write_text("the host's own")
    (tmp_path / "host/libcuda.so.1").write_text("the host's own")
    made = asks(bundle("debian"), NVIDIA_VISIBLE_DEVICES="0")
    link = made.rootfs / COMPAT.lstrip("/")
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "host")
    seen = look(installed, made, "test ! -e /usr/local/cuda/compat/libcuda.so.1; /app/cuda")
    assert seen.told == "cuInit 0, 1 devices\n"
    assert seen.libraries["libcuda.so.1", 64] == [f"{NATIVE}/libcuda.so.1"]
    done = attempt(installed, made, f"ls {COMPAT}/ 2>/dev/null || echo nothing")
    assert done.out.endswith("\ntold\nnothing\n"), done.err


def test_gpudirect_storage_beside_a_driver_container(installed: Installed, bundle: Maker) -> None:
    """Its settings and udev's data are the host's, whose own they are."""
    made = asks(bundle("debian"), "utility", NVIDIA_VISIBLE_DEVICES="0", NVIDIA_GDS="enabled")
    settings = "driver-root = /run/nvidia/driver\n"
    read = "cat /etc/cufile.json; ls /run/udev/data"
    seen = look(installed, made, read, driver_root="/run/nvidia/driver", settings=settings)
    assert '"logging"' in seen.told
    assert "+module:nvidia_fs" in seen.told
