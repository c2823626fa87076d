# SPDX-License-Identifier: Apache-2.0
"""What to type about one container, in the words of the engine that runs it.  Pure.

Its names, and the bundle of a user's container, are others' words: a name is one of a command only if `remedy.is_name`
holds for it, and a user's container is that user's to start again.  Must not name a command of another engine.
"""

from __future__ import annotations

import os

from oci_gpu_hook.node.diagnosis.remedy import NOTHING, Remedy, command, in_words, is_name, then
from oci_gpu_hook.node.engines.containers import SHORT_ID, Running
from oci_gpu_hook.node.engines.enginekinds import BY_NAME, CONTAINERD, CRIO, VARIABLE


def _ways(who: Running) -> tuple[Remedy, Remedy, Remedy]:
    """What starts it again; what starts it if it has stopped, or tells why; what ends its pause."""
    id, kind, runtime = who.id, BY_NAME[who.called.engine], who.runtime
    resumed = command(runtime or "runc", "resume", id)
    if not is_name(id):
        return NOTHING, NOTHING, NOTHING
    if _is_the_kubelets(who):
        # The kubelet starts a new one in its place.
        return command("crictl", "stop", id[:SHORT_ID]), command("crictl", "inspect", id[:SHORT_ID]), resumed
    if kind.request:
        name = who.called.full or who.called.name
        verbs = ("restart", "start", "unpause")
        again, run, resumed = [command(kind.request[0], it, name if is_name(name) else id) for it in verbs]
        return again, run, resumed
    if kind == CONTAINERD:
        tasks = (*_ctr(who), "tasks")
        run = command(*tasks, "start", "--detach", id)
        return then(command(*tasks, "delete", "--force", id), run), run, command(*tasks, "resume", id)
    if not runtime:
        return NOTHING, NOTHING, resumed
    run = command(runtime, "run", "--detach", "--bundle", who.bundle, id)
    return then(command(runtime, "delete", "--force", id), run), run, resumed


def restart(who: Running) -> Remedy:
    by_hand = command("kill", str(who.pid)) if who.pid else in_words("start it again")
    return _of_owner(who, "start it again") or _ways(who)[0] or by_hand


def start(who: Running) -> Remedy:
    return _of_owner(who, "start it") or _ways(who)[1] or in_words("start it")


def resume(who: Running) -> Remedy:
    return _of_owner(who, "let it run on") or _ways(who)[2]


def ask(who: Running) -> Remedy:
    if _is_the_kubelets(who):
        note = f"{VARIABLE} in its env, or nvidia.com/gpu in its limits"
        return command("kubectl", "replace", "--force", "-f", "POD.yaml", note=note)
    kind = BY_NAME[who.called.engine]
    if kind.request:
        return command(*kind.request)
    if kind == CONTAINERD:
        return command(*_ctr(who), "run", "--env", VARIABLE, "...")
    file = f"{who.bundle}/config.json" if who.bundle and who.owner == os.geteuid() else "config.json"
    return command("vi", file, note=f"{VARIABLE} in process.env")


def accepted(who: Running) -> Remedy:
    return command("oci-gpu-hook", "info", "--settings", note="accept-environment, accept-volume-mounts")


def _of_owner(who: Running, does: str) -> Remedy:
    return in_words(f"the user {who.owner} must {does}") if who.owner != os.geteuid() else NOTHING


def _is_the_kubelets(who: Running) -> bool:
    return who.called.engine == CRIO.name or bool(who.called.pod)


def _ctr(who: Running) -> tuple[str, ...]:
    """containerd's namespace: a bundle's folder is FOLDER/NAMESPACE/ID."""
    namespace = who.bundle.rpartition("/")[0].rpartition("/")[2]
    return "ctr", "--namespace", namespace if is_name(namespace) else "default"
