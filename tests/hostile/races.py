# SPDX-License-Identifier: Apache-2.0
"""Folders and files that are exchanged for links while a container starts, by another that shares its image, say.

A race is an attack that is played several times.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.hostile.scene import OWN_LIBRARIES, Attack, Scene

RACER = Path(__file__).with_name("racer.py")


def race(scene: Scene, one: Path, other: Path, *flag: Path) -> None:
    line = [sys.executable, "-S", str(RACER), str(one), str(other), *map(str, flag)]
    racer = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    scene.processes.add(racer.pid)
    assert racer.stderr is not None
    assert racer.stderr.readline() == "ready\n"

    def end() -> None:
        racer.terminate()
        out, err = racer.communicate()
        assert not err, err
        scene.exchanges += int(out)

    scene.later(end)


def swap(path: str, scene: Scene) -> None:
    """A folder of the image and a link to one of the host's."""
    (scene.root / path).mkdir(parents=True, exist_ok=True)
    other = scene.root / f"{path}.other"
    other.symlink_to(scene.hosts("taken"))
    race(scene, scene.root / path, other)


def library(scene: Scene) -> None:
    """CVE-2025-23359, CVE-2026-24260: a newer library of the image is a file when it is looked at, then a link."""
    compat, other = scene.root / "usr/local/cuda/compat", scene.root / "usr/local/cuda/other"
    for folder in (compat, other):
        folder.mkdir(parents=True)
    for number in range(16):
        (compat / f"libcuda{number}.so.999.1").write_text("a library")
        (other / f"libcuda{number}.so.999.1").symlink_to(scene.host / "private/secret")
    scene.checks = True
    scene.probe = f"cat /usr/lib64/libcuda*.so.999.1 {OWN_LIBRARIES}/libcuda*"
    race(scene, compat, other)


def root(scene: Scene) -> None:
    """Row 5: the folder above the root, while hooks run."""
    above, other, flag = scene.owned(), scene.path / "other", scene.path / "flag"
    other.symlink_to(scene.host)
    # The runtime has done its part by then; its own part after that gets the right path again.
    scene.before_hook.append(f": >{flag}; while [ -e {flag}.idle ]; do :; done")
    scene.after_hook.append(f"rm {flag}; until [ -e {flag}.idle ]; do :; done")
    race(scene, above, other, flag)


FOLDERS = ("usr/local/nvidia", "usr/local", "usr/lib64", "usr/bin", "usr", "etc")
ATTACKS = [
    *[Attack(f"race-of-{path.replace('/', '-')}", "CVE-2024-0132", partial(swap, path)) for path in FOLDERS],
    Attack("race-of-a-library", "CVE-2025-23359, CVE-2026-24260", library, codes=(0,)),
    Attack("race-of-the-root", "row 5", root, codes=(0, 3)),
]
