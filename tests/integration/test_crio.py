# SPDX-License-Identifier: Apache-2.0
"""CRI-O's pods under its two runtimes, on a node that systemd has booted.

The containers are as CRI-O 1.37 writes them, made by hand after its sources (tests/data/crio) and fitted to a node:
container.json is a whole config.json, the other files are what a case adds to it.  All are of one pod, whose namespaces
and /dev/shm are there before they start.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, Bundle, in_turn, start
from tests.integration.inside import ALLOWED, COMPUTE, Seen, attempt, node

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


RUNTIMES = [("runc", "v2"), ("crun", "v2"), ("crun", "v1")]
# Each container counts those of its pod that have started, by their /dev/shm.
SHARED = "echo started >>/dev/shm/seen; echo $(cat /dev/shm/seen | busybox wc -l) of the pod"
OPENED = """
for path in $(find /dev/nvidia*); do echo $({ true <$path; } 2>&1); done
test ! -e /dev/nvidia0 -a ! -e /dev/nvidiactl || /app/cuda
"""


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_each_of_a_pod_has_what_it_asked_for(bundle: Maker, runtime: str, cgroup: str) -> None:
    """By its environment, by nothing, by a device plugin's mounts, by an annotation of its own."""
    made = [container(bundle("debian"), *cases) for cases in ((), (), ("device-plugin",), ("cdi-container",))]
    made[0].config["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=1,5")
    main, sidecar, listed, annotated = look(made, runtime, cgroup)
    main.has_exactly(*COMPUTE, node(1), node(5))
    sidecar.has_exactly()
    assert "nvidia" not in " ".join(sidecar.mounts)
    listed.has_exactly(*COMPUTE, node(1), node(5))
    annotated.has_exactly(*COMPUTE, node(5))
    told = [it.printed for it in (main, sidecar, listed, annotated)]
    assert told == [f"{count} of the pod\n" for count in range(1, 5)]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_pods_own_annotation_asks_for_no_container(bundle: Maker, runtime: str) -> None:
    """CRI-O copies it to each of them."""
    made = [container(bundle("debian"), "cdi-pod", *more) for more in ((), ("cdi-container",))]
    silent, annotated = look(made, runtime, "v2")
    silent.has_exactly()
    annotated.has_exactly(*COMPUTE, node(5))


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_in_a_pod_with_a_user_namespace(bundle: Maker, runtime: str, cgroup: str) -> None:
    """Its root is nobody here, and crun tells of no bundle, as there is a device."""
    found = {}
    for name, asked in (("main", ["NVIDIA_VISIBLE_DEVICES=1,5"]), ("sidecar", [])):
        made = container(bundle("debian"), "user-namespace")
        made.config["process"]["env"] += asked
        found[name] = start(f"{runtime} --systemd-cgroup", made.runs("/bin/sh", "-c", OPENED), name)
    seen = in_turn(found, pod(mapped=True), cgroup=cgroup, booted=True)
    answer = f": {ALLOWED[0]}"
    assert [line.endswith(answer) for line in seen["main"][:-1]] == [True] * 5, seen
    assert seen["main"][-1] == "cuInit 0, 2 devices"
    assert seen["sidecar"] == []


def look(made: list[Bundle], runtime: str, cgroup: str) -> list[Seen]:
    how: dict[str, Any] = {"cgroup": cgroup, "booted": True, "settings": "accept-volume-mounts = yes\n"}
    done = attempt(*made, commands=SHARED, runtime=f"{runtime} --systemd-cgroup", before=pod(), **how)
    return [it.seen() for it in done]
