# SPDX-License-Identifier: Apache-2.0
"""The words of a request that more than one module needs: NVIDIA's variables, capabilities and features.  Data."""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.record import NamedTuple

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
CUDA_VERSION = "CUDA_VERSION"
REQUIRE_CUDA = "NVIDIA_REQUIRE_CUDA"
REQUIRE_JETPACK = "NVIDIA_REQUIRE_JETPACK"
MEMORY_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
MEMORY_REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"
VENDOR_PREFIX = "OCI_"  # of variables that vendors' files name, as oci-decorator's files did
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")  # the later one has precedence (CDI's SPEC.md, "CDI Spec directories")
MIG_MANAGEMENT = ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
CONTAINER_CLI = "nvidia-container-cli"  # the name by which others call us, and of a section of the settings
LONGEST_VALUE = 128 << 10  # the kernel takes no longer variable (execve(2), MAX_ARG_STRLEN)

# In place of device names: every device; driver files without a device; no request at all; what the node chooses.
ALL, NONE, VOID, ANY = "all", "none", "void", "any"

# "video" also brings the libraries of compute, and "display" those of graphics: the catalogue lists these for both.
CAPABILITIES = ("utility", "compute", "video", "graphics", "display", "ngx", "compat32")
DEFAULT_CAPABILITIES = ("utility", "compute")


class Feature(NamedTuple):
    """What a container can ask for beside GPUs: its CDI class, its variable, and how its nodes' paths begin."""

    name: str
    variable: str
    devices: tuple[str, ...]


FEATURES = (
    Feature("gds", "NVIDIA_GDS", ("/dev/nvidia-fs*",)),
    Feature("mofed", "NVIDIA_MOFED", ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm")),
    Feature("gdrcopy", "NVIDIA_GDRCOPY", ("/dev/gdrdrv",)),
    Feature("nvswitch", "NVIDIA_NVSWITCH", ("/dev/nvidia-nvswitch*",)),
)

# Who can fix a request, as the end of a sentence.
AUTHOR = "the container's author must fix it"
ADMINISTRATOR = "the administrator decides, in /etc/oci-gpu-hook.conf"
LONGEST_FLAG = 64
_FLAG = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def listed(environment: dict[str, str], variable: str) -> list[str]:
    """The entries of a comma list in a variable; RequestError if it is longer than the kernel takes."""
    value = environment.get(variable, "")
    if len(value) > LONGEST_VALUE:
        raise RequestError(f"{variable} is longer than {LONGEST_VALUE >> 10} KiB", AUTHOR)
    return items(value)


def items(value: str) -> list[str]:
    return [item for item in [part.strip() for part in value.split(",")] if item]


def is_flag(text: str) -> bool:
    rest = text[len(VENDOR_PREFIX) :]
    return text.startswith(VENDOR_PREFIX) and bool(rest) and len(text) <= LONGEST_FLAG and _FLAG.issuperset(rest)
