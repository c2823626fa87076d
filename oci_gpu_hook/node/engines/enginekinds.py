# SPDX-License-Identifier: Apache-2.0
"""The container engines that commands know: one record each, with all that more than one place must know of it.

A start reads none of this: by which annotations it believes an engine is `request.annotations`.
"""

from __future__ import annotations

from oci_gpu_hook.node.machine import processes
from oci_gpu_hook.record import NamedTuple


class EngineKind(NamedTuple):
    """One engine; "" and () for what it has not.

    name: as people write it; programs: of which one is there where it is installed; caller: a file of its own that
    calls nvidia-container-cli.

    files: its settings in TOML, in the order in which it reads them, without those that containerd's import; table: of
    hooks_dir, if it reads hooks.d; default: the key of the runtime of containers that name none.

    word, options: what `configure` calls it, and its options for it; ours: the file that this writes (for a user see
    `configure`); unit: the service that reads it.

    places: what is part of a state's folder, a bundle's path or a cgroup's name that it has given; by_id: whether its
    users name a container by its id; request: what starts one with a GPU, by the program that does all else by name.
    """

    name: str
    programs: tuple[str, ...] = ()
    caller: str = ""
    files: tuple[str, ...] = ()
    table: str = ""
    default: str = ""
    word: str = ""
    options: str = ""
    ours: str = ""
    unit: str = ""
    places: tuple[str, ...] = ()
    by_id: bool = False
    request: tuple[str, ...] = ()


VARIABLE = "NVIDIA_VISIBLE_DEVICES=all"

PODMAN = EngineKind(
    "podman",
    ("podman",),
    files=tuple(
        f"{folder}/containers/containers.{name}"
        for folder in ("/usr/share", "/etc")
        for name in ("conf", "conf.d/*.conf", "rootful.conf.d/*.conf")  # the last is podman 6's, and root's
    ),
    table="engine",
    default="runtime",
    word="podman",
    options="--set-as-default --user",
    ours="/etc/containers/containers.conf.d/99-oci-gpu-hook.conf",
    places=("/libpod-",),
    request=("podman", "run", "--env", VARIABLE, "..."),
)
CRIO = EngineKind(
    "CRI-O",
    ("crio",),
    files=("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"),
    table="crio.runtime",
    default="default_runtime",
    word="crio",
    options="--name",
    ours="/etc/crio/crio.conf.d/99-oci-gpu-hook.conf",
    unit="crio",
    places=("/crio-",),
)
DOCKER = EngineKind(
    "Docker",
    ("dockerd",),
    word="docker",
    options="--name --set-as-default --cdi --user --swarm --shares",
    ours="/etc/docker/daemon.json",
    unit="docker",
    places=("/moby/", "/docker/", "/docker-"),
    request=("docker", "run", "--gpus", "all", "..."),
)
# Before 1.36 k0s merges its drop-ins into this file, which its containerd's settings import in their place.
K0S_MERGED = "/run/k0s/containerd-cri.toml"
CONTAINERD = EngineKind(
    "containerd",
    ("containerd", "k3s", "rke2", "k0s"),  # the latter bring their own, and write its settings
    files=(
        "/etc/containerd/config.toml",
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        "/etc/k0s/containerd.toml",
        "/etc/k0s/containerd.d/*.toml",
    ),
    default="default_runtime_name",
    word="containerd",
    options="--name --set-as-default --cdi",
    ours="/etc/containerd/conf.d/99-oci-gpu-hook.toml",  # of several the last one holds
    unit="containerd",
    places=("/cri-containerd-", "/containerd/"),
    by_id=True,
)
LXC = EngineKind("LXC", caller="/usr/share/lxc/hooks/nvidia", places=(f"/{processes.LXC}",), by_id=True)
# By the program that has started a container of LXC's: the words that start it again, end its pause, give it GPUs.
LXC_WAYS = {
    "lxc-start": ("lxc-stop --name {0} && lxc-start --name {0}", "lxc-unfreeze --name {0}", "oci-gpu-hook flags lxc"),
    "incusd": ("incus restart {0}", "incus start {0}", "incus config set {0} nvidia.runtime=true"),
    "lxd": ("lxc restart {0}", "lxc start {0}", "lxc config set {0} nvidia.runtime=true"),
}

ENGINES = (
    PODMAN,
    CRIO,
    DOCKER,
    CONTAINERD,
    LXC,
    EngineKind("enroot", caller="/etc/enroot/hooks.d/98-nvidia.sh"),
    EngineKind("Apptainer", caller="/usr/bin/apptainer"),
    EngineKind("SingularityCE", caller="/etc/singularity/singularity.conf"),
    EngineKind("Charliecloud", caller="/usr/bin/ch-fromhost"),
)
# With what has made a container that no engine knows.
BY_NAME = {kind.name: kind for kind in (*ENGINES, EngineKind(""))}
BY_WORD = {kind.word: kind for kind in ENGINES if kind.word}
