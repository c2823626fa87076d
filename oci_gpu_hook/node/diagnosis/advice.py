# SPDX-License-Identifier: Apache-2.0
"""What to type about one container, in the words of the engine that runs it.  Pure.

A container that has no engine is its runtime's.  Its names, and the bundle of a user's container, are others' words: a
name is one of a command only if `remedy.is_name` holds for it, and a user's container is that user's to start again.
Must not name a command of another engine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis.remedy import NOTHING, Remedy, command, in_words, is_name, then
from oci_gpu_hook.node.engines.containerrecords import CONTAINERD, CRIO, DOCKER, PODMAN

if TYPE_CHECKING:
    from oci_gpu_hook.node.engines.containerrecords import Running

_VARIABLE = "NVIDIA_VISIBLE_DEVICES=all"
_PROGRAMS = {PODMAN: "podman", DOCKER: "docker"}
# crictl takes the beginning of an id.
_SHORT = 12


def restart(who: Running) -> Remedy:
    """Start it again, so that the hook runs again."""
    engine = who.called.engine
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must start it again")
    if is_name(who.id) and _is_the_kubelets(who):
        # The kubelet starts a new one in its place.
        return command("crictl", "stop", who.id[:_SHORT])
    if is_name(who.id) and engine in _PROGRAMS:
        return command(_PROGRAMS[engine], "restart", _word(who))
    if is_name(who.id) and engine == CONTAINERD:
        return then(command(*_ctr(who), "tasks", "delete", "--force", who.id), _start_task(who))
    if is_name(who.id) and who.runtime:
        run = command(who.runtime, "run", "--detach", "--bundle", who.bundle, who.id)
        return then(command(who.runtime, "delete", "--force", who.id), run)
    return command("kill", str(who.pid)) if who.pid else in_words("start it again")


def start(who: Running) -> Remedy:
    """What to do about one that has stopped: start it, or see why it has."""
    engine = who.called.engine
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must start it")
    if not is_name(who.id):
        return in_words("start it")
    if _is_the_kubelets(who):
        return in_words(f"see why: {command('crictl', 'inspect', who.id[:_SHORT])}")
    if engine in _PROGRAMS:
        return in_words(f"start it: {command(_PROGRAMS[engine], 'start', _word(who))}")
    if engine == CONTAINERD:
        return in_words(f"start it: {_start_task(who)}")
    return in_words(f"start it: {restart(who)}" if who.runtime else "start it")


def resume(who: Running) -> Remedy:
    """Let one run on that is paused."""
    engine = who.called.engine
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must let it run on")
    if not is_name(who.id):
        return NOTHING
    if engine in _PROGRAMS:
        return command(_PROGRAMS[engine], "unpause", _word(who))
    if engine == CONTAINERD and not who.called.pod:
        return command(*_ctr(who), "tasks", "resume", who.id)
    return command(who.runtime or "runc", "resume", who.id)


def ask(who: Running) -> Remedy:
    """Start it with a request for a GPU."""
    if _is_the_kubelets(who):
        note = f"{_VARIABLE} in its env, or nvidia.com/gpu in its limits"
        return command("kubectl", "replace", "--force", "-f", "POD.yaml", note=note)
    if who.called.engine == PODMAN:
        return command("podman", "run", "--env", _VARIABLE, "...")
    if who.called.engine == DOCKER:
        return command("docker", "run", "--gpus", "all", "...")
    if who.called.engine == CONTAINERD:
        return command(*_ctr(who), "run", "--env", _VARIABLE, "...")
    file = f"{who.bundle}/config.json" if who.bundle and not _is_anothers(who) else "config.json"
    return command("vi", file, note=f"{_VARIABLE} in process.env")


def accepted(who: Running) -> Remedy:
    """See which requests the administrator accepts, and make one of those."""
    by_pod = "; the pod can ask by nvidia.com/gpu in its limits" if _is_the_kubelets(who) else ""
    note = f"accept-environment, accept-volume-mounts{by_pod}"
    return command("oci-gpu-hook", "config", "show", note=note)


def _is_anothers(who: Running) -> bool:
    return who.owner != os.geteuid()


def _is_the_kubelets(who: Running) -> bool:
    return who.called.engine == CRIO or bool(who.called.pod)


def _word(who: Running) -> str:
    """What engines that have names take: one of these, else the id."""
    word = who.called.full or who.called.name
    return word if is_name(word) else who.id


def _ctr(who: Running) -> tuple[str, ...]:
    """containerd's namespace: a bundle's folder is FOLDER/NAMESPACE/ID."""
    namespace = who.bundle.rpartition("/")[0].rpartition("/")[2]
    return "ctr", "--namespace", namespace if is_name(namespace) else "default"


def _start_task(who: Running) -> Remedy:
    return command(*_ctr(who), "tasks", "start", "--detach", who.id)
