# SPDX-License-Identifier: Apache-2.0
"""Other vendors' drivers beside NVIDIA's on a simulated node: one function each, which says what it adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..description import Description
from ..tegra import tegra, thor
from ..wsl import wsl
from .accelerators import amd, habana, intel, mi300, neuron, xrt
from .additions import Additions
from .decorator import nvidia_decorator
from .networks import onload, rdma

VENDORS: dict[str, Callable[[Additions], None]] = {
    "amd": amd,
    "mi300": mi300,
    "intel": intel,
    "habana": habana,
    "neuron": neuron,
    "rdma": rdma,
    "onload": onload,
    "xrt": xrt,
    "nvidia-decorator": nvidia_decorator,
}

# What a board has beside NVIDIA's module.
BOARDS: dict[str, Callable[[Additions], None]] = {"thor": thor}

# What a machine is in place of a server with NVIDIA's driver.
PLATFORMS: dict[str, Callable[[Additions], None]] = {"tegra": tegra, "wsl": wsl}


def collect(names: Iterable[str], node: Description, library_folder: str, free: Iterator[int]) -> Additions:
    """What these vendors add to a node, in their order; free: majors that no driver has."""
    found = Additions(node, library_folder, free)
    for name in names:
        {**VENDORS, **BOARDS, **PLATFORMS}[name](found)
    return found
