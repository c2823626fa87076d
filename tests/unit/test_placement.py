# SPDX-License-Identifier: Apache-2.0
"""Where the driver's files go, what an image's names can do about it, and the sentences about all that is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.cli import leftout
from oci_gpu_hook.container.layout import COMPAT_FOLDER, MUSL, Layout
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.planning import placement, plan
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.words import CAPABILITIES
from tests.unit.containers import CONTAINER, planned
from tests.unit.linear import is_linear
from tests.vocabulary.host import LAYOUT, everything

COMPUTE = Request("env", ("1",), ("utility", "compute"))
EVERYTHING = Request("env", ("all",), CAPABILITIES, features=("gds", "nvswitch"))
NEWER = "libcuda.so.999.10.1"


def compat(*names: str, request: Request = COMPUTE, inventory: DriverInventory | None = None) -> list[str]:
    """The names of the image's folder that go into its loader's cache."""
    layout = LAYOUT._replace(compat_names=names)
    entries = placement.forward_compatibility(layout, request, inventory or everything())
    for entry in entries:
        assert entry.path == f"{COMPAT_FOLDER}/".encode() + entry.soname
    return [entry.soname.decode() for entry in entries]


def test_an_images_newer_cuda_is_named() -> None:
    others = ("libcudadebugger.so.1", "libnvidia-nvvm.so.4")
    assert compat("libcuda.so", "libcuda.so.1", NEWER, *others, "libc.so.6") == ["libcuda.so.1", *others]


@pytest.mark.parametrize(
    "names",
    [
        (),
        # The host's own branch, and an older one; what is no version is of branch 0.
        ("libcuda.so.580.999.99",),
        ("libcuda.so.470.1",),
        ("libcuda.so.-999.1",),
        ("libcuda.so.٩٩٩.1",),
        ("libcuda.so.²99.1",),
        ("libcuda.so.999999.1",),
        ("libcuda.so." + "9" * 5_000 + ".1",),
        # Two of them: nobody knows which the others belong to.
        (NEWER, "libcuda.so.998.1.1"),
        (NEWER, "libcuda.so.1.old"),
    ],
)
def test_it_is_not_named_where_it_is_not_one_and_newer(names: tuple[str, ...]) -> None:
    assert compat("libcuda.so.1", *names) == []


def test_it_is_for_compute_only_and_for_hosts_with_native_libraries() -> None:
    names = ("libcuda.so.1", NEWER)
    assert compat(*names, request=COMPUTE._replace(capabilities=("utility",))) == []
    small = tuple([library for library in everything().libraries if library.bits == 32])
    assert compat(*names, inventory=everything()._replace(libraries=small)) == []


@pytest.mark.parametrize(
    "name",
    ["libcuda.so.1\n", "libcuda\x1b[2J.so.1", "libcuda\x00.so.1", "libcuda/../x.so.1", "libcuda x.so.1",
     "libcudа.so.1", "libcuda\udcff.so.1", "libcuda.so.١", "libcuda.so.²", "libcuda.so.", "libcuda.so.1.so.1",
     "libcuda.so.-1", "../libcuda.so.1", "LIBCUDA.so.1", "libnvidiax.so.1"],
)  # fmt: skip
def test_a_hostile_name_is_never_named(name: str) -> None:
    assert compat(name, "libcuda.so.1", NEWER) in (["libcuda.so.1"], [])


@given(st.lists(st.one_of(st.text(), st.from_regex(r"lib(cuda|nvidia-).*\.so\..*", fullmatch=True))))
def test_whatever_an_image_holds_only_libraries_names_are_taken(names: list[str]) -> None:
    for name in compat("libcuda.so.1", NEWER, *names):
        assert name.isascii() and name.isprintable() and "/" not in name and " " not in name
        assert name.startswith(("libcuda", "libnvidia-"))


def test_the_images_own_come_before_the_hosts_of_the_same_name_and_are_not_mounted() -> None:
    layout = LAYOUT._replace(compat_names=("libcuda.so.1", NEWER))
    libraries = placement.brought(layout, COMPUTE, everything())
    newer = placement.forward_compatibility(layout, COMPUTE, everything())
    entries = placement.entries(libraries)
    (cache,) = placement.ld_cache(layout, newer, entries)
    paths = [path for soname, path in cache.entries() if soname == "libcuda.so.1"]
    assert paths[0] == f"{COMPAT_FOLDER}/libcuda.so.1" and len(paths) > 1
    assert "first, as they are newer" in cache.reason
    mounts = placement.libraries(libraries)
    assert mounts and not [one for one in mounts if COMPAT_FOLDER in one.source + one.target]
    musl = layout._replace(loader=MUSL)
    assert placement.ld_cache(musl, newer, entries) == ()


def test_the_allocator_in_gbms_folder_has_one_name_that_is_not_its_files() -> None:
    mounts = placement.libraries(placement.brought(LAYOUT, EVERYTHING, everything()))
    (gbm,) = [mount for mount in mounts if "/gbm/" in mount.target]
    assert [path.rpartition("/")[2] for path in gbm.paths()] == ["nvidia-drm_gbm.so"]


def test_time_grows_with_an_images_folder_and_no_faster() -> None:
    folders = {entries: (NEWER, *[f"libcuda-{number}.so.1" for number in range(entries)]) for entries in (100, 1_000)}
    assert is_linear(lambda entries: compat(*folders[entries]))


def test_every_file_of_every_request_has_its_capability_as_its_reason() -> None:
    files = placement.files(EVERYTHING, everything())
    assert {mount.target for mount in files} >= {"/etc/cufile.json", "/usr/bin/nvidia-smi"}
    assert "/etc/cufile.json" not in {mount.target for mount in placement.files(COMPUTE, everything())}
    for mount in files:
        assert mount.reason.partition(": ")[2] in (*EVERYTHING.capabilities, "gds", "every request")
        assert ("noexec" in mount.options) is ("/bin/" not in mount.target)


def left_out(request: Request, layout: Layout = LAYOUT, inventory: DriverInventory | None = None) -> tuple[str, ...]:
    """The sentences about all that a container does not get."""
    inventory = inventory or everything()
    return leftout.sentences(planned(request, inventory, layout)._replace(found=plan.Found(inventory)))


def test_whoever_asks_for_all_misses_nothing() -> None:
    assert left_out(EVERYTHING) == ()


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


def test_a_container_with_the_hosts_dev_has_all_its_gpus() -> None:
    sentences = left_out(COMPUTE, LAYOUT._replace(dev_is_hosts=True))
    assert not [line for line in sentences if line.startswith(("GPU", "MIG"))]


def test_a_plan_without_a_request_leaves_nothing_out() -> None:
    made = plan.make_labels(CONTAINER, LAYOUT, plan.Labels())._replace(found=plan.Found(everything()))
    assert leftout.sentences(made) == ()


def test_no_folder_for_a_word_size_is_none_for_its_subfolders() -> None:
    library = everything().libraries[0]._replace(bits=32, folder="", subfolder="gbm")
    assert placement.folder_of(LAYOUT._replace(library_folder_32=""), library) == ""
    assert placement.folder_of(LAYOUT._replace(library_folder_32="/usr/lib32"), library) == "/usr/lib32/gbm"
