# SPDX-License-Identifier: Apache-2.0
"""What to type about one container, in the words of the engine that runs it.  Pure.

A container that has no engine is its runtime's.  Must not name a command of another engine.
"""

from __future__ import annotations

import shlex

from oci_gpu_hook.record import NamedTuple

PODMAN, CRIO, DOCKER, CONTAINERD = "podman", "CRI-O", "Docker", "containerd"

_VARIABLE = "NVIDIA_VISIBLE_DEVICES=all"
_ACCEPTED = "oci-gpu-hook config show | grep accept-"
# crictl takes the beginning of an id.
_SHORT = 12


class Patient(NamedTuple):
    """A container as its engine and runtime know it.

    engine: "" for none; word: what engines that have names take, else the id; is_pods: whether Kubernetes runs it;
    pid: of its first process; bundle, runtime: "" where they are not known.
    """

    engine: str
    word: str
    id: str
    is_pods: bool
    pid: int
    bundle: str
    runtime: str


def restart(who: Patient) -> str:
    """Start it anew, so that the hook runs again."""
    if _is_the_kubelets(who):
        # The kubelet starts a new one in its place.
        return f"crictl stop {who.id[:_SHORT]}"
    if who.engine in (PODMAN, DOCKER):
        return f"{_program(who)} restart {_word(who)}"
    if who.engine == CONTAINERD:
        return f"{_ctr(who)} tasks delete --force {who.id} && {_ctr(who)} tasks start --detach {who.id}"
    if not who.runtime:
        return f"kill {who.pid}"
    bundle, id = shlex.quote(who.bundle), shlex.quote(who.id)
    return f"{who.runtime} delete --force {id} && {who.runtime} run --detach --bundle {bundle} {id}"


def start(who: Patient) -> str:
    """Start one that has stopped, or see why it has."""
    if _is_the_kubelets(who):
        return f"see why: crictl inspect {who.id[:_SHORT]}"
    if who.engine in (PODMAN, DOCKER):
        return f"start it: {_program(who)} start {_word(who)}"
    if who.engine == CONTAINERD:
        return f"start it: {_ctr(who)} tasks start --detach {who.id}"
    return f"start it: {restart(who)}" if who.runtime else "start it"


def resume(who: Patient) -> str:
    """Let one run on that is paused."""
    if who.engine in (PODMAN, DOCKER):
        return f"{_program(who)} unpause {_word(who)}"
    if who.engine == CONTAINERD and not who.is_pods:
        return f"{_ctr(who)} tasks resume {who.id}"
    return f"{who.runtime or 'runc'} resume {shlex.quote(who.id)}"


def ask(who: Patient) -> str:
    """Start it with a request for a GPU."""
    if _is_the_kubelets(who):
        return f"kubectl replace --force -f POD.yaml  # {_VARIABLE} in its env, or nvidia.com/gpu in its limits"
    if who.engine == PODMAN:
        return f"podman run --env {_VARIABLE} ..."
    if who.engine == DOCKER:
        return "docker run --gpus all ..."
    if who.engine == CONTAINERD:
        return f"ctr --namespace {_namespace(who)} run --env {_VARIABLE} ..."
    file = shlex.quote(f"{who.bundle}/config.json") if who.bundle else "config.json"
    return f"vi {file}  # {_VARIABLE} in process.env"


def accepted(who: Patient) -> str:
    """See which requests the administrator accepts, and make one of those."""
    if _is_the_kubelets(who):
        return f"{_ACCEPTED}  # the pod can ask by nvidia.com/gpu in its limits"
    return _ACCEPTED


def _is_the_kubelets(who: Patient) -> bool:
    return who.engine == CRIO or who.is_pods


def _program(who: Patient) -> str:
    return who.engine.lower()


def _word(who: Patient) -> str:
    return shlex.quote(who.word or who.id)


def _ctr(who: Patient) -> str:
    return f"ctr --namespace {_namespace(who)}"


def _namespace(who: Patient) -> str:
    """containerd's namespace: a bundle's folder is FOLDER/NAMESPACE/ID."""
    return shlex.quote(who.bundle.rpartition("/")[0].rpartition("/")[2] or "default")
