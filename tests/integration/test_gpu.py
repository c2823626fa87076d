# SPDX-License-Identifier: Apache-2.0
"""The main job on a host with a real driver and GPU: its own nvidia-smi, and CUDA, in a container.

A lane of its own (``make test-gpu``), never part of ``make test``.  Nothing is simulated: the container's procfs is the
kernel's, the nodes have a driver behind them, the libraries are NVIDIA's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.engines import Bundle, Installed, on_host, start, version

pytestmark = pytest.mark.gpu


@pytest.fixture()
def bundle(tmp_path: Path, installed: Installed) -> Bundle:
    """A Debian-like root with a CUDA program in it and what nvidia-smi is linked to."""
    folders = [Path(f"/usr/lib/{roots.MULTIARCH}"), Path("/usr/lib64"), Path("/usr/local/nvidia/lib64")]
    library = next(path for folder in folders for path in folder.glob("libcuda.so.[0-9]*.*"))
    root = roots.debian(tmp_path / "rootfs", None)
    (root / "app").mkdir()
    source = tmp_path / "cuda.c"
    source.write_text(roots.PROGRAM)
    # The library's own needs are met in the container, not where it is linked.
    flags = ["-Wl,--allow-shlib-undefined"]
    subprocess.run(["cc", "-o", root / "app/cuda", source, library, *flags], check=True)
    for name in ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"):
        for folder in (f"/lib/{roots.MULTIARCH}", "/lib64"):
            if Path(folder, name).exists():
                shutil.copy(f"{folder}/{name}", root / "usr/lib" / roots.MULTIARCH)
                break
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)
    return Bundle(tmp_path, installed.hooks(simulated=False))


@pytest.mark.parametrize("user", [0, 100_000])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_gpu_works_in_a_container(installed: Installed, bundle: Bundle, runtime: str, user: int) -> None:
    """user: of the host, whom the container's root is."""
    if shutil.which(runtime) is None:
        pytest.skip(f"this host has no {runtime}")
    if user:
        bundle.in_user_namespace(user)
    look = ("/bin/sh", "-c", "/app/cuda && /usr/bin/nvidia-smi -L")
    cuda, listed = on_host(installed, start(runtime, bundle.asks("0").runs(*look))).printed().splitlines()
    assert cuda.startswith("cuInit 0, ") and listed.startswith("GPU 0: ")


@pytest.mark.parametrize("asks", ["-e NVIDIA_VISIBLE_DEVICES=all", "--device nvidia.com/gpu=all"])
def test_podman_gives_it(installed: Installed, bundle: Bundle, tmp_path: Path, asks: str) -> None:
    """By hooks.d, and by a CDI spec of ours."""
    if version("podman") < (5, 0):
        pytest.skip("this host has no podman 5")
    own = f"--root {tmp_path}/storage --runroot {tmp_path}/run --storage-driver vfs --cdi-spec-dir {tmp_path}/cdi"
    how = "--cgroup-manager=cgroupfs --events-backend=none --hooks-dir /usr/share/containers/oci/hooks.d"
    script = f"oci-gpu-hook cdi generate --output {tmp_path}/cdi/nvidia.yaml >/dev/null\n"
    script += f"podman {own} {how} run --rm --network=none --pids-limit=0 {asks} --rootfs {bundle.rootfs} /app/cuda"
    assert on_host(installed, script).printed().startswith("cuInit 0, ")


def test_without_the_hook_there_is_no_gpu(installed: Installed, bundle: Bundle) -> None:
    bundle.config["hooks"] = {}
    done = on_host(installed, start("runc", bundle.asks("all").runs("/app/cuda")))
    assert done.code != 0


def test_the_inventory_agrees_with_nvml(installed: Installed) -> None:
    """NVML, off the hot path, is the authority on indices and UUIDs."""
    out = on_host(installed, "/usr/bin/oci-gpu-hook info --json; echo; nvidia-smi -L").printed()
    document, _, listing = out.rpartition("}\n")
    gpus = json.loads(document + "}")["gpus"]
    lines = [line for line in listing.splitlines() if line.startswith("GPU ")]
    for gpu, line in zip(gpus, lines):
        assert line.startswith(f"GPU {gpu['nvml_index']}: ")
        assert gpu["uuid"] in line.lower().replace("gpu-", "GPU-")


def test_the_host_is_valid(installed: Installed) -> None:
    """NVML answers, a container has every GPU, and each of them adds two vectors."""
    assert "Test PASSED: 50000 elements on " in on_host(installed, "oci-gpu-hook validate").printed()
