# SPDX-License-Identifier: Apache-2.0
"""What to type about one container, in the words of the engine that runs it.  Pure.

A container that has no engine is its runtime's.  Its names, and the bundle of a user's container, are others' words: a
name is one of a command only if `remedy.is_name` holds for it, and a user's container is that user's to start again.
Must not name a command of another engine.
"""

from __future__ import annotations

from oci_gpu_hook.node.diagnosis.remedy import NOTHING, Remedy, command, in_words, is_name, then
from oci_gpu_hook.record import NamedTuple

PODMAN, CRIO, DOCKER, CONTAINERD = "podman", "CRI-O", "Docker", "containerd"

_VARIABLE = "NVIDIA_VISIBLE_DEVICES=all"
_CONFIG = ("oci-gpu-hook", "config", "show")
_ACCEPT = "accept-environment, accept-volume-mounts"
# crictl takes the beginning of an id.
_SHORT = 12


class ContainerRef(NamedTuple):
    """A container as its engine and runtime know it.

    engine: "" for none; word: what engines that have names take, else the id; is_pods: whether Kubernetes runs it;
    pid: of its first process; bundle, runtime: "" if they are not known; user: whose container it is, None if it is
    that of who asks.
    """

    engine: str
    word: str
    id: str
    is_pods: bool
    pid: int
    bundle: str
    runtime: str
    user: int | None = None


def restart(who: ContainerRef) -> Remedy:
    """Start it again, so that the hook runs again."""
    if who.user is not None:
        return in_words(f"the user {who.user} must start it again")
    if not _can_be_named(who):
        return command("kill", str(who.pid)) if who.pid else in_words("start it again")
    if _is_the_kubelets(who):
        # The kubelet starts a new one in its place.
        return command("crictl", "stop", who.id[:_SHORT])
    if who.engine in (PODMAN, DOCKER):
        return command(_program(who), "restart", _word(who))
    if who.engine == CONTAINERD:
        delete = command(*_ctr(who), "tasks", "delete", "--force", who.id)
        return then(delete, command(*_ctr(who), "tasks", "start", "--detach", who.id))
    if not who.runtime:
        return command("kill", str(who.pid))
    run = command(who.runtime, "run", "--detach", "--bundle", who.bundle, who.id)
    return then(command(who.runtime, "delete", "--force", who.id), run)


def start(who: ContainerRef) -> Remedy:
    """What to do about one that has stopped: start it, or see why it has."""
    if who.user is not None:
        return in_words(f"the user {who.user} must start it")
    if not _can_be_named(who):
        return in_words("start it")
    if _is_the_kubelets(who):
        return in_words(f"see why: {command('crictl', 'inspect', who.id[:_SHORT])}")
    if who.engine in (PODMAN, DOCKER):
        return in_words(f"start it: {command(_program(who), 'start', _word(who))}")
    if who.engine == CONTAINERD:
        words = (*_ctr(who), "tasks", "start", "--detach", who.id)
        return in_words(f"start it: {command(*words)}")
    return in_words(f"start it: {restart(who)}" if who.runtime else "start it")


def resume(who: ContainerRef) -> Remedy:
    """Let one run on that is paused."""
    if who.user is not None:
        return in_words(f"the user {who.user} must let it run on")
    if not _can_be_named(who):
        return NOTHING
    if who.engine in (PODMAN, DOCKER):
        return command(_program(who), "unpause", _word(who))
    if who.engine == CONTAINERD and not who.is_pods:
        return command(*_ctr(who), "tasks", "resume", who.id)
    return command(who.runtime or "runc", "resume", who.id)


def ask(who: ContainerRef) -> Remedy:
    """Start it with a request for a GPU."""
    if _is_the_kubelets(who):
        note = f"{_VARIABLE} in its env, or nvidia.com/gpu in its limits"
        return command("kubectl", "replace", "--force", "-f", "POD.yaml", note=note)
    if who.engine == PODMAN:
        return command("podman", "run", "--env", _VARIABLE, "...")
    if who.engine == DOCKER:
        return command("docker", "run", "--gpus", "all", "...")
    if who.engine == CONTAINERD:
        return command(*_ctr(who), "run", "--env", _VARIABLE, "...")
    file = f"{who.bundle}/config.json" if who.bundle and who.user is None else "config.json"
    return command("vi", file, note=f"{_VARIABLE} in process.env")


def accepted(who: ContainerRef) -> Remedy:
    """See which requests the administrator accepts, and make one of those."""
    if _is_the_kubelets(who):
        return command(*_CONFIG, note=f"{_ACCEPT}; the pod can ask by nvidia.com/gpu in its limits")
    return command(*_CONFIG, note=_ACCEPT)


def _is_the_kubelets(who: ContainerRef) -> bool:
    return who.engine == CRIO or who.is_pods


def _can_be_named(who: ContainerRef) -> bool:
    """Whether its id can be a word of a command."""
    return is_name(who.id)


def _program(who: ContainerRef) -> str:
    return who.engine.lower()


def _word(who: ContainerRef) -> str:
    return who.word if is_name(who.word) else who.id


def _ctr(who: ContainerRef) -> tuple[str, ...]:
    """containerd's namespace: a bundle's folder is FOLDER/NAMESPACE/ID."""
    namespace = who.bundle.rpartition("/")[0].rpartition("/")[2]
    return "ctr", "--namespace", namespace if is_name(namespace) else "default"
