# SPDX-License-Identifier: Apache-2.0
"""What one more mounted file, GPU, and mount of the node cost: the same container on generated nodes.

Files are firmware files, of which a driver may have any number.  Each round visits each node once, in random order.
"""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import figures
from tests.bench.rounds import Node, say, start
from tests.bench.stage import DESCRIPTION, Kit, Scene, on_node
from tests.bench.variants import WARM, by_key
from tests.gpunode import description, linux, node
from tests.gpunode.content import Content

# Of each kind: its title, the goal for one more in us, the container that is started, and the nodes' sizes.
KINDS = {
    "files": ("mounted files", 30.0, "gpu-1", (10, 50, 100, 200, 350, 500)),
    "gpus": ("GPUs, all asked for", 100.0, "gpu-8", (1, 2, 4, 8, 12, 16)),
    "mounts": ("mounts of the node", 3.0, "gpu-1", (0, 500, 2000, 5000)),
}
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


def content(kit: Kit, kind: str, size: int) -> Content:
    """The usual node with so many GPUs, or a driver of so many more files."""
    if kind == "gpus":
        path = kit.scratch / f"gpus-{size}.json"
        path.write_text(json.dumps(describe(size)))
        return node.prepare(str(path), [])
    made = node.prepare(DESCRIPTION, [])
    for number in range(size if kind == "files" else 0):
        made.texts[f"/lib/firmware/nvidia/{made.node.driver}/gsp_bench{number:03}.bin"] = "simulated\n"
    return made


def play(kit: Kit, cgroup: str, rounds: int) -> dict[str, Any]:
    nodes = [(kind, size, content(kit, kind, size)) for kind, (*_, sizes) in KINDS.items() for size in sizes]
    taken: dict[str, dict[int, list[float]]] = {kind: {} for kind in KINDS}
    for number in range(1, rounds + 1):
        for kind, size, made in random.sample(nodes, len(nodes)):
            times = on_node(kit, made, cgroup, partial(_visit, kit, kind, size))
            taken[kind].setdefault(size, []).extend(times)
        if number % max(1, rounds // 5) == 0:
            say(f"bench: growth, round {number} of {rounds}")
    return {kind: _series(kind, times) for kind, times in taken.items()}


def _series(kind: str, taken: dict[int, list[float]]) -> dict[str, Any]:
    """Medians of one kind, and by how much they grow."""
    title, goal, *_ = KINDS[kind]
    points = [(size, round(median(times), 4)) for size, times in sorted(taken.items())]
    return {"title": title, "goal_us": goal, "marginal_us": round(figures.slope(points) * 1000, 2), "points": points}


def _visit(kit: Kit, kind: str, size: int) -> list[float]:
    Node().make(WARM)
    _mount(kit.scratch / "mounts", size if kind == "mounts" else 0)
    scene = Scene(kit, by_key(KINDS[kind][2]), f"growth-{kind}")
    samples = [start(scene) for _ in range(_STARTS)]
    scene.remove()
    for sample in samples:
        if sample.said:
            raise RuntimeError(f"growth: {sample.said}")
    return [sample.hook for sample in samples[1:]]


def _mount(folder: Path, mounts: int) -> None:
    """So many filesystems more on the node, as a pod has some eight; they go with it."""
    folder.mkdir(exist_ok=True)
    linux.mount("none", str(folder), "tmpfs")
    for number in range(mounts):
        point = folder / str(number)
        point.mkdir()
        linux.mount("tmpfs", str(point), "tmpfs", options="size=64k")
