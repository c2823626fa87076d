# SPDX-License-Identifier: Apache-2.0
"""podman with a CDI spec of ours: what a container sees is what it sees with NVIDIA_VISIBLE_DEVICES.

podman 4.3, the oldest that is tested, resolves the devices, makes the spec's edits and starts the spec's hook; what it
says of a device that no spec names is its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.engines import Installed, Outcome
from tests.integration.test_main_job import DENIED
from tests.integration.test_podman import podman

SPEC = "/etc/cdi/nvidia.yaml"
DRIVER = "590.48.01"
GENERATE = f"oci-gpu-hook inventory refresh >/dev/null\noci-gpu-hook cdi generate --output {SPEC}\n"
NODES = 'find /dev/nvidia* /dev/dri ! -type d -exec stat -c "%n %F %t:%T %a %u:%g" {} +'
# Without the times, which may be those of two minutes.
PROGRAMS = 'cd /usr/bin && stat -c "%A %u:%g %s %n" *'
FILES = f"ldconfig -p; {PROGRAMS}; find /proc/driver/nvidia; cat /proc/driver/nvidia/params"
# Nodes that were not asked for are refused also where the container makes them itself.
REFUSED = "for n in 0 1; do mknod /dev/other$n c 195 $n; cat /dev/other$n; done; cat /dev/nvidia*"
LOOK = f"sh -c '{{ {NODES}; {FILES}; cat /proc/mounts; nvidia-smi -L; /app/cuda; {REFUSED}; true; }} >/seen 2>&1'"

ON_H100MIG = [
    "0",
    "1",
    "all",
    "GPU-e8a75d20-1f9c-4b63-8d7e-30b5c9f2614a",
    "0:1",
    "MIG-4e905ac7-d1f8-5b23-b60e-97a8c3f4d210",
]


# crun passes on what a hook says only to the file that this annotation names; runc puts it into its own error.
CRUN_SAYS = "--annotation run.oci.hooks.stderr={}"


def run(
    installed: Installed,
    tmp_path: Path,
    root: Path,
    words: str,
    *,
    runtime: str = "runc",
    before: str = GENERATE,
    look: str = "id",
    cgroup: str = "v2",
    description: str = "h100mig",
) -> Outcome:
    return podman(
        installed,
        tmp_path,
        root,
        runtime,
        cgroup,
        look,
        env=words,
        before=before,
        description=description,
    )


def refused(
    installed: Installed, tmp_path: Path, root: Path, words: str, runtime: str, before: str
) -> str:
    """What the hook says of a start that it stops."""
    said = tmp_path / "said"
    said.touch()
    words += f" {CRUN_SAYS.format(said)}" if runtime == "crun" else ""
    done = run(installed, tmp_path, root, words, runtime=runtime, before=before)
    assert done.code != 0
    return done.err + said.read_text()


def seen(
    installed: Installed, tmp_path: Path, root: Path, words: str, runtime: str, cgroup: str = "v2"
) -> list[str]:
    """What the container saw, in lines without an order."""
    done = run(installed, tmp_path, root, words, runtime=runtime, look=LOOK, cgroup=cgroup)
    assert done.code == 0, done.out + done.err
    file = root / "seen"
    lines = file.read_text().splitlines()
    file.unlink()
    return sorted(lines)


@pytest.fixture()
def root(tmp_path: Path, driver: Path) -> Path:
    return roots.debian(tmp_path / "root", driver)


@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize("device", ON_H100MIG)
def test_a_container_sees_the_same_by_cdi_and_by_the_hook(
    installed: Installed, tmp_path: Path, root: Path, runtime: str, device: str
) -> None:
    by_cdi = seen(installed, tmp_path, root, f"--device nvidia.com/gpu={device}", runtime)
    asked = f"--env NVIDIA_VISIBLE_DEVICES={device} --env NVIDIA_DRIVER_CAPABILITIES=all"
    by_hook = seen(installed, tmp_path, root, asked, runtime)
    assert by_cdi == by_hook
    gpus = 2 if device == "all" else 1
    assert f"cuInit 0, {gpus} devices" in by_cdi
    assert sum(DENIED in line for line in by_cdi) == 2 - gpus
    assert any(f"/libcuda.so.{DRIVER}" in line for line in by_cdi)
    assert any(line.endswith("/libcuda.so.1") and "=>" in line for line in by_cdi)
    assert any(line.endswith(" nvidia-smi") for line in by_cdi)


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_the_same_with_the_cgroups_of_version_1(
    installed: Installed, tmp_path: Path, root: Path, runtime: str
) -> None:
    by_cdi = seen(installed, tmp_path, root, "--device nvidia.com/gpu=0:0", runtime, "v1")
    asked = "--env NVIDIA_VISIBLE_DEVICES=0:0 --env NVIDIA_DRIVER_CAPABILITIES=all"
    assert by_cdi == seen(installed, tmp_path, root, asked, runtime, "v1")
    assert sum(DENIED in line for line in by_cdi) == 1


def test_several_devices_at_once(installed: Installed, tmp_path: Path, root: Path) -> None:
    words = "--device nvidia.com/gpu=1 --device nvidia.com/gpu=0:0 --device nvidia.com/gpu=0:1"
    by_cdi = seen(installed, tmp_path, root, words, "crun")
    asked = "--env NVIDIA_VISIBLE_DEVICES=1,0:0,0:1 --env NVIDIA_DRIVER_CAPABILITIES=all"
    assert by_cdi == seen(installed, tmp_path, root, asked, "crun")


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_an_unmet_requirement_stops_the_start(
    installed: Installed, tmp_path: Path, root: Path, runtime: str
) -> None:
    words = "--device nvidia.com/gpu=0 --env 'NVIDIA_REQUIRE_CUDA=cuda>=99'"
    said = refused(installed, tmp_path, root, words, runtime, GENERATE)
    assert "oci-gpu-hook: " in said
    assert "cuda>=99" in said
    assert "13.1" in said
    met = words.replace("99", "13")
    assert run(installed, tmp_path, root, met, runtime=runtime).code == 0


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_spec_for_an_older_driver_is_refused(
    installed: Installed, tmp_path: Path, root: Path, runtime: str
) -> None:
    """Where the older driver's files are still there."""
    older = f"sed -i '/--cdi-driver/{{n;s/{DRIVER}/570.86.10/}}' {SPEC}\n"
    words = "--device nvidia.com/gpu=0"
    said = refused(installed, tmp_path, root, words, runtime, GENERATE + older)
    assert f"the CDI spec is for driver 570.86.10, the host has {DRIVER}" in said
    assert "oci-gpu-hook cdi generate" in said


def test_a_spec_whose_files_are_gone_starts_nothing(
    installed: Installed, tmp_path: Path, root: Path
) -> None:
    """The runtime mounts before it starts any hook: then it is its own error that names the file."""
    kept = tmp_path / "kept.yaml"
    words = "--device nvidia.com/gpu=0"
    keep = f"{GENERATE}cp {SPEC} {kept}\n"
    assert run(installed, tmp_path, root, words, before=keep).code == 0
    upgraded = f"mkdir -p /etc/cdi && cp {kept} {SPEC}\n"
    done = run(installed, tmp_path, root, words, before=upgraded, description="h100x8")
    assert done.code != 0
    assert f".so.{DRIVER}" in done.err


def test_a_device_that_no_spec_names_is_podmans_to_refuse(
    installed: Installed, tmp_path: Path, root: Path
) -> None:
    done = run(installed, tmp_path, root, "--device nvidia.com/gpu=77")
    assert done.code != 0
    assert "nvidia.com/gpu=77" in done.err


def test_a_spec_in_json_serves_as_well(installed: Installed, tmp_path: Path, root: Path) -> None:
    before = GENERATE.replace(".yaml", ".json --capabilities utility")
    done = run(installed, tmp_path, root, "--device nvidia.com/gpu=all", before=before, look=LOOK)
    assert done.code == 0, done.err
    text = (root / "seen").read_text()
    assert f"libnvidia-ml.so.{DRIVER}" in text
    assert f"libcuda.so.{DRIVER}" not in text
