# SPDX-License-Identifier: Apache-2.0
"""podman with CDI specs of other vendors' devices: a container has what the hook alone gives it for the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration import roots
from tests.integration.engines import Installed, cdi_devices, run_podman
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
NVIDIAS = f"{REFRESH}oci-gpu-hook cdi generate --output /etc/cdi/nvidia.yaml --capabilities compute,utility\n"
# Every file that a vendor's has, and its environment.  Times are those of a copy, and what runtimes make has none.
LOOK = """
env >/environment
cd /usr/bin && stat -c '%A %u:%g %s %n' *
find /opt /etc/OpenCL /etc/libibverbs.d /usr/lib /usr/lib64 /usr/libexec /usr/share/libdrm -type f 2>/dev/null |
    while read -r path; do stat -c '%A %u:%g %s %n' "$path"; done
"""
CRUN_SAYS = "--annotation run.oci.hooks.stderr={}"


@pytest.fixture()
def root(tmp_path: Path, driver: Path) -> Path:
    return roots.debian(tmp_path / "root", driver)


def _generate(flags: tuple[str, ...], form: str = "yaml") -> str:
    lines = [NVIDIAS if flag.startswith("NVIDIA") else GENERATE.format(flag=flag, form=form) for flag in flags]
    return "".join(lines)


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
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value,
)
def test_a_container_has_the_same_by_cdi_and_by_the_hook(
    installed: Installed, root: Path, runtime: str, cgroup: str, asked: dict[str, str]
) -> None:
    node: dict[str, Any] = {"description": "none", "vendors": EVERYBODYS}
    if "NVIDIA_VISIBLE_DEVICES" in asked:
        node = {"description": "h100x8", "vendors": ("rdma",)}
    how = {"runtime": runtime, "cgroup": cgroup, **node}
    before = _generate(tuple(asked), "json" if runtime == "crun" else "yaml")
    by_cdi = look_podman(installed, root, _devices(asked), LOOK, before=before, **how)
    given = _environment(root)
    options = " ".join(f"--env {flag}={names}" for flag, names in asked.items())
    refresh = REFRESH if node["description"] != "none" else ""
    by_hook = look_podman(installed, root, options, LOOK, before=refresh, **how)
    _environment(root)
    _agree(by_cdi, by_hook)
    assert {given[flag] for flag in asked} == {"void"}
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


def _refused(installed: Installed, root: Path, device: str, before: str) -> str:
    said = root.parent / "said"
    said.touch()
    done = run_podman(
        installed,
        root,
        "id",
        options=f"{cdi_devices(device)} {CRUN_SAYS.format(said)}",
        before=before,
        runtime="crun",
        description="none",
        vendors=("amd", "rdma"),
    )
    assert done.code != 0
    return done.err + said.read_text()


def test_a_spec_outlives_an_upgrade(installed: Installed, root: Path) -> None:
    """A container has the files that the host has when it starts."""
    folder = f"/usr/lib/{roots.MULTIARCH}"
    before = _generate(("OCI_RDMA",)) + f"cp {folder}/librdmacm.so.1 {folder}/libefa.so.9\n"
    options, command = cdi_devices("openfabrics.org/hca=0"), "ls /usr/local/oci-gpu-hook/OCI_RDMA/lib64/libefa.so.9"
    node: dict[str, Any] = {"description": "none", "vendors": ("rdma",)}
    done = run_podman(installed, root, command, options=options, before=before, **node)
    assert done.code == 0 and "libefa.so.9" in done.out, done.out + done.err


def test_a_spec_whose_vendors_file_is_gone_is_refused(installed: Installed, root: Path) -> None:
    gone = "rm /usr/share/oci-gpu-hook/vendors/rdma.json\n"
    said = _refused(installed, root, "openfabrics.org/hca=0", _generate(("OCI_RDMA",)) + gone)
    assert "the CDI spec is for 'OCI_RDMA', which no vendor's file has" in said
