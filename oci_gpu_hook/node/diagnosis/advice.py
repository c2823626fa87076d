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
from oci_gpu_hook.record import NamedTuple


class _Ways(NamedTuple):
    """What starts a container again, so that the hook runs again, starts a stopped one, and resumes a paused one."""

    restart: Remedy = NOTHING
    start: Remedy = NOTHING
    resume: Remedy = NOTHING


def _ways(who: Running) -> _Ways:
    id, kind, runtime = who.id, BY_NAME[who.called.engine], who.runtime
    if not is_name(id):
        return _Ways()
    resume = command(runtime or "runc", "resume", id)
    if _is_the_kubelets(who):
        # The kubelet starts a new one in its place.
        return _Ways(command("crictl", "stop", id[:SHORT_ID]), command("crictl", "inspect", id[:SHORT_ID]), resume)
    if kind.request:
        word = who.called.full or who.called.name
        verbs = ("restart", "start", "unpause")
        return _Ways(*[command(kind.request[0], verb, word if is_name(word) else id) for verb in verbs])
    if kind == CONTAINERD:
        start = command(*_ctr(who), "tasks", "start", "--detach", id)
        delete = command(*_ctr(who), "tasks", "delete", "--force", id)
        return _Ways(then(delete, start), start, command(*_ctr(who), "tasks", "resume", id))
    if not runtime:
        return _Ways(resume=resume)
    run = command(runtime, "run", "--detach", "--bundle", who.bundle, id)
    again = then(command(runtime, "delete", "--force", id), run)
    return _Ways(again, again, resume)


def restart(who: Running) -> Remedy:
    """Start it again, so that the hook runs again."""
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must start it again")
    by_hand = command("kill", str(who.pid)) if who.pid else in_words("start it again")
    return _ways(who).restart or by_hand


def start(who: Running) -> Remedy:
    """What to do about one that has stopped: start it, or see why it has."""
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must start it")
    found = _ways(who).start
    return in_words(f"{'see why' if _is_the_kubelets(who) else 'start it'}: {found}" if found else "start it")


def resume(who: Running) -> Remedy:
    if _is_anothers(who):
        return in_words(f"the user {who.owner} must let it run on")
    return _ways(who).resume


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
