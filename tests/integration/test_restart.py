# SPDX-License-Identifier: Apache-2.0
"""Containers that are started again in the same root: what a start has left there serves the next, or is in no way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import in_turn, run, start

FOLDER = "/usr/local/nvidia/lib64"
IMAGES = f"usr/lib/{roots.MULTIARCH}"
CUDA = f"{IMAGES}/libcuda.so.1"
DRIVERS = {"h100x8": "580.65.06", "h100mig": "590.48.01", "v100": "535.183.01"}

LOOK = (
    "/bin/sh",
    "-c",
    "/app/cuda; LD_LIBRARY_PATH=/usr/lib/*-linux-gnu /app/cuda; nvidia-smi; cat /proc/self/mountinfo",
)


def libraries(lines: list[str]) -> list[str]:
    """The mount points of libraries, of a container in which a program finds its GPU, whatever folder it names."""
    assert lines[:2] == ["cuInit 0, 1 devices"] * 2, lines
    points = [line.split()[4] for line in lines if " - " in line]
    return sorted(point for point in points if point.startswith(f"{FOLDER}/"))


@pytest.mark.parametrize(("runtime", "read_only"), [("runc", False), ("crun", True)])
def test_the_same_driver_adds_nothing(bundle: Maker, runtime: str, read_only: bool) -> None:
    made = bundle("debian").asks("0")
    made.config["root"]["readonly"] = read_only
    left = f"cd {made.rootfs}; find . -printf '%p %y %s %l\\n' | sort | md5sum"
    script = f"{start(runtime, made.runs(*LOOK))}\n{left}"
    first, second = in_turn({"first": script, "second": script}).values()
    assert libraries(first) == libraries(second)
    assert first[-1] == second[-1]


def test_a_dev_on_a_disk_is_served_again(bundle: Maker, tmp_path: Path) -> None:
    """By a caller that has no other: nodes are bound there, and their mount points stay."""
    root = bundle("debian").rootfs
    before = f"""
        ln -s ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
        mkdir {tmp_path}/upper {tmp_path}/work
        mount -t overlay -o lowerdir={root},upperdir={tmp_path}/upper,workdir={tmp_path}/work none /mnt
    """
    script = """
        unshare --mount sh -ec 'nvidia-container-cli configure --no-cgroups --device=0 --compute /mnt
            stat -c %t:%T /mnt/dev/nvidiactl'
        stat -c %F /mnt/dev/nvidiactl
    """
    first, second = in_turn({"first": script, "second": script}, before).values()
    assert first == second == ["c3:ff", "regular empty file"]


def test_another_driver_finds_nothing_of_the_last(bundle: Maker) -> None:
    """Up and down: what is left names no version but the firmware's folder, and serves each driver."""
    made = bundle("debian").asks("0").runs(*LOOK)
    left = set()
    for description in ("h100x8", "h100mig", "v100", "h100x8"):
        points = libraries(run("crun", "v2", made, description=description).printed().splitlines())
        assert f"{FOLDER}/libcuda.so.{DRIVERS[description]}" in points
        assert {point for point in points if DRIVERS[description] in point} == {p for p in points if ".so.5" in p}
        assert os.readlink(made.rootfs / "usr/bin/nvidia-smi") == "/usr/local/nvidia/bin/nvidia-smi"
        left.add(tuple(name for name in roots.listing(made.rootfs) if "firmware" not in name))
    assert len(left) == 1


def older_versions(cuda: Path) -> None:
    """What each start left until it had a folder for the driver: empty files, and links to them."""
    for name in ("libcuda.so.535.54.03", "libnvidia-ml.so.535.54.03"):
        (cuda.parent / name).touch()
        (cuda.parent / f"{name.partition('.so.')[0]}.so.1").symlink_to(name)
    (cuda.parent / "libcuda.so").symlink_to("libcuda.so.535.54.03")
    (cuda.parents[2] / "bin/nvidia-smi").touch()


def own_file(cuda: Path) -> None:
    cuda.write_text("the image's own")


def own_link(cuda: Path) -> None:
    (cuda.parent / "libcuda.so.535.54.03").write_text("the image's own")
    cuda.symlink_to("libcuda.so.535.54.03")


def dangling_link(cuda: Path) -> None:
    cuda.symlink_to("/usr/lib/libcuda.so.535.54.03")


@pytest.mark.parametrize(("runtime", "with_users"), [("runc", True), ("crun", False)])
def test_what_an_image_has_stays(bundle: Maker, runtime: str, with_users: bool) -> None:
    """And is in no way, where LD_LIBRARY_PATH names its folder; in a user namespace too."""
    scripts, before = {}, {}
    for planted in (own_file, own_link, dangling_link, older_versions):
        made = bundle("debian").asks("0")
        planted(made.rootfs / CUDA)
        if with_users:
            made.in_user_namespace(0)
        before[made.rootfs] = named(made.rootfs)
        line = start(runtime, made.runs(*LOOK))
        scripts.update({f"{planted.__name__} {time}": line for time in ("once", "twice")})
    found = in_turn(scripts)
    assert len(found) == 8
    for lines in found.values():
        libraries(lines)
    for root, names in before.items():
        assert {name: it for name, it in named(root).items() if name in names} == names


def named(root: Path) -> dict[str, tuple[str, int]]:
    return {name: kind for name, kind in roots.listing(root).items() if "cuda" in name or "nvidia-smi" in name}
