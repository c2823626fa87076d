# SPDX-License-Identifier: Apache-2.0
"""What one more mounted file, and one more GPU, cost: the same container on generated nodes; and mounts of the node.

Files are firmware files, of which a driver may have any number.  Each round visits each node once, in random order.
Must not: calculate more than medians and slopes.
"""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import figures
from tests.bench.rounds import Node, Sample, say, start
from tests.bench.stage import DESCRIPTION, Kit, Scene, on_node
from tests.bench.variants import WARM, by_key
from tests.gpunode import description, linux, node
from tests.gpunode.content import Content

FILES = (10, 50, 100, 200, 350, 500)
GPUS = (1, 2, 4, 8, 12, 16)
MOUNTS = (0, 500, 2000, 5000)
_STARTS = 4  # on each visit; the first only warms what is cold


def describe(gpus: int) -> dict[str, Any]:
    """A description file's content: so many GPUs, all made after one.  Pure."""
    path = Path(description.FOLDER) / f"{DESCRIPTION}.json"
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    model = values["gpus"][0]
    uuid = model["uuid"][:-4]
    values["gpus"] = [
        {**model, "uuid": f"{uuid}{it:04x}", "bus_id": f"0000:{0x20 + it:02x}:00.0", "minor": it} for it in range(gpus)
    ]
    return values


def with_files(files: int) -> Content:
    """The usual node with a driver of so many more files."""
    content = node.prepare(DESCRIPTION, [])
    for number in range(files):
        path = f"/lib/firmware/nvidia/{content.node.driver}/gsp_bench{number:03}.bin"
        content.texts[path] = "simulated\n"
    return content


def with_gpus(kit: Kit, gpus: int) -> Content:
    path = kit.scratch / f"gpus-{gpus}.json"
    path.write_text(json.dumps(describe(gpus)))
    return node.prepare(str(path), [])


def play(kit: Kit, cgroup: str, rounds: int) -> dict[str, Any]:
    nodes = [("files", number, with_files(number), "gpu-1") for number in FILES]
    nodes += [("gpus", number, with_gpus(kit, number), "gpu-8") for number in GPUS]
    taken: dict[str, dict[int, list[float]]] = {"files": {}, "gpus": {}}
    for number in range(1, rounds + 1):
        for kind, size, content, path in random.sample(nodes, len(nodes)):
            times = on_node(kit, content, cgroup, partial(_visit, kit, path))
            taken[kind].setdefault(size, []).extend(times)
        if number % max(1, rounds // 5) == 0:
            say(f"bench: growth, round {number} of {rounds}")
    return {
        "files": series("mounted files", 30.0, taken["files"]),
        "gpus": series("GPUs, all asked for", 100.0, taken["gpus"]),
    }


def series(title: str, goal_us: float, taken: dict[int, list[float]]) -> dict[str, Any]:
    """Medians of one series, and by how much they grow.  Pure."""
    points = [(size, round(median(times), 4)) for size, times in sorted(taken.items())]
    marginal = figures.slope(points) * 1000
    return {"title": title, "goal_us": goal_us, "marginal_us": round(marginal, 2), "points": points}


def _visit(kit: Kit, path: str) -> list[float]:
    Node().make(WARM)
    scene = Scene(kit, by_key(path), f"growth-{path}")
    samples = [start(scene) for _ in range(_STARTS)]
    scene.remove()
    for sample in samples:
        if sample.said:
            raise RuntimeError(f"growth: {sample.said}")
    return [sample.hook for sample in samples[1:]]


def play_mounts(kit: Kit, rounds: int) -> dict[str, list[Sample]]:
    Node().make(WARM)
    scene = Scene(kit, by_key("gpu-1"), "mounts")
    samples: dict[str, list[Sample]] = {str(mounts): [] for mounts in MOUNTS}
    folder = kit.scratch / "mounts"
    folder.mkdir()
    for number in range(1, rounds + 1):
        for mounts in random.sample(MOUNTS, len(MOUNTS)):
            _mount(folder, mounts)
            samples[str(mounts)] += [start(scene) for _ in range(_STARTS)][1:]
            linux.unmount(str(folder))
        if number % max(1, rounds // 5) == 0:
            say(f"bench: mounts, round {number} of {rounds}")
    scene.remove()
    return samples


def _mount(folder: Path, mounts: int) -> None:
    """So many filesystems more on the node, as a pod has some eight; they go with the one at `folder`."""
    linux.mount("none", str(folder), "tmpfs")
    for number in range(mounts):
        point = folder / str(number)
        point.mkdir()
        linux.mount("tmpfs", str(point), "tmpfs", options="size=64k")
