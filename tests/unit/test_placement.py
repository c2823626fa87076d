# SPDX-License-Identifier: Apache-2.0
"""Where the driver's files go that the goldens of test_plan.py have not, and what is said of all that is left out."""

from __future__ import annotations

import pytest

from oci_gpu_hook.cli import plantext
from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.driver.inventory import DriverFile, DriverInventory
from oci_gpu_hook.operations import LdCache, Mount, Symlink, Tmpfs
from oci_gpu_hook.planning import plan, provision
from oci_gpu_hook.planning.provision import FOLDER
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.words import CAPABILITIES
from tests.unit.containers import ALPINE, CONTAINER, planned
from tests.vocabulary.host import LAYOUT, everything

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
