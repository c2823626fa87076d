# SPDX-License-Identifier: Apache-2.0
"""Advice about a container is in the words of the engine that runs it, and of no other."""

from __future__ import annotations

import errno
import json
import os
import posix
from pathlib import Path

import pytest

from oci_gpu_hook.asking import Options, Question
from oci_gpu_hook.cli import containerreport
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import Finding, remedy
from oci_gpu_hook.node.engines import containers
from oci_gpu_hook.node.engines.containers import ContainerNames, Running
from oci_gpu_hook.node.machine import processes
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import State
from tests.unit import hosts

ID = "ab" * 32
BUNDLE = f"/run/tasks/prod/{ID}"
OF = {
    name: Running(ID, 7, BUNDLE, runtime, called, os.geteuid())
    for name, runtime, called in (
        ("podman", "crun", ContainerNames("podman", "web")),
        ("CRI-O", "crun", ContainerNames("CRI-O", "main", "k8s_main_gpu_ml_u_0", "gpu", "ml")),
        ("Docker", "runc", ContainerNames("Docker", "web")),
        ("containerd", "runc", ContainerNames("containerd", "mine")),
        ("containerd for the kubelet", "runc", ContainerNames("containerd", "train", pod="gpu")),
        ("runc", "runc", ContainerNames("", ID)),
    )
}
WORDS = {
    "podman": ("podman",),
    "CRI-O": ("crictl", "kubectl", "crun resume"),
    "Docker": ("docker",),
    "containerd": ("ctr --namespace prod",),
    "containerd for the kubelet": ("crictl", "kubectl", "runc resume"),
    "runc": ("runc", "vi "),
}


@pytest.mark.parametrize("name", OF)
def test_every_advice_is_in_the_engines_own_words(name: str) -> None:
    for advise in (remedy.restart, remedy.start, remedy.resume, remedy.ask):
        text = advise(OF[name]).rpartition(": ")[2]
        assert text.startswith(WORDS[name]), text


def asks(*env: str, **more: object) -> Question:
    bundle = Bundle("/b", {"process": {"env": list(env)}, **more})
    return Question(bundle, State(), Options())


def unasked(engine: str, question: Question, settings: Settings, *notes: str) -> Finding:
    return containerreport._unasked(OF[engine], question, settings, notes, others=False)


LIST = {"destination": f"{sources.LIST_FOLDER}/0", "source": "/dev/null"}


def test_the_reason_is_the_setting_that_does_not_accept_what_it_asks() -> None:
    privileged = Settings()._replace(accept_environment="privileged")
    found = unasked("CRI-O", asks("NVIDIA_VISIBLE_DEVICES=all"), privileged, "why")
    assert "accept-environment = privileged does not accept: why" in found.seen
    assert found.remedy.startswith("oci-gpu-hook info --settings  # accept-environment, accept-")
    found = unasked("Docker", asks("A=1", mounts=[LIST]), Settings())
    assert "accept-volume-mounts = no does not accept" in found.seen
    found = unasked("Docker", asks("A=1"), Settings())
    assert "it asks for no GPU" in found.seen
    assert found.remedy == "docker run --gpus all ..."


def test_a_container_that_has_stopped_is_to_be_started_and_not_to_be_root(tmp_path: Path) -> None:
    hosts.plant(tmp_path, f"var/lib/docker/containers/{ID}/config.v2.json", json.dumps({"Name": "/web"}))
    with pytest.raises(UsageError, match=r"web does not run \(docker start web\)"):
        containerreport.running(HostRoot(str(tmp_path)), containers.find(HostRoot(str(tmp_path)), "web"), None)


def test_why_a_process_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"No such file or directory \(it has ended\)"):
        processes.is_contained(4194305)

    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(posix, "stat", refused)
    with pytest.raises(UsageError, match=r"Permission denied \(run it as root, with CAP_SYS_PTRACE\)"):
        processes.is_contained(1)
