# SPDX-License-Identifier: Apache-2.0
"""A Jetson with JetPack's CSV files, and WSL 2, on their simulated nodes: real containers that ask as on any host."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.gpunode import tegra, wsl
from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, on_node, start, watched
from tests.integration.inside import Seen, attempt, look

USUAL = f"/usr/lib/{roots.MULTIARCH}"
OWN = f"{USUAL}/nvidia"
ALL = {"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all"}
NULL = "/dev/v4l2-nvdec"


def run(bundle: Bundle, runtime: str = "runc", **node: Any) -> Seen:
    return look(bundle, "nvidia-smi || echo failed", runtime=runtime, refresh=False, **node)


def libraries(seen: Seen) -> dict[str, str]:
    return {name: paths[0] for (name, bits), paths in seen.libraries.items() if bits == 64}


def told(seen: Seen) -> set[str]:
    return {line.split()[0] for line in seen.printed.splitlines()}


@pytest.mark.parametrize(("runtime", "cgroup"), [("runc", "v2"), ("crun", "v1")])
def test_a_jetson_gives_what_its_lists_say(bundle: Maker, runtime: str, cgroup: str) -> None:
    one = bundle("debian").asks("all")
    seen = run(one, runtime, platform="tegra", cgroup=cgroup)
    seen.has_exactly(*tegra.DEVICES)
    assert told(seen) == set(tegra.DEVICES)
    assert seen.denied == {"/dev/fb0"}
    expected = {
        "libcuda.so.1": f"{OWN}/libcuda.so.1",
        "libnvrm_gpu.so": f"{OWN}/libnvrm_gpu.so",
        "libnvidia-ptxjitcompiler.so.1": f"{OWN}/libnvidia-ptxjitcompiler.so.1",
    }
    assert expected.items() <= libraries(seen).items()
    assert "libcudnn.so.9" not in libraries(seen)
    links = {
        f"{USUAL}/libcuda.so": "nvidia/libcuda.so.1",
        f"{OWN}/libcuda.so": "libcuda.so.1.1",
        f"{OWN}/libcuda.so.1": "libcuda.so.1.1",
        f"{OWN}/libnvbufsurface.so": "libnvbufsurface.so.1.0.0",
        f"{USUAL}/libv4l/plugins/nv/libv4l2_nvvideocodec.so": "../../../nvidia/libv4l2_nvvideocodec.so",
        "/etc/vulkan/icd.d/nvidia_icd.json": f"{OWN}/nvidia_icd.json",
    }
    assert {path: os.readlink(one.rootfs / path[1:]) for path in links} == links
    for path in (f"{OWN}/libcuda.so.1.1", f"/usr{tegra.FIRMWARE}", "/etc/nv_tegra_release"):
        assert {"ro", "nosuid", "nodev"} <= seen.mounts[path]
    # Those beside a library are its further names.
    assert {f"libcuda.so{end}" for end in ("", ".1")} <= set(libraries(seen))
    # Nothing is copied: what is new in the root are mount points and links.
    new = [path for path in (one.rootfs / OWN[1:]).rglob("*") if not path.is_symlink()]
    assert new and all(path.stat().st_size == 0 for path in new)


THOR, DISCRETE = "GPU-5d1b7a90-22c4-4f0e-9c53-0a7be1d3f6a1", "GPU-b7e0c4d2-8f13-4a6d-b1d9-3c2f5a7e9d04"
SHARED = {*tegra.DEVICES, "/dev/nvidiactl", "/dev/nvidia-modeset"}
UVM = {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
ON_THOR, BESIDE_THOR = {"/dev/nvidia0", "/dev/nvidia2"}, {"/dev/nvidia1", *UVM}
ON_ORIN, BESIDE_ORIN = {"/dev/nvidia2"}, {"/dev/nvidia0", *UVM}
# What is asked for, and which nodes of NVIDIA's module come beside those of the lists.
BOARDS = {
    "thor": {
        **dict.fromkeys(("all", "0,1"), ON_THOR | BESIDE_THOR),
        **dict.fromkeys(("0", THOR), ON_THOR),
        **dict.fromkeys(("1", DISCRETE), BESIDE_THOR),
    },
    # nvgpu drives the integrated one, of which NVIDIA's module knows nothing.
    "igx": {
        "all": ON_ORIN | BESIDE_ORIN,
        **dict.fromkeys(("0", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"), ON_ORIN),
        **dict.fromkeys(("1", DISCRETE), BESIDE_ORIN),
    },
}


@pytest.mark.parametrize("board", BOARDS)
def test_a_request_chooses_among_a_boards_gpus(bundle: Maker, board: str) -> None:
    unknown = ("2", DISCRETE.replace("b7", "c8"))
    made = [bundle("debian").asks(devices, "compute,utility") for devices in ("none", *unknown, *BOARDS[board])]
    none, *others = attempt(*made, refresh=False, vendors=("thor",), description=board)
    assert not none.seen().nodes and none.seen().allowed == {NULL}
    for each, devices in zip(others, unknown):
        assert f"unknown device '{devices}': this Jetson has indices 0 to 1" in each.refusal()
    for each, nodes in zip(others[len(unknown) :], BOARDS[board].values()):
        each.seen().has_exactly(*SHARED, *nodes)
        assert f"{OWN}/libcuda.so.1.1" in each.seen().mounts


def test_a_jetson_gives_all_lists_where_they_are_asked_for(bundle: Maker) -> None:
    """And what is saved for one is not given to the other."""
    made = [bundle("debian").asks("0", **more) for more in ({}, ALL, {})]
    seen = [each.seen() for each in attempt(*made, refresh=False, platform="tegra")]
    for one in seen:
        one.has_exactly(*tegra.DEVICES)
    few, many, again = map(libraries, seen)
    assert few == again and "libcudnn.so.9" not in few
    assert many["libcudnn.so.9"] == f"{USUAL}/libcudnn.so.9"
    assert "/usr/src/cudnn_samples_v9" in seen[1].mounts


def test_an_image_that_was_built_on_a_jetson_has_empty_files_in_the_places(bundle: Maker) -> None:
    names = ("libcuda.so", "libcuda.so.1", "libcuda.so.1.1", "libnvrm_gpu.so", "libnvbufsurface.so")
    stubs = [f"{OWN}/{name}" for name in names]
    one = bundle("debian").asks("all").changed(f"mkdir .{OWN}; touch .{' .'.join(stubs)}")
    one.runs("/bin/sh", "-c", f"stat -L -c '%s %n' {' '.join(stubs)}")
    out = on_node(start("runc", one), platform="tegra").printed()
    sizes = {path: int(size) for size, path in map(str.split, out.splitlines())}
    assert set(sizes) == set(stubs) and all(sizes.values()), sizes
    assert all((one.rootfs / path[1:]).stat().st_size == 0 for path in stubs)


@pytest.mark.parametrize("asked", ["all", "0", "GPU-a3bd1b0a-4b0e-4b4a-8a3d-0a1b2c3d4e5f"])
def test_wsl_gives_the_one_device_whatever_gpu_is_named(bundle: Maker, asked: str) -> None:
    one = bundle("debian").asks(asked)
    seen = run(one, platform="wsl")
    assert {*seen.nodes} == seen.allowed == told(seen) == {wsl.DXG}
    assert not seen.denied
    expected = {soname: f"{wsl.FOLDER}/{soname}" for soname in set(wsl.LIBRARIES.values())}
    assert expected.items() <= libraries(seen).items()
    for name in wsl.LIBRARIES:
        # Windows has no links, so each is a file of its own here too.
        assert f"{wsl.FOLDER}/{name}" in seen.mounts
    stored = {path for path in seen.mounts if path.startswith(wsl.DRIVERS)}
    assert stored == {f"{wsl.STORE}/{name}" for name in (*wsl.STORED, "nvcubins.bin", "nvapi64.dll")}


@pytest.mark.parametrize(
    ("platform", "name", "proof"),
    [("tegra", "Jetson Linux 36.4.3", "/etc/nv_tegra_release"), ("wsl", "WSL 2", wsl.DXG)],
)
def test_people_learn_the_platform(bundle: Maker, platform: str, name: str, proof: str) -> None:
    one = bundle("debian").asks("all").runs("true")
    commands = f"""
        oci-gpu-hook plan --json --bundle {one.path}; echo ==
        oci-gpu-hook info; echo ==
        oci-gpu-hook info --json
    """
    plan, info, document = on_node(commands, platform=platform).printed().split("==\n")
    assert json.loads(plan)["driver"]["version"] == name
    assert info.splitlines()[0] == f"driver {name}, by {proof}"
    assert json.loads(document)["platform"] == {"kind": platform, "proof": proof}


@pytest.mark.parametrize(("platform", "lost"), [("tegra", NULL), ("wsl", "")])
def test_watch_writes_the_cdi_spec(platform: str, lost: str) -> None:
    """Once, as the command does; and again without a node that the host has lost."""
    loses = f"rm {lost}; until_said '^wrote ' 2; ! grep {lost} /run/gpu.yaml"
    steps = f"""until_said '^wrote '
sleep 1
grep '^wrote ' /tmp/said
oci-gpu-hook cdi generate --output /run/now.yaml >/dev/null
cmp /run/gpu.yaml /run/now.yaml
{loses if lost else ""}
"""
    out = watched(steps, "--cdi-spec /run/gpu.yaml", platform=platform)
    assert out.partition("ended")[0] == "wrote /run/gpu.yaml: 3 devices\n"


def test_what_only_knows_gpus_of_the_module_says_so() -> None:
    words = ("containers", "cdi generate --kind gds", "cdi generate --kind management", "flags docker")
    commands = "".join([f"oci-gpu-hook {word} && exit 1\n" for word in words])
    done = on_node(f"{commands}true", platform="wsl")
    assert done.code == 0, done.out
    said = [line for line in done.err.splitlines() if line.startswith("oci-gpu-hook:")]
    assert len(said) == len(words)
    assert all("this host is WSL 2, and no GPU here is driven by" in line for line in said), said
