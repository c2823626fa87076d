# SPDX-License-Identifier: Apache-2.0
"""What to type about one container, in the words of the engine that runs it.  Pure.

A container that has no engine is its runtime's.  Its names, and the bundle of a user's container, are others' words: a
name is one of a command only if `remedy.is_name` holds for it, and a user's container is that user's to start again.
Must not name a command of another engine.
"""

from __future__ import annotations

import os

from oci_gpu_hook.node.diagnosis.remedy import NOTHING, Remedy, command, in_words, is_name, then
from oci_gpu_hook.node.engines.containerrecords import SHORT_ID, Running
from oci_gpu_hook.node.engines.enginekinds import BY_NAME, CONTAINERD, CRIO, VARIABLE


def _way(who: Running, verb: str) -> Remedy:
    """What does this to it: restart, so that the hook runs again; start, if it has stopped; resume, if it is paused."""
    id, kind, runtime, is_paused = who.id, BY_NAME[who.called.engine], who.runtime, verb == "resume"
    if not is_name(id):
        return NOTHING
    resumed = command(runtime or "runc", "resume", id)
    if _is_the_kubelets(who):
        # The kubelet starts a new one in its place.
        crictls = command("crictl", "stop" if verb == "restart" else "inspect", id[:SHORT_ID])
        return resumed if is_paused else crictls
    if kind.request:
        word = who.called.full or who.called.name
        return command(kind.request[0], "unpause" if is_paused else verb, word if is_name(word) else id)
    if kind == CONTAINERD:
        tasks = (*_ctr(who), "tasks")
        does = command(*tasks, verb, id) if is_paused else command(*tasks, "start", "--detach", id)
        return then(command(*tasks, "delete", "--force", id), does) if verb == "restart" else does
    if is_paused or not runtime:
        return resumed if is_paused else NOTHING
    run = command(runtime, "run", "--detach", "--bundle", who.bundle, id)
    return then(command(runtime, "delete", "--force", id), run)


def restart(who: Running) -> Remedy:
    """Start it again, so that the hook runs again."""
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must start it again")
    by_hand = command("kill", str(who.pid)) if who.pid else in_words("start it again")
    return _way(who, "restart") or by_hand


def start(who: Running) -> Remedy:
    """What to do about one that has stopped: start it, or see why it has."""
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must start it")
    found = _way(who, "start")
    return in_words(f"{'see why' if _is_the_kubelets(who) else 'start it'}: {found}" if found else "start it")


def resume(who: Running) -> Remedy:
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must let it run on")
    return _way(who, "resume")


def ask(who: Running) -> Remedy:
    """Start it with a request for a GPU."""
    if _is_the_kubelets(who):
        note = f"{VARIABLE} in its env, or nvidia.com/gpu in its limits"
        return command("kubectl", "replace", "--force", "-f", "POD.yaml", note=note)
    kind = BY_NAME[who.called.engine]
    if kind.request:
        return command(*kind.request)
    if kind == CONTAINERD:
        return command(*_ctr(who), "run", "--env", VARIABLE, "...")
    file = f"{who.bundle}/config.json" if who.bundle and not _is_anothers(who) else "config.json"
    return command("vi", file, note=f"{VARIABLE} in process.env")


def accepted(who: Running) -> Remedy:
    """See which requests the administrator accepts, and make one of those."""
    by_pod = "; the pod can ask by nvidia.com/gpu in its limits" if _is_the_kubelets(who) else ""
    return command("oci-gpu-hook", "info", "--settings", note=f"accept-environment, accept-volume-mounts{by_pod}")


def _is_anothers(who: Running) -> bool:
    return who.owner != os.geteuid()


def _is_the_kubelets(who: Running) -> bool:
    return who.called.engine == CRIO.name or bool(who.called.pod)


def _ctr(who: Running) -> tuple[str, ...]:
    """containerd's namespace: a bundle's folder is FOLDER/NAMESPACE/ID."""
    namespace = who.bundle.rpartition("/")[0].rpartition("/")[2]
    return "ctr", "--namespace", namespace if is_name(namespace) else "default"
