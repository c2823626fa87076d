# SPDX-License-Identifier: Apache-2.0
"""Where the driver's files go, what an image's names can do about it, and the sentences about all that is left out."""

from __future__ import annotations

import pytest

from oci_gpu_hook.cli import plantext
from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.driver.inventory import DriverFile, DriverInventory
from oci_gpu_hook.operations import Cover, LdCache, Mount, Symlink, Tmpfs
from oci_gpu_hook.planning import plan, provision
from oci_gpu_hook.planning.provision import FOLDER
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.words import CAPABILITIES
from tests.unit.containers import ALPINE, CONTAINER, planned
from tests.vocabulary.host import LAYOUT, everything

COMPUTE = Request("env", ("1",), ("utility", "compute"))
GRAPHICS = Request("env", ("1",), ("graphics",))
EVERYTHING = Request("env", ("all",), CAPABILITIES, features=("gds", "nvswitch"))
LIB64 = f"{FOLDER}/lib64"


def test_the_allocator_in_gbms_folder_has_one_name_that_is_not_its_files() -> None:
    operations = planned(EVERYTHING, everything(), LAYOUT).operations
    (gbm,) = [it for it in operations if isinstance(it, Mount) and "/gbm/" in it.target]
    assert gbm.paths() == (f"{LIB64}/gbm/nvidia-drm_gbm.so",)
    # libgbm looks in the folder of its own distribution, and there alone.
    (link,) = [it for it in operations if isinstance(it, Symlink) and "/gbm/" in it.path]
    assert (link.path, link.to, link.covers) == (f"{LAYOUT.library_folder}/gbm/nvidia-drm_gbm.so", gbm.target, True)


def test_vdpau_is_found_by_the_cache() -> None:
    """libvdpau opens libvdpau_nvidia.so by that name alone if its own folder has no driver."""
    operations = planned(EVERYTHING, everything(), LAYOUT).operations
    (cache,) = [it for it in operations if isinstance(it, LdCache)]
    assert ("libvdpau_nvidia.so", f"{LIB64}/libvdpau_nvidia.so") in cache.entries()
    (vdpau,) = [it for it in operations if isinstance(it, Mount) and "libvdpau" in it.target]
    assert {path.rpartition("/")[0] for path in vdpau.paths()} == {LIB64}


def files_at(request: Request, folder: str, inventory: DriverInventory | None = None) -> dict[str, Mount | Symlink]:
    """What of the driver's files but libraries lies at each path, in a container with this folder."""
    found, _ = provision.file_operations(request, inventory or everything(), folder)
    return {it.target if isinstance(it, Mount) else it.path: it for it in found}


@pytest.mark.parametrize("folder", [FOLDER, ""], ids=["glibc", "musl"])
def test_every_file_of_every_request_has_its_capability_as_its_reason(folder: str) -> None:
    files = files_at(EVERYTHING, folder)
    assert {*files} >= {"/etc/cufile.json", "/usr/bin/nvidia-smi"}
    assert "/etc/cufile.json" not in files_at(COMPUTE, folder)
    for it in files.values():
        assert it.reason.partition(": ")[2] in (*EVERYTHING.capabilities, "gds", "every request")
    for mount in [it for it in files.values() if isinstance(it, Mount)]:
        is_code = "/bin/" in mount.target or "/xorg/modules/" in mount.source
        assert ("noexec" in mount.options) is not is_code


def test_where_programs_look_for_a_file_a_link_leads_to_it() -> None:
    """But to firmware and folders, which are mounted there."""
    udev = DriverFile("/run/udev", "/run/udev", ("gds",), folder=True)
    inventory = everything()._replace(files=(*everything().files, udev))
    fixed, files = files_at(EVERYTHING, "", inventory), files_at(EVERYTHING, FOLDER, inventory)
    led = {path: it.to for path, it in files.items() if isinstance(it, Symlink)}
    assert {path for path in fixed if path not in led} == {"/run/udev", *[it.target for it in inventory.firmware]}
    for path, it in fixed.items():
        assert isinstance(it, Mount)
        assert files[led.get(path, path)] == (it._replace(target=led[path]) if path in led else it)
        assert path not in led or files[path] == Symlink(path, led[path], False, it.reason, covers=True)
    assert led.items() >= {
        ("/usr/bin/nvidia-smi", f"{FOLDER}/bin/nvidia-smi"),
        ("/usr/share/nvidia/nvoptix.bin", f"{FOLDER}/share/nvidia/nvoptix.bin"),
        ("/etc/OpenCL/vendors/nvidia.icd", f"{FOLDER}/etc/OpenCL/vendors/nvidia.icd"),
    }


def test_the_folder_is_the_first_thing_and_nothing_else_of_the_driver_is_beside_it() -> None:
    first, *operations = planned(EVERYTHING, everything(), LAYOUT).operations
    assert isinstance(first, Tmpfs)
    assert (first.path, first.options, first.required) == (FOLDER, provision.READ_ONLY_DATA, True)
    outside = [it for it in operations if isinstance(it, Mount) and not it.target.startswith((f"{FOLDER}/", "/proc/"))]
    assert [it.target for it in outside] == [it.target for it in everything().firmware]
    (cache,) = [it for it in operations if isinstance(it, LdCache)]
    assert (cache.path, cache.folders) == ("/etc/ld.so.cache", (FOLDER,))


def test_beside_a_volume_at_usr_local_the_folder_is_elsewhere() -> None:
    first, *operations = planned(EVERYTHING, everything(), LAYOUT._replace(local_is_volume=True)).operations
    assert isinstance(first, Tmpfs) and first.path == "/usr/lib/oci-gpu-hook/nvidia"
    inside = [it.target for it in operations if isinstance(it, Mount) and "lib64" in it.target]
    assert inside and all(it.startswith(f"{first.path}/lib64/") for it in inside)
    links = [it.to for it in operations if isinstance(it, Symlink) and "nvidia" in it.to]
    assert links and all(it.startswith(f"{first.path}/") for it in links)
    (cache,) = [it for it in operations if isinstance(it, LdCache)]
    assert cache.folders == (first.path,) and {path.rpartition("/")[0] for _, path in cache.entries()} <= {
        f"{first.path}/{name}" for name in ("lib64", "lib")
    }


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


@pytest.mark.parametrize("own", ["/usr/lib/xorg/modules", f"{LAYOUT.library_folder}/xorg/modules", ""])
def test_modules_of_the_x_server_are_where_the_host_and_the_images_server_have_them(own: str) -> None:
    operations = planned(GRAPHICS, everything(), LAYOUT._replace(xorg_folder=own)).operations
    (module,) = [it for it in operations if isinstance(it, Mount) and "nvidia_drv" in it.source]
    assert (module.target, module.options) == (f"{FOLDER}/xorg/drivers/nvidia_drv.so", provision.READ_ONLY)
    links = [it.path for it in operations if isinstance(it, Symlink) and it.to == module.target and it.covers]
    assert links == [*dict.fromkeys([module.source, *([f"{own}/drivers/nvidia_drv.so"] if own else [])])]


def test_over_a_driver_in_the_images_own_library_folder_lies_ours() -> None:
    """LD_LIBRARY_PATH may name that folder, and goes before the loader's cache."""
    has_driver = LAYOUT._replace(has_driver=True)
    operations = planned(EVERYTHING, everything(), has_driver).operations
    (cover,) = [it for it in operations if isinstance(it, Cover)]
    paths = [path for it in operations if isinstance(it, Mount) for path in it.paths()]
    assert [*cover.files] == [path for path in paths if path.startswith(f"{LIB64}/") and "/gbm/" not in path]
    assert [*cover.paths()] == [path.replace(LIB64, LAYOUT.library_folder) for path in cover.files]
    assert not cover.required
    for layout in (LAYOUT, ALPINE._replace(has_driver=True)):
        assert not [it for it in planned(EVERYTHING, everything(), layout).operations if isinstance(it, Cover)]


def test_musl_has_each_file_where_it_is_looked_for_and_no_folder() -> None:
    operations = planned(EVERYTHING, everything(), ALPINE).operations
    assert not [it for it in operations if isinstance(it, (LdCache, Symlink)) and not it.path.startswith("/dev/")]
    paths = [it.path for it in operations if isinstance(it, Tmpfs)]
    paths += [path for it in operations if isinstance(it, Mount) for path in it.paths()]
    assert not [path for path in paths if path.startswith(FOLDER)]
    names = ("libcuda.so.1", "libvdpau_nvidia.so", "gbm/nvidia-drm_gbm.so")
    assert {*paths} >= {"/usr/bin/nvidia-smi", "/etc/OpenCL/vendors/nvidia.icd", *[f"/usr/lib/{it}" for it in names]}


def left_out(request: Request, layout: Layout = LAYOUT, inventory: DriverInventory | None = None) -> tuple[str, ...]:
    """The sentences about all that a container does not get."""
    inventory = inventory or everything()
    made = planned(request, inventory, layout)
    return plantext.missing(made._replace(provision=made.provision._replace(inventory=inventory)))


def test_whoever_asks_for_all_or_for_nothing_misses_nothing() -> None:
    assert left_out(EVERYTHING) == ()
    made = plan.Plan(CONTAINER, LAYOUT, None, (), (), provision=plan.Provision(inventory=everything()))
    assert plantext.missing(made) == ()


def test_what_is_left_out_is_named_with_its_reason() -> None:
    sentences = left_out(COMPUTE)
    assert sentences[:2] == ("GPU 0, NVIDIA H100 80GB HBM3: not asked for", "MIG device 1/0 of GPU 0: not asked for")
    (gds,) = [line for line in sentences if "cufile.json" in line]
    assert gds.endswith(": NVIDIA_GDS is not 'enabled' or not accepted")
    assert any(
        "graphics" in line and line.endswith("not in NVIDIA_DRIVER_CAPABILITIES or not allowed") for line in sentences
    )
    (twin,) = [line for line in sentences if "libcuda.so" in line]
    assert "compat32 and compute" in twin
    # A container with the host's /dev has all its GPUs.
    sentences = left_out(COMPUTE, LAYOUT._replace(dev_is_hosts=True))
    assert not [line for line in sentences if line.startswith(("GPU", "MIG"))]


@pytest.mark.parametrize(
    ("capabilities", "folder", "why"),
    [
        (("utility", "compute"), "/usr/lib", "compat32 and compute, not in NVIDIA_DRIVER_CAPABILITIES or not allowed"),
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
    request = Request("env", ("none",), capabilities)
    sentences = left_out(request, LAYOUT._replace(library_folder_32=folder), host)
    found = [line for line in sentences if line.endswith(f": {why}")]
    assert bool(found) is bool(why)
    assert any("libcuda32.so" in line for line in found) is bool(why)


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
