# SPDX-License-Identifier: Apache-2.0
"""The search for a driver's files on fake trees: which are found, where, for which capability, and which are not.

The rows say what NVIDIA's stack gives a container, in words of their own and not by way of `catalogue`.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from oci_gpu_hook.driver import elf, files, inventory
from oci_gpu_hook.host.root import HostRoot
from tests.unit import hosts
from tests.unit.bounded import peak

VERSION = hosts.VERSION
FOLDER = f"/{hosts.LIBRARY_FOLDER}"
GRAPHICS = {"graphics", "display"}


def driver(tree: Path) -> files.Driver:
    return files.find_driver(HostRoot(str(tree)), "", VERSION)


def configuration(tree: Path) -> tuple[inventory.DriverFile, ...]:
    found = driver(tree)
    return files.configuration(found, found.root)


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each machine that we know, whichever runs the test."""
    name = str(request.param)
    host = SimpleNamespace(machine=name, release="6.12.0-1")
    monkeypatch.setattr("posix.uname", lambda: host)
    return name


VULKAN = "/etc/vulkan/icd.d/nvidia_icd.json"
OPENCL = "/etc/OpenCL/vendors/nvidia.icd"


def test_a_library_comes_in_the_exact_version_only(tmp_path: Path) -> None:
    name = "libcuda"
    for other in (f"{name}.so.535.54.03", f"{name}.so.{VERSION}.1", f"x{name}.so.{VERSION}"):
        hosts.plant_library(tmp_path, f"{FOLDER}/{other}")
    assert files.libraries(driver(tmp_path)) == {}
    hosts.plant_library(tmp_path, f"{FOLDER}/{name}.so.{VERSION}", f"{name}.so.1")
    ((library, path),) = files.libraries(driver(tmp_path)).items()
    assert library.path == path == f"{FOLDER}/{name}.so.{VERSION}"
    assert (set(library.capabilities), library.subfolder, library.bits) == ({"compute", "video"}, "", 64)


# Debian has glsi and others in the folder above the one of CUDA's.
@pytest.mark.parametrize("known", ["libcuda", "libnvidia-glsi"])
def test_what_the_driver_has_beside_known_libraries_is_brought_too(tmp_path: Path, known: str) -> None:
    """No table knows a newer driver's libraries; elsewhere such a file is not the driver's.  Each comes once."""
    for path in (f"{FOLDER}/libnvidia-new", "/lib64/libnvidia-new", f"{FOLDER}/libnvidia-gtk3"):
        hosts.plant_library(tmp_path, f"{path}.so.{VERSION}")
    assert files.libraries(driver(tmp_path)) == {}
    for path in (f"{FOLDER}/{known}", "/lib64/libnvidia-fbc", "/usr/lib64/libnvidia-elsewhere"):
        hosts.plant_library(tmp_path, f"{path}.so.{VERSION}")
    found = [*files.libraries(driver(tmp_path))]
    assert [it.file for it in found] == [f"{it}.so.{VERSION}" for it in (known, "libnvidia-fbc", "libnvidia-new")]
    assert set(found[2].capabilities) == {"compute", "video", "graphics", "display"}


def test_a_link_without_a_version_is_made_where_the_host_has_it(tmp_path: Path) -> None:
    """By which programs dlopen a library: libnvoptix looks for libnvidia-ml.so."""
    hosts.plant_library(tmp_path, f"{FOLDER}/libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1")
    (library,) = files.libraries(driver(tmp_path))
    assert library.names == (f"libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1")
    link = tmp_path / FOLDER[1:] / "libnvidia-ml.so"
    link.symlink_to("libnvidia-ml.so.1")
    (link.parent / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{VERSION}")
    (library,) = files.libraries(driver(tmp_path))
    assert library.names[2:] == ("libnvidia-ml.so",)
    link.unlink()
    link.write_text("a stub of another package's")
    (library,) = files.libraries(driver(tmp_path))
    assert library.names[2:] == ()


@pytest.mark.parametrize(
    ("file", "capability"),
    [("libnvidia-nvvm.so.4.0.0", "compute"), ("libnvidia-nvvm70.so.4", "compute"), ("libGLX_nvidia.so.0", "graphics")],
)
def test_a_file_without_the_drivers_version(tmp_path: Path, file: str, capability: str) -> None:
    """A link of that name leads to another driver's file, if this driver's is not there."""
    hosts.plant_library(tmp_path, f"{FOLDER}/{file}.535.54.03", file)
    hosts.link(tmp_path, f"{FOLDER}/{file}", f"{file}.535.54.03")
    assert files.libraries(driver(tmp_path)) == {}
    (tmp_path / FOLDER[1:] / file).unlink()
    hosts.plant_library(tmp_path, f"{FOLDER}/{file}", file)
    (library,) = files.libraries(driver(tmp_path))
    assert library.file == file and capability in library.capabilities


@pytest.mark.parametrize(
    ("name", "versions", "own", "capabilities"),
    [
        *[
            (f"libnvidia-egl-{it}", f"1.1.9 1.1.10 1.2 9 1.1.x 9.9.9.9 {VERSION}.1", "1.1.10", GRAPHICS)
            for it in ("gbm", "wayland", "wayland2", "xcb", "xlib")
        ],
        # It is the file's, and not its numbers.
        ("libnvidia-egl-xcb", "1.0.04", "1.0.04", GRAPHICS),
        # RDMA's have four numbers.
        ("libibumad", "3.2.39.0 3.2.46.0 3 3.9.9", "3.2.46.0", {"utility"}),
    ],
)
def test_the_highest_version_counts(tmp_path: Path, name: str, versions: str, own: str, capabilities: set[str]) -> None:
    for version in versions.split():
        hosts.plant_library(tmp_path, f"{FOLDER}/{name}.so.{version}", f"{name}.so.1")
    (library,) = files.libraries(driver(tmp_path))
    assert library.names == (f"{name}.so.{own}", f"{name}.so.1")
    assert set(library.capabilities) == capabilities


@pytest.mark.parametrize(
    "folder", ["/usr/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib", "/run/opengl-driver-32/lib", "/lib32"]
)
def test_32_bit_twins_stand_beside(tmp_path: Path, machine: str, folder: str) -> None:
    """Each word size has an own version of its own."""
    native = {"x86_64": 0x0303, "aarch64": 0x0A03}[machine]
    wanted = []
    for bits, at, flags, made_for in ((64, "/usr/lib64", native, machine), (32, folder, 0x0003, "i386")):
        for name in (f"libcuda.so.{VERSION}", f"libnvidia-egl-gbm.so.1.1.{bits}"):
            hosts.plant_library(tmp_path, f"{at}/{name}", "", made_for)
            wanted += [(bits, f"{at}/{name}", flags)] * (bits == 64 or machine == "x86_64")
    assert [(it.bits, it.path, it.flags) for it in files.libraries(driver(tmp_path))] == wanted


# The last two are NixOS's, and those of a package of Nix's as driver-root.
@pytest.mark.parametrize(
    "folder",
    [
        *("/usr/lib64", "/usr/lib64/nvidia", "/usr/lib", "/lib64", f"{FOLDER}/nvidia/current"),
        *("/run/opengl-driver/lib", "/lib"),
    ],
)
def test_the_usual_places_are_searched(tmp_path: Path, folder: str) -> None:
    hosts.plant_library(tmp_path, f"{folder}/libcuda.so.{VERSION}")
    (library,) = files.libraries(driver(tmp_path))
    assert library.path == f"{folder}/libcuda.so.{VERSION}"


def test_the_loaders_cache_knows_the_place_best(tmp_path: Path) -> None:
    for folder in ("/opt/driver/lib", FOLDER):
        hosts.plant_library(tmp_path, f"{folder}/libnvidia-ml.so.{VERSION}")
    assert next(iter(files.libraries(driver(tmp_path)))).path.startswith(f"{FOLDER}/")
    hosts.plant_cache(tmp_path, "/opt/driver/lib/libnvidia-ml.so.1")
    assert next(iter(files.libraries(driver(tmp_path)))).path.startswith("/opt/driver/lib/")
    hosts.plant(tmp_path, "etc/ld.so.cache", b"no cache at all")
    assert next(iter(files.libraries(driver(tmp_path)))).path.startswith(f"{FOLDER}/")


# Of each way that one has to its place; which capabilities bring which file is the vocabulary's.
@pytest.mark.parametrize(
    "target", ["/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/etc/vulkan/icd.d/nvidia_icd.MACHINE.json", OPENCL]
)
def test_configuration_comes_from_the_first_folder_that_has_it(tmp_path: Path, machine: str, target: str) -> None:
    target = target.replace("MACHINE", machine)
    name = target.removeprefix("/usr/share/").removeprefix("/etc/")
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[machine]
    hosts.plant(tmp_path, f"/usr/share/vulkan/icd.d/nvidia_icd.{other}.json", "")
    assert configuration(tmp_path) == ()
    of_roots = ("", "/share", "/run/opengl-driver/etc", "/run/opengl-driver/share")
    for folder in (*of_roots, "/usr/share", "/usr/local/share", "/etc"):
        hosts.plant(tmp_path, f"{folder}/{name}", "")
        (file,) = configuration(tmp_path)
        assert (file.path, file.target) == (f"{folder}/{name}", target)


def icd(library: str) -> str:
    """A manifest of Vulkan's; those of EGL and of layers name a library in the same way."""
    return f'{{\n "file_format_version": "1.0.1",\n "ICD": {{"library_path": "{library}", "api": "lib/1.4"}}\n}}\n'


@pytest.mark.parametrize(
    ("path", "text", "bare"),
    [
        (VULKAN, icd("/usr/lib64/libGLX_nvidia.so.0"), icd("libGLX_nvidia.so.0")),
        (VULKAN, icd("../../../lib64/libGLX_nvidia.so.0"), icd("libGLX_nvidia.so.0")),
        (VULKAN, icd(r"\/usr\/lib64\/libGLX_nvidia.so.0"), icd("libGLX_nvidia.so.0")),
        (VULKAN, icd("/srv/theirs/libGLX_nvidia.so.0"), icd("libGLX_nvidia.so.0")),
        (VULKAN, icd("libGLX_nvidia.so.0"), ""),
        (VULKAN, icd("/opt/vulkan/driver"), ""),
        (VULKAN, "", ""),
        (OPENCL, f"{FOLDER}/libnvidia-opencl.so.1\n", "libnvidia-opencl.so.1\n"),
        (OPENCL, "libnvidia-opencl.so.1\n", ""),
        # A script of X names no library of the loader's.
        ("/usr/share/X11/xorg.conf.d/10-nvidia.conf", 'ModulePath "/usr/lib64/libx.so"\n', ""),
    ],
)
def test_a_library_is_named_without_the_hosts_folder(tmp_path: Path, path: str, text: str, bare: str) -> None:
    hosts.plant(tmp_path, path, text)
    (file,) = configuration(tmp_path)
    assert (file.path, file.target, file.text) == (path, path, bare)


@pytest.mark.parametrize("size", [1 << 16, 7 << 20, 64 << 20])
def test_a_manifest_that_is_too_long_is_given_as_it_is(tmp_path: Path, size: int) -> None:
    """Of nothing but quotes, whose pieces are many more bytes."""
    hosts.plant(tmp_path, VULKAN, icd("/usr/lib64/libGLX_nvidia.so.0") + '"' * size)
    assert peak(lambda: configuration(tmp_path)) < 32 << 20
    assert [file.text for file in configuration(tmp_path)] == [""]


@pytest.mark.parametrize(
    "module",
    ["xorg/modules/drivers/nvidia_drv.so", "nvidia/xorg/nvidia_drv.so", "nvidia/current/nvidia_drv.so"]
    + ["xorg/modules/extensions/libglxserver_nvidia.so", "nvidia/xorg/libglxserver_nvidia.so"]
    + ["xorg/modules/updates/drivers/nvidia_drv.so", "xorg/modules/updates/extensions/libglxserver_nvidia.so"],
)
def test_modules_of_the_x_server_stay_where_they_are(tmp_path: Path, module: str) -> None:
    folder, _, name = f"/usr/lib64/{module}".rpartition("/")
    hosts.plant(tmp_path, f"{folder}/{name}.535.54.03", "")
    assert configuration(tmp_path) == ()
    hosts.plant(tmp_path, f"{folder}/{name}", "")
    (plain,) = configuration(tmp_path)
    assert (plain.path, plain.target) == (f"{folder}/{name}", f"{folder}/{name}")
    assert set(plain.capabilities) == GRAPHICS
    # Where the server that an image brings looks, below the folder that it was built with.
    below = {"nvidia_drv.so": "drivers", "libglxserver_nvidia.so": "extensions"}[name]
    assert plain.module == f"{below}/{name}"
    versioned = f"{folder}/{name}.{VERSION}"
    hosts.plant(tmp_path, versioned, "")
    assert [(file.path, file.target, file.module) for file in configuration(tmp_path)] == [
        (versioned, versioned, f"{below}/{name}.{VERSION}"),
        (versioned, f"{folder}/{name}", f"{below}/{name}"),
    ]


def firmware(tree: Path) -> tuple[inventory.DriverFile, ...]:
    return files.firmware(driver(tree), HostRoot(str(tree)))


def test_firmware_is_that_of_the_exact_version_and_from_where_the_kernel_takes_it(tmp_path: Path, machine: str) -> None:
    for name in ("535.54.03/gsp_ga10x.bin", f"{VERSION}/gsp.txt", f"{VERSION}/other.bin"):
        hosts.plant(tmp_path, f"/lib/firmware/nvidia/{name}", "")
    assert firmware(tmp_path) == ()
    targets = [f"/lib/firmware/nvidia/{VERSION}/gsp_{name}.bin" for name in ("ga10x", "tu10x")]
    for folder in ("", "/6.12.0-1", "/updates", "/updates/6.12.0-1"):
        paths = [target.replace("/firmware", f"/firmware{folder}") for target in targets]
        for path in paths:
            hosts.plant(tmp_path, path, "")
        assert firmware(tmp_path) == tuple([inventory.DriverFile(*pair, ()) for pair in zip(paths, targets)])


@pytest.mark.parametrize(
    ("said", "folder"),
    [("/var/firmware/\n", "/var/firmware"), ("\n", "/lib/firmware"), ("var/firmware\n", "/lib/firmware")]
    + [("/var/firmware\n/etc\n", "/lib/firmware"), ("/nowhere\n", "/lib/firmware")],
)
def test_firmware_comes_first_from_the_kernels_parameter(tmp_path: Path, said: str, folder: str) -> None:
    hosts.plant(tmp_path, "/sys/module/firmware_class/parameters/path", said)
    for top in ("/var/firmware", "/lib/firmware"):
        hosts.plant(tmp_path, f"{top}/nvidia/{VERSION}/gsp_ga10x.bin", "")
    target = f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    path = f"{folder}/nvidia/{VERSION}/gsp_ga10x.bin"
    assert firmware(tmp_path) == (inventory.DriverFile(path, target, ()),)


def test_what_only_looks_like_a_file_is_none(tmp_path: Path) -> None:
    (tmp_path / FOLDER[1:] / f"libcuda.so.{VERSION}").mkdir(parents=True)
    os.mkfifo(tmp_path / FOLDER[1:] / f"libnvidia-ml.so.{VERSION}")
    (tmp_path / FOLDER[1:] / f"libnvidia-cfg.so.{VERSION}").symlink_to("/nothing")
    hosts.plant_library(tmp_path.parent, f"outside-{tmp_path.name}")
    (tmp_path / FOLDER[1:] / f"libnvcuvid.so.{VERSION}").symlink_to(f"../../../../outside-{tmp_path.name}")
    assert files.libraries(driver(tmp_path)) == {}


def test_a_folder_of_links_gives_all_that_they_lead_to(tmp_path: Path) -> None:
    """Each into a folder of its own; the loader's cache names the links."""
    for name, soname in (("libcuda", "libcuda.so.1"), ("libnvidia-ml", "libnvidia-ml.so.1"), ("libnvcuvid", "")):
        hosts.plant_library(tmp_path, f"/opt/store/{name}/{name}.so.{VERSION}", soname or f"{name}.so.1")
        for link in (f"{name}.so.{VERSION}", f"{name}.so.1", f"{name}.so"):
            hosts.link(tmp_path, f"/opt/farm/{link}", f"/opt/store/{name}/{name}.so.{VERSION}")
    hosts.plant_cache(tmp_path, "/opt/farm/libcuda.so.1")
    found = {it.soname: it for it in files.libraries(driver(tmp_path))}
    assert found.keys() == {"libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1"}
    assert "libnvidia-ml.so" in found["libnvidia-ml.so.1"].names


@pytest.mark.parametrize("text", ["/etc/alternatives/libcuda.so.1", "/srv/theirs/libcuda.so.1", "/proc/self/fd/9"])
def test_alternatives_that_lead_astray_lead_nowhere(tmp_path: Path, text: str) -> None:
    """In a circle, or to a folder that others than root may write to: of that a sentence tells."""
    hosts.plant_library(tmp_path, f"/srv/theirs/libcuda.so.{VERSION}", "libcuda.so.1")
    (tmp_path / "srv/theirs/libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    (tmp_path / "srv/theirs").chmod(0o777)
    hosts.link(tmp_path, "/etc/alternatives/libcuda.so.1", text)
    hosts.link(tmp_path, f"{FOLDER}/libcuda.so.1", "/etc/alternatives/libcuda.so.1")
    hosts.plant_cache(tmp_path, f"{FOLDER}/libcuda.so.1")
    found = driver(tmp_path)
    assert files.libraries(found) == {}
    assert len(found.untrusted) == text.startswith("/srv")


@pytest.mark.parametrize(
    "name", [f"libnvidia-{{}}.so.{VERSION}", "libnvidia-egl-gbm.so.1.1.{}", f"libnvidia-{{}}.so.{VERSION}.1"]
)
def test_of_a_hundred_thousand_files_few_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hosts.plant_library(tmp_path, f"{FOLDER}/libcuda.so.{VERSION}", "libcuda.so.1")
    there = [*[name.format(number) for number in range(100_000)], f"libcuda.so.{VERSION}"]
    identity_of = mock.Mock(wraps=elf.identity_of)
    monkeypatch.setattr(HostRoot, "names", lambda _, path: there if path == FOLDER else [])
    monkeypatch.setattr(elf, "identity_of", identity_of)
    assert [it.file for it in files.libraries(driver(tmp_path))] == [f"libcuda.so.{VERSION}"]
    assert 0 < identity_of.call_count <= 300


LIBCUDA = hosts.elf("libcuda.so.1")


@pytest.mark.parametrize("content", [b"", b"no elf", hosts.elf("libcuda.so.1", machine=8), LIBCUDA[:64], LIBCUDA[:-9]])
def test_what_is_no_library_of_this_machine_neither_counts_nor_hides_one(tmp_path: Path, content: bytes) -> None:
    name = f"libcuda.so.{VERSION}"
    hosts.plant(tmp_path, f"{FOLDER}/{name}", content)
    assert files.libraries(driver(tmp_path)) == {}
    hosts.plant_library(tmp_path, f"/usr/lib64/{name}", "libcuda.so.1")
    assert [item.path for item in files.libraries(driver(tmp_path))] == [f"/usr/lib64/{name}"]
