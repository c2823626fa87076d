# SPDX-License-Identifier: Apache-2.0
"""Containers that are started again in the same root: what a start has left there serves the next, or is in no way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, run

FOLDER = f"usr/lib/{roots.MULTIARCH}"
CUDA = f"{FOLDER}/libcuda.so.1"
# Cards of h100x8, h100mig and v100, and their drivers.
DRIVERS = {"h100x8": "580.65.06", "h100mig": "590.48.01", "v100": "535.183.01"}

LOOK = "/app/cuda; cat /proc/self/mountinfo"


def libraries(installed: Installed, made: Bundle, runtime: str, description: str) -> list[str]:
    """The mount points of libraries, of a container in which a program finds its GPU."""
    done = run(installed, runtime, "v2", made, description=description)
    assert done.code == 0 and done.out.startswith("cuInit 0, 1 devices\n"), done.out + done.err
    points = [line.split()[4] for line in done.out.splitlines() if " - " in line]
    return sorted(point for point in points if point.startswith(f"/{FOLDER}/"))


@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize("read_only", [False, True])
def test_the_same_driver_finds_its_links(
    installed: Installed, bundle: Maker, runtime: str, read_only: bool
) -> None:
    made = bundle("debian").asks("0").runs("/bin/sh", "-c", LOOK)
    made.config["root"]["readonly"] = read_only
    made.write()
    first = libraries(installed, made, runtime, "h100x8")
    left = roots.listing(made.rootfs)
    assert os.readlink(made.rootfs / CUDA) == "libcuda.so.580.65.06"
    assert libraries(installed, made, runtime, "h100x8") == first
    assert roots.listing(made.rootfs) == left


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_another_driver_is_mounted_where_the_links_of_the_last_one_lead(
    installed: Installed, bundle: Maker, runtime: str
) -> None:
    """Up and down: both names of a library may be links to one empty file, or to the file that is mounted."""
    made = bundle("debian").asks("0").runs("/bin/sh", "-c", LOOK)
    first = DRIVERS["h100x8"]
    libraries(installed, made, runtime, "h100x8")
    for description in ("h100mig", "v100", "h100x8"):
        points = libraries(installed, made, runtime, description)
        assert f"/{FOLDER}/libcuda.so.{DRIVERS[description]}" in points
        assert f"/{FOLDER}/libcuda.so.{first}" in points
        assert len(points) == len(set(points))
        assert os.readlink(made.rootfs / CUDA) == f"libcuda.so.{first}"


def own_file(cuda: Path) -> None:
    cuda.write_text("the image's own")


def own_link(cuda: Path) -> None:
    (cuda.parent / "libcuda.so.535.54.03").write_text("the image's own")
    cuda.symlink_to("libcuda.so.535.54.03")


def dangling_link(cuda: Path) -> None:
    cuda.symlink_to("/usr/lib/libcuda.so.535.54.03")


@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize("with_users", [False, True])
@pytest.mark.parametrize("planted", [own_file, own_link, dangling_link])
def test_what_an_image_has_under_a_name_stays(
    installed: Installed, bundle: Maker, runtime: str, with_users: bool, planted: object
) -> None:
    """In a user namespace too, where all is done with the rights of its owner."""
    made = bundle("debian").asks("0").runs("/bin/sh", "-c", LOOK)
    assert callable(planted)
    planted(made.rootfs / CUDA)
    if with_users:
        mapping = [{"containerID": 0, "hostID": 0, "size": 65536}]
        made.config["linux"]["namespaces"] += [{"type": "user"}, {"type": "network"}]
        made.config["linux"]["uidMappings"] = made.config["linux"]["gidMappings"] = mapping
        made.write()
    before = {name: kind for name, kind in roots.listing(made.rootfs).items() if "cuda" in name}
    for _ in range(2):
        libraries(installed, made, runtime, "h100x8")
        after = roots.listing(made.rootfs)
        assert {name: after[name] for name in before} == before
