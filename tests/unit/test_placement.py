# SPDX-License-Identifier: Apache-2.0
"""Where the driver's files go, what an image's names can do about it, and what is told of all that is left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_gpu_hook import ldmerge, leftout, placement, plan, provision, request, selection
from oci_gpu_hook.config import Config
from oci_gpu_hook.operations import mount_paths
from oci_gpu_hook.request import Request
from oci_gpu_hook.rootfs import Container
from tests.unit import hosts
from tests.unit.linear import is_linear
from tests.vocabulary.host import CONTAINER, everything

COMPUTE = Request("env", ("1",), ("utility", "compute"))
EVERYTHING = Request("env", ("all",), request.CAPABILITIES, features=("gds", "nvswitch"))
NEWER = "libcuda.so.999.10.1"
COMPAT = placement.FORWARD_COMPATIBILITY


def compat(*names: str, asked: Request = COMPUTE, driver: str = hosts.VERSION) -> list[str]:
    """The names of the image's folder that go into its loader's cache."""
    container = CONTAINER._replace(compat_names=names)
    host = everything()._replace(driver_version=driver)
    entries = placement.forward_compatibility(container, asked, host)
    for entry in entries:
        assert entry.path == f"{COMPAT}/".encode() + entry.soname
    return [entry.soname.decode() for entry in entries]


def test_an_images_newer_cuda_is_named() -> None:
    names = (
        "libcuda.so",
        "libcuda.so.1",
        NEWER,
        "libcudadebugger.so.1",
        "libnvidia-nvvm.so.4",
        "libc.so.6",
    )
    assert compat(*names) == ["libcuda.so.1", "libcudadebugger.so.1", "libnvidia-nvvm.so.4"]


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("libcuda.so.1",),
        # The host's own branch, and older ones; a version that is none is of branch 0.
        ("libcuda.so.1", f"libcuda.so.{hosts.VERSION}"),
        ("libcuda.so.1", "libcuda.so.580.999.99"),
        ("libcuda.so.1", "libcuda.so.470.1"),
        ("libcuda.so.1", "libcuda.so.x.1"),
        ("libcuda.so.1", "libcuda.so.-999.1"),
        ("libcuda.so.1", "libcuda.so.٩٩٩.1"),
        ("libcuda.so.1", "libcuda.so.²99.1"),
        ("libcuda.so.1", "libcuda.so.999999.1"),
        ("libcuda.so.1", "libcuda.so." + "9" * 5_000 + ".1"),
        ("libcuda.so.1", "libcuda.so..999"),
        # Two of them: nobody knows which the others belong to.
        ("libcuda.so.1", NEWER, "libcuda.so.998.1.1"),
        ("libcuda.so.1", NEWER, "libcuda.so.1.old"),
    ],
)
def test_it_is_not_named_where_it_is_not_one_and_newer(names: tuple[str, ...]) -> None:
    assert compat(*names) == []


def test_it_is_for_compute_only_and_for_hosts_with_native_libraries() -> None:
    assert compat("libcuda.so.1", NEWER, asked=COMPUTE._replace(capabilities=("utility",))) == []
    host = everything()
    small = host._replace(libraries=tuple([lib for lib in host.libraries if lib.bits == 32]))
    container = CONTAINER._replace(compat_names=("libcuda.so.1", NEWER))
    assert placement.forward_compatibility(container, COMPUTE, small) == ()


@pytest.mark.parametrize(
    "name",
    ["libcuda.so.1\n", "libcuda\n.so.1", "libcuda\x1b[2J.so.1", "libcuda\x7f.so.1", "libcuda\x00.so.1",
     "libcuda/../x.so.1",
     "libcuda/x.so.1", "libcuda x.so.1", "libcuda\\.so.1", "libcuda'.so.1", "libcudа.so.1", "libcuda\udcff.so.1",
     "libcuda.so.١", "libcuda.so.²", "libcuda.so.", "libcuda.so.1.so.1", "libcuda.so.-1", "../libcuda.so.1", "..",
     "libnvidia-\r.so.1", "LIBCUDA.so.1", "ld-linux-x86-64.so.2", "libc.so.6", "libnvidiax.so.1"],
)  # fmt: skip
def test_a_hostile_name_is_never_named(name: str) -> None:
    assert compat(name, "libcuda.so.1", NEWER) in (["libcuda.so.1"], [])


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.text(), st.from_regex(r"lib(cuda|nvidia-).*\.so\..*", fullmatch=True)))
)
def test_whatever_an_image_holds_only_libraries_names_are_taken(names: list[str]) -> None:
    for name in compat("libcuda.so.1", NEWER, *names):
        assert name.isascii() and name.isprintable() and "/" not in name and " " not in name
        assert name.startswith(("libcuda", "libnvidia-"))


def test_a_library_comes_under_its_names_and_no_other() -> None:
    """The allocator in gbm's folder has one that is not its file's."""
    found = placement.given(CONTAINER, EVERYTHING, everything())
    wanted = [f"{folder}/{name}" for library, folder, _ in found for name in library.names]
    assert any(path.endswith("/gbm/nvidia-drm_gbm.so") for path in wanted)
    assert [path for mount in placement.libraries(found) for path in mount_paths(mount)] == wanted


def test_nothing_of_the_image_is_mounted() -> None:
    container = CONTAINER._replace(compat_names=("libcuda.so.1", NEWER))
    found = placement.libraries(placement.given(container, COMPUTE, everything()))
    assert found and not [mount for mount in found if COMPAT in mount.source + mount.target]


def test_the_images_own_come_before_the_hosts_of_the_same_name() -> None:
    container = CONTAINER._replace(compat_names=("libcuda.so.1", NEWER))
    libraries = placement.given(container, COMPUTE, everything())
    (cache,) = placement.ld_cache(container, COMPUTE, everything(), libraries)
    paths = [
        entry.path.decode()
        for entry in ldmerge.entries_of(cache.additions)
        if entry.soname == b"libcuda.so.1"
    ]
    assert paths[0] == f"{COMPAT}/libcuda.so.1" and len(paths) > 1
    assert "first, as they are newer" in cache.reason
    musl = container._replace(loader="musl")
    assert placement.ld_cache(musl, COMPUTE, everything(), libraries) == ()


def test_time_grows_with_an_images_folder_and_no_faster() -> None:
    folders = {
        entries: (NEWER, *[f"libcuda-{number}.so.1" for number in range(entries)])
        for entries in (1_000, 10_000)
    }
    assert is_linear(lambda entries: compat(*folders[entries]))
    assert len(compat(*folders[10_000])) == 10_000


def test_every_file_of_every_request_has_its_capability_as_its_reason() -> None:
    files = placement.files(EVERYTHING, everything())
    assert {mount.target for mount in files} >= {"/etc/cufile.json", "/usr/bin/nvidia-smi"}
    assert "/etc/cufile.json" not in {
        mount.target for mount in placement.files(COMPUTE, everything())
    }
    for mount in files:
        assert mount.reason.partition(": ")[2] in (*EVERYTHING.capabilities, "gds", "every request")
        assert ("noexec" in mount.options) is ("/bin/" not in mount.target)


def told(wanted: Request, container: Container = CONTAINER) -> tuple[tuple[str, ...], plan.Plan]:
    host = everything()
    chosen = selection.select(wanted, host)
    given = provision.make(container, wanted, chosen, host)
    made = plan.make(container, wanted, given, Config(), None)
    return leftout.sentences(made, host), made


def test_whoever_asks_for_all_misses_nothing() -> None:
    assert told(EVERYTHING)[0] == ()


def test_what_is_left_out_is_told_with_its_reason() -> None:
    sentences, _ = told(COMPUTE)
    assert sentences[:2] == (
        "GPU 0, NVIDIA H100 80GB HBM3: not asked for",
        "MIG device 1/0 of GPU 0: not asked for",
    )
    (gds,) = [line for line in sentences if "cufile.json" in line]
    assert gds.endswith(": NVIDIA_GDS is not 'enabled' or not accepted")
    assert any(
        "graphics" in line and line.endswith("not in NVIDIA_DRIVER_CAPABILITIES or not allowed")
        for line in sentences
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
def test_a_32_bit_library_is_told_with_what_it_lacks(
    capabilities: tuple[str, ...], folder: str, why: str
) -> None:
    host = everything()
    cuda = next(lib for lib in host.libraries if lib.file.startswith("libcuda.so"))
    small = cuda._replace(path="/lib32/libcuda32.so", bits=32, capabilities=("compute",))
    host = host._replace(libraries=(*host.libraries, small))
    wanted = Request("env", ("none",), capabilities)
    container = CONTAINER._replace(library_folder_32=folder)
    chosen = selection.select(wanted, host)
    given = provision.make(container, wanted, chosen, host)
    made = plan.make(container, wanted, given, Config(), None)
    found = [line for line in leftout.sentences(made, host) if line.endswith(f": {why}")]
    assert bool(found) is bool(why)
    assert any("libcuda32.so" in line for line in found) is bool(why)


def test_a_container_with_the_hosts_dev_has_all_its_gpus() -> None:
    sentences, _ = told(COMPUTE, CONTAINER._replace(dev_is_hosts=True))
    assert not [line for line in sentences if line.startswith(("GPU", "MIG"))]


def test_a_plan_without_a_request_leaves_nothing_out() -> None:
    made = plan.make_labels(CONTAINER, None)
    assert leftout.sentences(made, everything()) == ()
