# SPDX-License-Identifier: Apache-2.0
"""Where the driver's files go, what an image's names can do about it, and the sentences about all that is left out."""

from __future__ import annotations

import pytest

from oci_gpu_hook.cli import shown
from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.planning import plan, provision
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.words import CAPABILITIES
from tests.unit.containers import CONTAINER, planned
from tests.vocabulary.host import LAYOUT, everything

COMPUTE = Request("env", ("1",), ("utility", "compute"))
EVERYTHING = Request("env", ("all",), CAPABILITIES, features=("gds", "nvswitch"))
NEWER = "libcuda.so.999.10.1"


def test_the_allocator_in_gbms_folder_has_one_name_that_is_not_its_files() -> None:
    mounts = provision.library_mounts(provision.brought(LAYOUT, EVERYTHING, everything()))
    (gbm,) = [mount for mount in mounts if "/gbm/" in mount.target]
    assert [path.rpartition("/")[2] for path in gbm.paths()] == ["nvidia-drm_gbm.so"]


def test_every_file_of_every_request_has_its_capability_as_its_reason() -> None:
    files = provision.file_mounts(EVERYTHING, everything())
    assert {mount.target for mount in files} >= {"/etc/cufile.json", "/usr/bin/nvidia-smi"}
    assert "/etc/cufile.json" not in {mount.target for mount in provision.file_mounts(COMPUTE, everything())}
    for mount in files:
        assert mount.reason.partition(": ")[2] in (*EVERYTHING.capabilities, "gds", "every request")
        assert ("noexec" in mount.options) is ("/bin/" not in mount.target)


def left_out(request: Request, layout: Layout = LAYOUT, inventory: DriverInventory | None = None) -> tuple[str, ...]:
    """The sentences about all that a container does not get."""
    inventory = inventory or everything()
    return shown.missing(planned(request, inventory, layout)._replace(inventory=inventory))


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
    made = plan.Plan(CONTAINER, LAYOUT, None, "", (), (), inventory=everything())
    assert shown.missing(made) == ()


def test_no_folder_for_a_word_size_is_none_for_its_subfolders() -> None:
    library = everything().libraries[0]._replace(bits=32, folder="", subfolder="gbm")
    assert provision.folder_of(LAYOUT._replace(library_folder_32=""), library) == ""
    assert provision.folder_of(LAYOUT._replace(library_folder_32="/usr/lib32"), library) == "/usr/lib32/gbm"
