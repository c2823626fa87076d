# SPDX-License-Identifier: Apache-2.0
"""CRI-O's pods under its two runtimes: containers as CRI-O writes them (crio.py), on a node that systemd has booted."""

from __future__ import annotations

import json

import pytest

from tests.integration import crio
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, in_turn, on_node, start
from tests.integration.inside import ALLOWED, COMPUTE, Seen, attempt, node

RUNTIMES = [("runc", "v2"), ("crun", "v2"), ("crun", "v1")]
# Each container counts those of its pod that have started, by their /dev/shm.
SHARED = "echo started >>/dev/shm/seen; echo $(cat /dev/shm/seen | busybox wc -l) of the pod"
OPENED = """
for path in $(find /dev/nvidia*); do echo $({ true <$path; } 2>&1); done
test ! -e /dev/nvidia0 -a ! -e /dev/nvidiactl || /app/cuda
"""
# As CRI-O starts it, but for its place for logs; the answer comes by the file descriptor that is named here.
CONMON = """
mkdir /run/attach && touch /run/answer
_OCI_SYNCPIPE=3 _OCI_STARTPIPE=4 conmon --systemd-cgroup --cid failing --cuuid failing --name failing \\
    --bundle {bundle} --container-pidfile /run/failing.pid --log-path /run/failing.log --exit-dir /run/attach \\
    --runtime /usr/bin/{runtime} --runtime-arg --root=/run/{runtime} --socket-dir-path /run/attach \\
    3>>/run/answer 4</dev/zero
for try in $(seq 30000); do if test -s /run/answer; then break; fi; sleep 0.02; done
cat /run/answer
"""


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_each_container_of_a_pod_has_what_it_asked_for(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str
) -> None:
    """By its environment, by nothing, by a device plugin's mounts, by an annotation of its own."""
    made = (
        crio.asks(crio.container(bundle("debian")), "1,5"),
        crio.container(bundle("debian")),
        crio.container(bundle("debian"), "device-plugin"),
        crio.container(bundle("debian"), "cdi-container"),
    )
    main, sidecar, listed, annotated = look(installed, made, runtime, cgroup)
    main.has_exactly(*COMPUTE, node(1), node(5))
    sidecar.has_exactly()
    assert "nvidia" not in " ".join(sidecar.mounts)
    listed.has_exactly(*COMPUTE, node(1), node(5))
    annotated.has_exactly(*COMPUTE, node(5))
    told = [it.printed for it in (main, sidecar, listed, annotated)]
    assert told == [f"{count} of the pod\n" for count in range(1, 5)]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_pods_own_annotation_asks_for_none_of_its_containers(
    installed: Installed, bundle: Maker, runtime: str
) -> None:
    """CRI-O copies it to each of them."""
    made = (crio.container(bundle("debian"), "cdi-pod"), crio.container(bundle("debian"), "cdi-pod", "cdi-container"))
    silent, annotated = look(installed, made, runtime, "v2")
    silent.has_exactly()
    annotated.has_exactly(*COMPUTE, node(5))


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_in_a_pod_with_a_user_namespace(installed: Installed, bundle: Maker, runtime: str, cgroup: str) -> None:
    """Its root is nobody here, and crun tells of no bundle, as there is a device."""
    found = {}
    for name, devices in (("main", "1,5"), ("sidecar", None)):
        made = crio.asks(crio.container(bundle("debian"), "user-namespace"), devices)
        found[name] = start(with_systemd(runtime), made.runs("/bin/sh", "-c", OPENED), name)
    seen = in_turn(installed, found, crio.pod(mapped=True), cgroup=cgroup, booted=True)
    answer = f": {ALLOWED[0]}"
    assert [line.endswith(answer) for line in seen["main"][:-1]] == [True] * 5, seen
    assert seen["main"][-1] == "cuInit 0, 2 devices"
    assert seen["sidecar"] == []


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_the_sentence_is_in_conmons_answer(installed: Installed, bundle: Maker, runtime: str) -> None:
    """It is what CRI-O quotes to the kubelet: ``container create failed: ...``."""
    made = crio.asks(crio.container(bundle("busybox")), "77").runs("/bin/true")
    script = CONMON.format(runtime=runtime, bundle=made.path)
    answer = json.loads(on_node(installed, crio.pod() + script, booted=True).printed())
    assert answer["pid"] < 0
    assert "oci-gpu-hook: unknown device '77': this host has indices 0 to 7" in answer["message"]


def look(installed: Installed, pod: tuple[Bundle, ...], runtime: str, cgroup: str) -> list[Seen]:
    """What the containers of a pod have, one after another."""
    done = attempt(
        installed,
        *pod,
        commands=SHARED,
        runtime=with_systemd(runtime),
        before=crio.pod(),
        cgroup=cgroup,
        booted=True,
        settings="accept-volume-mounts = yes\n",
    )
    return [each.seen() for each in done]


def with_systemd(runtime: str) -> str:
    """As CRI-O calls it."""
    return f"{runtime} --systemd-cgroup"
