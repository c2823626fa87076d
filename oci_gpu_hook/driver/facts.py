# SPDX-License-Identifier: Apache-2.0
"""What NVML says of a host's GPUs, as values.  `node.gpus.nvml` asks it; must not be loaded by a start."""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple


class MigFacts(NamedTuple):
    """One MIG device: number on its GPU, UUID, GPU instance, compute instance and profile."""

    number: int
    uuid: str
    gi: int
    ci: int
    profile: str


class GpuFacts(NamedTuple):
    """One GPU, see `proc.Gpu`; in_mig_mode: it computes by its MIG devices only."""

    uuid: str
    bus_id: str
    compute_capability: str
    brand: str
    mig: tuple[MigFacts, ...]
    in_mig_mode: bool = False
    peers: tuple[str, ...] = ()


class Facts(NamedTuple):
    """NVML's whole answer; versions are written as ``12.4``."""

    driver_version: str
    cuda_version: str
    gpus: tuple[GpuFacts, ...]
