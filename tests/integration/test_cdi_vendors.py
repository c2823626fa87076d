# SPDX-License-Identifier: Apache-2.0
"""podman with CDI specs of ours, for NVIDIA's and other vendors' devices: a container has what the hook alone gives it.

podman 4.3, the oldest that is tested, resolves the devices, makes the spec's edits and starts the spec's hook.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.engines import cdi_devices
from tests.integration.inside import REFRESH, Seen, look_podman

KINDS = {
    "OCI_AMD": "amd.com/gpu",
    "OCI_INTEL": "intel.com/gpu",
    "OCI_HABANA": "habana.ai/gaudi",
    "OCI_NEURON": "aws.amazon.com/neuron",
    "OCI_RDMA": "openfabrics.org/hca",
    "OCI_SOLARFLARE": "amd.com/onload",
    "OCI_XRT": "xilinx.com/fpga",
    "NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu",
}
EVERYBODYS = ("amd", "intel", "habana", "neuron", "rdma", "onload", "xrt")
GENERATE = "oci-gpu-hook cdi generate --vendor {flag} --output /etc/cdi/{flag}.{form}\n"
NVIDIAS = "{refresh}oci-gpu-hook cdi generate --output /etc/cdi/nvidia.{form}\n"
# Every file that a vendor's has, and its environment.  Times are those of a copy, and what runtimes make has none.
LOOK = """
env >/environment
nvidia-smi -L
/app/cuda
stat -c '%n %F %t:%T %a %u:%g' /dev/nvidia* /dev/dri/*
find /proc/driver/nvidia | sort
cat /proc/driver/nvidia/params
cd /usr/bin && stat -c '%A %u:%g %s %n' *
find /opt /etc/OpenCL /etc/libibverbs.d /usr/lib /usr/lib64 /usr/libexec /usr/share/libdrm -type f 2>/dev/null |
    while read -r path; do stat -c '%A %u:%g %s %n' "$path"; done
"""


def _generate(flags: tuple[str, ...], form: str = "yaml") -> str:
    lines = [NVIDIAS if flag.startswith("NVIDIA") else GENERATE for flag in flags]
    return "".join([line.format(flag=flag, form=form, refresh=REFRESH) for line, flag in zip(lines, flags)])


def _devices(asked: dict[str, str]) -> str:
    names = [f"{KINDS[flag]}={name}" for flag, text in asked.items() for name in text.split(",")]
    return cdi_devices(*names)


def _environment(root: Path) -> dict[str, str]:
    file = root / "environment"
    lines = file.read_text().splitlines()
    file.unlink()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize(
    ("runtime", "cgroup", "asked"),
    [
        ("runc", "v2", {"OCI_AMD": "0"}),
        ("crun", "v1", {"OCI_RDMA": "mlx5_1", "OCI_NEURON": "neuron0", "OCI_HABANA": "accel2"}),
        ("crun", "v2", dict.fromkeys([flag for flag in KINDS if flag.startswith("OCI_")], "all")),
        ("runc", "v1", {"OCI_XRT": "0000:e7:00.1", "OCI_INTEL": "renderD131,0"}),
        ("runc", "v2", {"NVIDIA_VISIBLE_DEVICES": "0", "OCI_RDMA": "0"}),
        ("runc", "v2", {"NVIDIA_VISIBLE_DEVICES": "all"}),
        ("runc", "v1", {"NVIDIA_VISIBLE_DEVICES": "0:1"}),
        ("crun", "v1", {"NVIDIA_VISIBLE_DEVICES": "GPU-e8a75d20-1f9c-4b63-8d7e-30b5c9f2614a"}),
        ("crun", "v2", {"NVIDIA_VISIBLE_DEVICES": "1,0:0,0:1"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value,
)
def test_a_container_has_the_same_by_cdi_and_by_the_hook(
    root: Path, runtime: str, cgroup: str, asked: dict[str, str]
) -> None:
    node: dict[str, Any] = {"description": "none", "vendors": EVERYBODYS}
    gpus = asked.get("NVIDIA_VISIBLE_DEVICES", "")
    if gpus:
        node = {"description": "h100x8" if "OCI_RDMA" in asked else "h100mig", "vendors": ("rdma",)}
    how = {"runtime": runtime, "cgroup": cgroup, **node}
    before = _generate(tuple(asked), "json" if runtime == "crun" else "yaml")
    # A spec's hook checks what the image requires.
    required = "--env 'NVIDIA_REQUIRE_CUDA=cuda>=13'"
    by_cdi = look_podman(root, f"{_devices(asked)} {required}", LOOK, before=before, **how)
    given = _environment(root)
    options = " ".join(f"--env {flag}={names}" for flag, names in asked.items())
    options += " --env NVIDIA_DRIVER_CAPABILITIES=all" if gpus else ""
    refresh = REFRESH if node["description"] != "none" else ""
    by_hook = look_podman(root, options, LOOK, before=refresh, **how)
    _environment(root)
    _agree(by_cdi, by_hook)
    assert {given[flag] for flag in asked} == {"void"}
    if gpus:
        # nvidia-smi lists those MIG devices whose capabilities it can open.
        count, mig = (2, 4) if gpus == "all" else (2, 2) if "," in gpus else (1, gpus.count(":"))
        assert f"cuInit 0, {count} devices" in by_cdi.printed
        assert (by_cdi.printed.count("(UUID: GPU-"), by_cdi.printed.count("(UUID: MIG-")) == (count, mig)
        assert by_cdi.libraries["libcuda.so.1", 64]
    if "OCI_SOLARFLARE" in asked:
        assert given["LD_PRELOAD"] == "libonload.so"


def _agree(by_cdi: Seen, by_hook: Seen) -> None:
    assert by_cdi.nodes and by_cdi.nodes == by_hook.nodes
    assert by_cdi.allowed and by_cdi.allowed == by_hook.allowed
    assert by_cdi.denied and by_cdi.denied == by_hook.denied
    # Of a library that two vendors bring, whose comes first is whose hook came last.
    assert {key: {*it} for key, it in by_cdi.libraries.items()} == {key: {*it} for key, it in by_hook.libraries.items()}
    assert by_cdi.mounts == by_hook.mounts
    assert by_cdi.printed == by_hook.printed
