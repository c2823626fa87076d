# SPDX-License-Identifier: Apache-2.0
"""podman with CDI specs of ours: of each kind, platform and vendor, and when the host has changed since.

podman 4.3, the oldest that is tested, resolves the devices, makes the spec's edits and starts the spec's hook.  Which
names a spec has and what each of them means is shown in tests/unit/test_cdi.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpunode import tegra
from tests.integration.engines import REPOSITORY, cdi_devices, run_podman
from tests.integration.inside import REFRESH, Seen, look_podman
from tests.integration.test_inventory_truth import UPGRADE

SPEC = "/etc/cdi/nvidia.yaml"
GENERATE = f"{REFRESH}oci-gpu-hook cdi generate --output {SPEC}\n"
# crun passes on what a hook says only to the file that this annotation names; runc puts it into its own error.
CRUN_SAYS = "--annotation run.oci.hooks.stderr={}"

# A node with all that may be beside GPUs.
MORE = {"imex_channels": 2, "nvidia_fs": 2, "gdrcopy": True, "uverbs": 2}
SWITCHES = [f"/dev/nvidia-nvswitch{which}" for which in (0, 1, 2, 3, "ctl")]
BESIDE = {
    "imex": ("nvidia.com/imex-channel=1", ["/dev/nvidia-caps-imex-channels/channel1"]),
    "gds": ("nvidia.com/gds=all", ["/dev/nvidia-fs0", "/dev/nvidia-fs1", "/etc/cufile.json"]),
    "mofed": ("nvidia.com/mofed=all", [f"/dev/infiniband/{name}" for name in ("rdma_cm", "uverbs0", "uverbs1")]),
    "gdrcopy": ("nvidia.com/gdrcopy=all", ["/dev/gdrdrv"]),
    "nvswitch": ("nvidia.com/nvswitch=all", SWITCHES),
}
FIND = "find /dev/nvidia* /dev/infiniband /dev/gdrdrv /etc/cufile.json ! -type d 2>/dev/null | sort"


def more(tmp_path: Path) -> str:
    description = json.loads((REPOSITORY / "tests/gpunode/descriptions/h100x8.json").read_text())
    (tmp_path / "more.json").write_text(json.dumps({**description, **MORE}))
    return str(tmp_path / "more.json")


@pytest.mark.parametrize("kind", [*BESIDE])
def test_what_is_beside_gpus_has_specs_of_its_own(root: Path, tmp_path: Path, kind: str) -> None:
    device, paths = BESIDE[kind]
    generate = f"oci-gpu-hook cdi generate --kind {kind} --output /etc/cdi/{kind}.yaml\n" * 2
    command = f"sh -c '{FIND}'"
    options = cdi_devices(device)
    out = run_podman(root, command, options=options, before=generate, description=more(tmp_path)).printed()
    assert [line for line in out.splitlines() if line.startswith("/")] == sorted(paths)


def test_management_brings_all_and_none_brings_files(root: Path, tmp_path: Path) -> None:
    generate = f"{GENERATE}oci-gpu-hook cdi generate --kind management --output /etc/cdi/management.yaml\n"
    # As of fabric-imex-mgmt.
    generate = "mknod /dev/nvidia-caps/nvidia-cap99 c $(awk '/nvidia-caps$/ {print $1}' /proc/devices) 99\n" + generate
    find = "find /dev/nvidia* /proc/driver/nvidia/capabilities/mig ! -type d | sort"
    command = f"sh -c '{find}; nvidia-smi -L; ldconfig -p | grep libcuda.so.1'"
    how = {"before": generate, "description": more(tmp_path)}
    out = run_podman(root, command, options=cdi_devices("management.nvidia.com/gpu=all"), **how).printed()
    nodes = [line for line in out.splitlines() if line.startswith("/dev/")]
    assert len([path for path in nodes if path[len("/dev/nvidia") :].isdecimal()]) == 8
    assert {f"/dev/nvidia-caps/nvidia-cap{number}" for number in (1, 2, 99)} <= set(nodes)
    assert {f"/proc/driver/nvidia/capabilities/mig/{name}" for name in ("config", "monitor")} <= {*out.splitlines()}
    assert "/dev/nvidia-caps-imex-channels/channel1" in nodes
    assert out.count("(UUID: GPU-") == 8
    none = run_podman(root, command, options=cdi_devices("nvidia.com/gpu=none"), **how)
    assert "libcuda.so.1" in none.out and "(UUID: GPU-" not in none.out
    assert not [line for line in none.out.splitlines() if line[len("/dev/nvidia") :].isdecimal()]


@pytest.mark.parametrize(("platform", "nodes"), [("tegra", set(tegra.DEVICES)), ("wsl", {"/dev/dxg"})])
def test_a_jetson_and_wsl_have_specs(root: Path, platform: str, nodes: set[str]) -> None:
    generate = f"oci-gpu-hook cdi generate --output {SPEC}\n"
    find = "find /dev/nv* /dev/host1x* /dev/v4l2* /dev/dxg ! -type d 2>/dev/null"
    for device in ("all", "0", "none"):
        command = f"sh -c '{find}; ldconfig -p; nvidia-smi || test {device} = none'"
        options = cdi_devices(f"nvidia.com/gpu={device}")
        out = run_podman(root, command, options=options, before=generate, platform=platform).printed()
        lines = out.splitlines()
        there = {line for line in lines if line.startswith("/dev/")}
        assert there == set() if device == "none" else there >= nodes
        assert any("libcuda.so.1 " in line for line in lines), out


def test_a_board_with_a_gpu_on_pci_has_each_by_its_index(root: Path) -> None:
    """NVIDIA's module knows nothing of the integrated one, which nvgpu drives."""
    generate = f"{GENERATE}grep name {SPEC}\n"
    said = run_podman(root, "ldconfig -p", before=generate, vendors=("thor",), description="igx").printed()
    assert [name for name in ("0", "1", "2") if f'"name": "{name}"' in said] == ["0", "1"]


# GPU 0 and 1 by their addresses, after a boot that has numbered them otherwise; GPU 1 taken away; a node left over.
ADDRESSES = "cd /proc/driver/nvidia/gpus; set -- *; cd /\n"
MINORS = f"""{ADDRESSES}
minor() {{ sed -n 's/Device Minor:[^0-9]*//p' /proc/driver/nvidia/gpus/$1/information; }}
first=$(minor $1) second=$(minor $2)
for pair in $1=$second $2=$first; do
    file=/proc/driver/nvidia/gpus/${{pair%=*}}/information
    sed "s/Device Minor:.*/Device Minor: ${{pair#*=}}/" $file >/run/${{pair%=*}}
    mount --bind /run/${{pair%=*}} $file
done
{REFRESH}"""
GONE = f"""{ADDRESSES}mkdir /run/gpus && cp -r /proc/driver/nvidia/gpus/$1 /run/gpus/
mount --bind /run/gpus /proc/driver/nvidia/gpus
{REFRESH}"""
STALE = "rm /dev/nvidia-uvm && mknod /dev/nvidia-uvm c 1 5\n"
OLD_CHANNEL = "rm /dev/nvidia-caps-imex-channels/channel1; mknod /dev/nvidia-caps-imex-channels/channel1 c 1 7\n"
CHANGED = {
    "minors": (MINORS, "0", "when the CDI spec was written"),
    "a GPU less": (GONE, "1", "is not a device now"),
    "all, and a GPU less": (GONE, "all", "is not a device now"),
    "a node left over": (STALE, "0", "/dev/nvidia-uvm was made as 1:5"),
}


@pytest.mark.parametrize("case", CHANGED)
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_what_a_name_no_longer_means_is_refused(root: Path, runtime: str, case: str) -> None:
    change, name, says = CHANGED[case]
    said = root.parent / "said"
    said.touch()
    options = f"{cdi_devices(f'nvidia.com/gpu={name}')} {CRUN_SAYS.format(said) if runtime == 'crun' else ''}"
    done = run_podman(root, "id", options=options, before=GENERATE + change, runtime=runtime)
    assert done.code != 0
    assert says in done.err + said.read_text(), done.err + said.read_text()


def test_another_number_of_an_imex_channel_is_told(root: Path, tmp_path: Path) -> None:
    """A spec of channels alone starts no hook: there doctor is the only one who can say it."""
    before = f"oci-gpu-hook cdi generate --kind management --output /etc/cdi/m.yaml\n{OLD_CHANNEL}"
    before += "oci-gpu-hook doctor | grep 'fail  nodes' || :\n"
    options = cdi_devices("management.nvidia.com/gpu=all")
    done = run_podman(root, "id", options=options, before=before, runtime="runc", description=more(tmp_path))
    assert "/dev/nvidia-caps-imex-channels/channel1 is device 1:7, the driver's is " in done.out, done.out
    assert done.code != 0 and "channel1 was made as 1:7" in done.err, done.err


def test_a_spec_outlives_an_upgrade(root: Path) -> None:
    before = f"{GENERATE}{UPGRADE}ldconfig\n{REFRESH}oci-gpu-hook doctor | grep /etc/cdi || :\n"
    options, command = cdi_devices("nvidia.com/gpu=0"), "sh -c 'ls -l $(ldconfig -p | grep -o /.*libcuda.so.1$)'"
    out = run_podman(root, command, options=options, before=before).printed()
    assert f"{SPEC} says what the host has" in out
    assert "libcuda.so.580.65.09" in out and "580.65.06" not in out


@pytest.mark.parametrize(("setting", "holders"), [("container", 3), ("host", 0)])
def test_doctor_holds_a_spec_against_the_groups_that_it_has(root: Path, setting: str, holders: int) -> None:
    """The GPU's by index, UUID and 'all', whatever the settings say by now."""
    before = f"chgrp 44 /dev/nvidia0\nchmod 660 /dev/nvidia0\n{GENERATE}echo $(grep -c additionalGids {SPEC}) groups\n"
    before += ": >/etc/oci-gpu-hook.conf\noci-gpu-hook doctor | grep /etc/cdi || :\n"
    out = run_podman(root, "id", before=before, settings=f"device-group = {setting}\n", description="v100").printed()
    assert f"\n{holders} groups\n" in out and f"{SPEC} says what the host has" in out


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
VENDORS = "oci-gpu-hook cdi generate --vendor {flag} --output /etc/cdi/{flag}.{form}\n"
NVIDIAS = "{refresh}oci-gpu-hook cdi generate --output /etc/cdi/nvidia.{form}\n"
# Every file that a vendor's has, and its environment.  Times are those of a copy, and what runtimes make has none.
LOOK = """
env >/environment
nvidia-smi -L
/app/cuda
stat -c '%n %F %t:%T %a %u:%g' /dev/nvidia* /dev/dri/*
find /proc/driver/nvidia | sort
cat /proc/driver/nvidia/params
sort -u /etc/ld.so.conf.d/000-oci-gpu-hook*
cd /usr/bin && stat -c '%A %u:%g %s %n' *
find /opt /etc/OpenCL /etc/libibverbs.d /usr/lib /usr/lib64 /usr/libexec /usr/share/libdrm -type f 2>/dev/null |
    while read -r path; do stat -c '%A %u:%g %s %n' "$path"; done
"""


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
def test_a_container_has_the_same_by_either_way(root: Path, runtime: str, cgroup: str, asked: dict[str, str]) -> None:
    node: dict[str, Any] = {"description": "none", "vendors": EVERYBODYS}
    gpus = asked.get("NVIDIA_VISIBLE_DEVICES", "")
    if gpus:
        node = {"description": "h100x8" if "OCI_RDMA" in asked else "h100mig", "vendors": ("rdma",)}
    how = {"runtime": runtime, "cgroup": cgroup, **node}
    # As udev's SYMLINK makes them.
    link = "[ ! -e /dev/neuron1 ] || { mv /dev/neuron1 /dev/real && ln -s real /dev/neuron1; }\n"
    form = "json" if runtime == "crun" else "yaml"
    lines = [NVIDIAS if flag.startswith("NVIDIA") else VENDORS for flag in asked]
    before = link + "".join([line.format(flag=flag, form=form, refresh=REFRESH) for line, flag in zip(lines, asked)])
    # A spec's hook checks what the image requires.
    required = "--env 'NVIDIA_REQUIRE_CUDA=cuda>=13'"
    by_cdi = look_podman(root, f"{_devices(asked)} {required}", LOOK, before=before, **how)
    given = _environment(root)
    options = " ".join(f"--env {flag}={names}" for flag, names in asked.items())
    options += " --env NVIDIA_DRIVER_CAPABILITIES=all" if gpus else ""
    refresh = REFRESH if node["description"] != "none" else ""
    by_hook = look_podman(root, options, LOOK, before=link + refresh, **how)
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
    # Each start has a file of its own for ldconfig; LOOK prints what all of them say.
    cdis, hooks = [{it: how for it, how in seen.mounts.items() if "/000-oci" not in it} for seen in (by_cdi, by_hook)]
    assert cdis == hooks
    assert by_cdi.printed == by_hook.printed
