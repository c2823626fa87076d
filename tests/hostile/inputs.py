# SPDX-License-Identifier: Apache-2.0
"""What the hook is told: a state that names another process, an environment, texts that reach a terminal, devices."""

from __future__ import annotations

import os
import re
import subprocess
from functools import partial
from pathlib import Path

from tests.hostile import linux
from tests.hostile.scene import BAD_STATE, BOTH, SERVES, Attack, Scene

# In a process namespace of its own, such as CI's, no kernel thread is seen: there that process is a dead one.
SEES_THE_KERNEL = Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n"

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m"


def names_process(kind: str, scene: Scene) -> None:
    """Row 10: the pid of a process that is no container's; one on the host has a cgroup of its own."""
    pid = {"kernel": 2, "ours": os.getpid()}.get(kind, 0)
    if kind == "dead":
        child = subprocess.Popen(["true"])
        child.wait()
        pid = child.pid
    elif kind == "host":
        pid = _victim(scene)
    scene.edit_state = f's/"pid": *[0-9]*/"pid":{pid}/'


def _victim(scene: Scene) -> int:
    """A process of the host's, in a cgroup whose devices are watched, too."""
    hierarchy = Path("/sys/fs/cgroup/devices")
    group = (hierarchy if hierarchy.is_dir() else Path("/sys/fs/cgroup")) / f"victim-{os.getpid()}"
    group.mkdir()
    process = subprocess.Popen(["sleep", "1000"])
    (group / "cgroup.procs").write_text(str(process.pid))
    if hierarchy.is_dir():
        (group / "devices.deny").write_text("a")

    def devices() -> object:
        listed = group / "devices.list"
        return listed.read_text() if listed.exists() else linux.device_programs(str(group))

    scene.processes.add(process.pid)
    before = devices()
    found: list[str] = []

    def end() -> None:
        if devices() != before:
            found.append(f"devices of a process of the host: {devices()}")
        process.kill()
        process.wait()
        group.rmdir()

    scene.later(end)
    scene.escaped = lambda out: found
    return process.pid


def preload(scene: Scene) -> None:
    """CVE-2025-23266: variables of the container that a hook without an env of its own gets."""
    scene.registered = True
    library = scene.root / "planted.so"
    library.write_bytes(scene.kit.preload.read_bytes())
    scene.config["process"]["env"] += [
        "LD_PRELOAD=/proc/self/cwd/planted.so",
        f"PLANTED={scene.host}/planted",
        "BASH_ENV=/proc/self/cwd/planted.sh",
        "PYTHONPATH=/proc/self/cwd",
        "PYTHONHOME=/planted",
    ]


def texts(place: str, scene: Scene) -> None:
    """Row 12: a link's text with commands for a terminal, in a sentence."""
    (scene.root / "usr/lib64").mkdir(parents=True)
    if place == "volume":
        scene.bundle.mounts(scene.volume, "/data", "ro")
        scene.link("usr/lib64/libcuda.so.1", f"/data/{ESCAPES}/x")
        (scene.volume / ESCAPES).mkdir()
    elif place == "ring":
        scene.link("usr/lib64/libcuda.so.1", ESCAPES)
        scene.link(f"usr/lib64/{ESCAPES}", "libcuda.so.1")
    else:
        scene.link("usr/lib64/libcuda.so.1", f"/etc/{ESCAPES}/x")
        (scene.root / "etc").mkdir(exist_ok=True)
        (scene.root / "etc" / ESCAPES).write_text("no folder")
    scene.escaped = lambda out: [f"said: {word!r}" for word in re.findall(r"[^\n\t -~]", scene.kept("said"))][:1]


def other_devices(scene: Scene) -> None:
    """CVE-2024-0136: devices that were not given, by nodes of the container's own making; index 0 is minor 2 there."""
    # A node without a driver: ENXIO where the cgroup lets it be opened.
    scene.probe = "for n in 1 3 7; do mknod /dev/t$n c 195 $n; true </dev/t$n; done"
    scene.bundle.asks("0", "utility")
    scene.escaped = lambda out: ["opened: a device that was not asked for"] * ("No such device" in out)


ATTACKS = [
    *[
        Attack(f"state-names-{name}", "row 10", partial(names_process, kind), codes=BAD_STATE, bites=bites)
        for name, kind, bites in (
            ("a-process-of-our-own", "ours", BOTH),
            ("a-process-of-the-host", "host", BOTH),
            ("a-kernel-thread", "kernel", BOTH if SEES_THE_KERNEL else ()),
            ("a-dead-process", "dead", ()),
        )
    ],
    Attack("state-names-a-process-of-the-host-v1", "row 10", partial(names_process, "host"),
           codes=BAD_STATE, cgroup="v1", runtimes=("runc",), bites=("runc",)),
    Attack("variables-of-the-container", "CVE-2025-23266", preload, "debian", codes=(),
           bites=("runc",)),
    *[
        Attack(f"commands-for-a-terminal-{place}", "row 12", partial(texts, place))
        for place in ("volume", "ring", "file")
    ],
    Attack("devices-that-nobody-gave", "CVE-2024-0136", other_devices, cgroup="v1", codes=SERVES,
           runtimes=("runc",), bites=("runc",)),
]  # fmt: skip
