# SPDX-License-Identifier: Apache-2.0
"""The driver's files in a container: graphics, 32-bit twins, forward compatibility, and a driver root of any layout."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, on_node, start
from tests.integration.inside import COMPUTE, CONTROL, REFRESH, Seen, attempt, gpus, look, node, plan
from tests.unit.libcudas import R575, SECTION, said

OURS = "/usr/local/nvidia"
NATIVE, TWINS = f"{OURS}/lib64", f"{OURS}/lib"
IMAGES = f"/usr/lib/{roots.MULTIARCH}"
HAS_TWINS = platform.machine() == "x86_64"
COMPAT = "/usr/local/cuda/compat"
GLVND = {
    "usr/share/glvnd/egl_vendor.d/50_mesa.json": '{"ICD": {"library_path": "libEGL_mesa.so.0"}}',
    "etc/vulkan/icd.d/mesa_icd.json": '{"ICD": {"library_path": "libvulkan_mesa.so"}}',
}


def is_mounted(seen: Seen, *names: str) -> None:
    """Each of these is a mount that cannot be written."""
    for name in names:
        assert {"ro", "nosuid", "nodev"} <= seen.mounts.get(name, set()), name


def test_graphics_come_beside_the_images_own(bundle: Maker) -> None:
    own = bundle("debian").asks("1", "graphics")
    for name, text in GLVND.items():
        (own.rootfs / name).parent.mkdir(parents=True, exist_ok=True)
        (own.rootfs / name).write_text(text)
    read = """
cat /usr/share/glvnd/egl_vendor.d/*.json /etc/vulkan/icd.d/*.json
cat /etc/nvidia/nvidia-application-profiles-rc.d/*
for link in /dev/dri/by-path/*; do busybox readlink -f $link; echo $link; done
"""
    made = (own, bundle("busybox").asks("1", "graphics"), bundle("debian").asks("1", "display"))
    found = attempt(*made, commands=read, description="h100mig")
    card, gpu = gpus("h100mig")[1], node(1, "h100mig")
    nodes = [f"/dev/dri/{name}{n}" for name, n in zip(("card", "renderD"), card["dri"])]
    for each, texts in zip(found[:2], (GLVND.values(), ())):
        seen = each.seen()
        seen.has_exactly(CONTROL, gpu, *nodes)
        is_mounted(seen, *[f"{NATIVE}/lib{name}_nvidia.so.590.48.01" for name in ("EGL", "GLX")])
        is_mounted(seen, f"{OURS}/share/glvnd/egl_vendor.d/10_nvidia.json")
        assert not [path for path in seen.mounts if "libcuda" in path]
        for words in ("libEGL_nvidia.so.0", "libGLX_nvidia.so.0", *texts):
            assert words in seen.printed
        assert f'"EGLVisibleDGPUDevices", {1 << card["minor"]:#x}' in seen.printed
        for path, name in zip(nodes, ("card", "render")):
            assert f"{path}\n/dev/dri/by-path/pci-{card['bus_id']}-{name}\n" in seen.printed
        assert seen.printed.count("/by-path/") == 2
    for name, text in GLVND.items():
        assert (own.rootfs / name).read_text() == text
    display = found[2].seen()
    display.has_exactly(CONTROL, gpu, *nodes, "/dev/nvidia-modeset")
    assert [path for path in display.mounts if path.endswith("/nvidia_drv.so")]


# The class of an ELF file is its fifth byte: 1 is 32-bit.
ELF_CLASS = "for file in {files}; do busybox hexdump -s 4 -n 1 -e '1/1 \"%d \"' $file; done"


@pytest.mark.skipif(not HAS_TWINS, reason="this machine's programs have no 32-bit twins")
def test_compat32_brings_the_32_bit_twins(bundle: Maker) -> None:
    read = ELF_CLASS.format(files=f"{TWINS}/libcuda.so.1 {NATIVE}/libcuda.so.1")
    musl = bundle("musl").asks("0", "compute,compat32")
    made = (bundle("debian").asks("0", "compute,compat32"), bundle("debian").asks("0", "compute"), musl)
    commands = f"[ ! -e {TWINS}/libcuda.so.1 ] || {read}; /app/cuda"
    with_twins, without, by_musl = attempt(*made, commands=commands)
    seen = with_twins.seen()
    assert seen.printed == "1 2 cuInit 0, 1 devices\n"
    assert seen.libraries["libcuda.so.1", 32] == [f"{TWINS}/libcuda.so.1"]
    assert seen.libraries["libcuda.so.1", 64] == [f"{NATIVE}/libcuda.so.1"]
    assert f"{TWINS}/libEGL_nvidia.so.0" not in seen.mounts, "graphics were not asked for"
    for each in (without, by_musl):
        seen = each.seen()
        assert seen.printed == "cuInit 0, 1 devices\n"
        assert not [path for path in seen.mounts if path.startswith(f"{TWINS}/")]
        assert ("libcuda.so.1", 32) not in seen.libraries
    sentence = "compat32 brings nothing: this container's loader runs no 32-bit programs"
    assert sentence in plan(musl)


DRIVER_ROOT = "/run/nvidia/driver"


@pytest.mark.parametrize("layout", ["multiarch", "lib64", "current"])
def test_the_driver_is_found_in_any_layout_below_a_root(bundle: Maker, layout: str) -> None:
    """On the host itself: tests/driver."""
    how: dict[str, Any] = {"driver_root": DRIVER_ROOT, "layout": layout, "settings": f"driver-root = {DRIVER_ROOT}\n"}
    made = [bundle(kind).asks("1,5", "all") for kind in ("debian", "musl")]
    started = attempt(*made, commands="/app/cuda && nvidia-smi -L", **how)
    debian, musl = (each.seen() for each in started)
    for seen, folder, files, merged in ((debian, NATIVE, OURS, "/usr"), (musl, "/usr/lib", "/usr", "")):
        seen.has_exactly(*COMPUTE, node(1), node(5), "/dev/nvidia-modeset")
        assert seen.printed.startswith("cuInit 0, 2 devices\n")
        assert all(gpus()[index]["uuid"] in seen.printed for index in (1, 5))
        is_mounted(seen, f"{folder}/libcuda.so.580.65.06", f"{files}/bin/nvidia-smi")
        is_mounted(seen, f"{merged}/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin")
        is_mounted(seen, f"{files}/share/glvnd/egl_vendor.d/10_nvidia.json")
        for service in ("persistenced", "fabricmanager"):
            assert "nodev" in seen.mounts.get(f"/var/run/nvidia-{service}/socket", ()), service
    assert debian.libraries["libcuda.so.1", 64] == [f"{NATIVE}/libcuda.so.1"]
    assert ("libcuda.so.1", 32) in debian.libraries or not HAS_TWINS


def test_gpudirect_storage_beside_a_driver_container(bundle: Maker) -> None:
    """Its settings and udev's data are the host's, whose own they are."""
    made = bundle("busybox").asks("0", "utility", NVIDIA_GDS="enabled")
    how = {"driver_root": DRIVER_ROOT, "settings": f"driver-root = {DRIVER_ROOT}\n"}
    seen = look(made, "cat /etc/cufile.json; ls /run/udev/data", **how)
    assert '"logging"' in seen.printed
    assert "+module:nvidia_fs" in seen.printed


def newer(bundle: Bundle, driver: Path, number: str = "580.65.06", note: dict[str, object] | None = None) -> Bundle:
    """The image with CUDA's libraries of that release, as its cuda-compat package has them; note: what libcuda says."""
    folder = bundle.asks("0").rootfs / COMPAT.lstrip("/")
    folder.mkdir(parents=True)
    library = next(driver.rglob("lib/libcuda.so.580.65.06"))
    shutil.copy(library, folder / f"libcuda.so.{number}")
    if note is not None:
        (folder / "note").write_bytes(said(note))
        added = ["objcopy", "--add-section", f"{SECTION}={folder}/note", str(folder / f"libcuda.so.{number}")]
        subprocess.run(added, check=True)
        (folder / "note").unlink()
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{number}")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return bundle


# The container's own loader says which file it takes: by its cache, by the folders that CUDA's images have in
# LD_LIBRARY_PATH, and by the image's own.
RESOLVED = f"""
loader=$(ls /lib64/ld-linux-* /lib/ld-linux-* 2>/dev/null | head -n1)
for folders in '' {TWINS}:{NATIVE} {IMAGES}; do
    busybox readlink -f $(LD_LIBRARY_PATH=$folders $loader --list /app/cuda | busybox awk '/libcuda/ {{ print $3 }}')
    LD_LIBRARY_PATH=$folders /app/cuda
done
"""


def takes(seen: Seen, file: str) -> bool:
    return seen.printed.splitlines() == [file, "cuInit 0, 1 devices"] * 3


# The release that the image has, the node, its settings, and the file that a program takes.
RELEASES = {
    "newer": ("580.65.06", "v100", "", f"{COMPAT}/libcuda.so.580.65.06"),
    "same branch": ("535.183.06", "v100", "", f"{NATIVE}/libcuda.so.535.183.01"),
    "same": ("580.65.06", "h100x8", "", f"{NATIVE}/libcuda.so.580.65.06"),
    "off": ("580.65.06", "v100", "cuda-forward-compatibility = no\n", f"{NATIVE}/libcuda.so.535.183.01"),
}


@pytest.mark.parametrize("case", RELEASES)
def test_cudas_newer_libraries_are_named(bundle: Maker, driver: Path, case: str) -> None:
    number, description, settings, file = RELEASES[case]
    made = newer(bundle("debian"), driver, number)
    before = roots.listing(made.rootfs / COMPAT.lstrip("/"))
    seen = look(made, RESOLVED, description=description, settings=settings)
    assert takes(seen, file)
    assert seen.libraries["libcuda.so.1", 64] == [f"{NATIVE}/libcuda.so.1"]
    assert not [path for path in seen.mounts if path.startswith("/usr/local/cuda")]
    assert roots.listing(made.rootfs / COMPAT.lstrip("/")) == before
    assert b"compat" not in (made.rootfs / "etc/ld.so.cache").read_bytes(), "the image's own cache"


UNUSED = "CUDA forward compatibility: the image's libcuda.so.575.57.08 is not used: "


@pytest.mark.parametrize("description", ["v100", "h100x8"])
def test_an_image_that_names_its_newer_library_in_its_own_folder_has_no_mixed_set(
    bundle: Maker, driver: Path, description: str
) -> None:
    """Its libcuda.so.1 is a link into the folder for forward compatibility: that library, or the host's, serves."""
    made = newer(bundle("debian"), driver, "575.57.08", {**R575, "driver": [535]})
    (made.rootfs / f"{IMAGES[1:]}/libcuda.so.1").symlink_to(f"{COMPAT}/libcuda.so.1")
    seen = look(made, RESOLVED, description=description)
    counts = "is used" in plan(made, refresh=True, description=description)
    assert counts == (description == "v100")
    if counts:
        assert takes(seen, f"{COMPAT}/libcuda.so.575.57.08")
        assert f"{COMPAT}/libcuda.so.575.57.08" not in seen.mounts
    else:
        assert seen.printed.splitlines()[:4] == [f"{NATIVE}/libcuda.so.580.65.06", "cuInit 0, 1 devices"] * 2
        assert f"{COMPAT}/libcuda.so.575.57.08" in seen.mounts, "the host's lies over it"


def test_doctor_says_which_libcuda_a_container_has(bundle: Maker, driver: Path) -> None:
    made = newer(bundle("debian"), driver, "575.57.08", R575).runs("/bin/sh", "-c", "while :; do sleep 1; done")
    script = f"""{REFRESH}
{start("runc", made)} &
until runc list | grep -q running; do sleep 0.1; done
oci-gpu-hook doctor --container $(runc list -q) || :
runc kill $(runc list -q) KILL; wait
"""
    done = on_node(script, description="geforce")
    assert f"pass  libcuda      {UNUSED}it is not made for GPUs of the brand GeForce" in done.out, done.out + done.err


def test_of_musl_nobody_says_that_its_loader_reads_a_cache(bundle: Maker, driver: Path) -> None:
    made = newer(bundle("musl"), driver, "575.57.08", R575)
    assert "forward compatibility" not in plan(made, description="v100")
