# SPDX-License-Identifier: Apache-2.0
"""Containers as CRI-O 1.37 writes them, made by hand after its sources (tests/data/crio) and fitted to a node.

container.json is a whole config.json, the other files are what a case adds to it.  All containers are of one pod, whose
namespaces and /dev/shm are there before they start.  Must not import the source tree's modules.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.integration.engines import REPOSITORY, Bundle

DATA = REPOSITORY / "tests/data/crio"
MAPPED = 100_000
MAPS = f"--map-users={MAPPED},0,65536 --map-groups={MAPPED},0,65536"
SPACES = {"network": "net", "ipc": "ipc", "uts": "uts", "user": "user"}
# Runtimes write no cpu.weight where the machine's controllers belong to cgroup v1.
UNWRITABLE = ("cpu", "memory", "pids")


def container(made: Bundle, *cases: str) -> Bundle:
    """Make a bundle CRI-O's, whose root and hooks stay."""
    config = _read("container")
    for case in cases:
        _add(config, _read(case))
    # The oldest crun that is tested refuses a newer one.
    config["ociVersion"] = made.config["ociVersion"]
    config["root"] = {"path": str(made.rootfs)}
    config["hooks"] = made.config["hooks"]
    for name in UNWRITABLE:
        config["linux"]["resources"].pop(name, None)
    # As an id of its own would: two containers of a pod have two scopes.
    config["linux"]["cgroupsPath"] += f"-{made.path.name}"
    # What a test tries is refused by the device cgroup, not for want of a capability.
    for kind in ("bounding", "effective", "permitted"):
        config["process"]["capabilities"][kind].append("CAP_MKNOD")
    made.config = config
    return made.owned_by(MAPPED).told_to_the_driver() if "uidMappings" in config["linux"] else made


def asks(made: Bundle, devices: str | None) -> Bundle:
    """Add a request to the environment that is there."""
    if devices is not None:
        made.config["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={devices}")
    return made


def pod(*, mapped: bool = False) -> str:
    """The shell lines that make what CRI-O and the kubelet have made of the pod before its containers start."""
    config = _read("container")
    spaces = config["linux"]["namespaces"]
    spaces += _read("user-namespace")["linux"]["namespaces"] if mapped else []
    pinned = {space["type"]: space["path"] for space in spaces if "path" in space}
    sources = [mount["source"] for mount in config["mounts"] if mount["type"] == "bind"]
    (shm,) = [path for path in sources if path.endswith("/shm")]
    files = [*pinned.values(), *[path for path in sources if path != shm]]
    lines = [
        # The machine's own.
        "mount -t tmpfs none /var/lib",
        f"mkdir -p {shm} {' '.join(sorted({os.path.dirname(path) for path in files}))}",
        f"mount -t tmpfs -o mode=1777 shm {shm}",
        f"touch {' '.join(files)}",
        f"echo root:{MAPPED}:65536 >/etc/subuid && cp /etc/subuid /etc/subgid",
        f"unshare {MAPS if mapped else ''} --net --ipc --uts sh -c 'echo made; exec sleep 1000' >/run/made &",
        "until test -s /run/made; do sleep 0.02; done",
        *[f"mount --bind /proc/$!/ns/{SPACES[kind]} {path}" for kind, path in pinned.items()],
    ]
    return "\n".join([*lines, "kill $!", ""])


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(DATA, f"{name}.json").read_text())
    return document


def _add(document: dict[str, Any], more: dict[str, Any]) -> None:
    """Objects are merged, lists go on, anything else is replaced."""
    for key, value in more.items():
        if isinstance(value, dict):
            _add(document.setdefault(key, {}), value)
        elif isinstance(value, list):
            document[key] = document.get(key, []) + value
        else:
            document[key] = value
