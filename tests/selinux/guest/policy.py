# SPDX-License-Identifier: Apache-2.0
"""What differs between the policies that the rows can be run on: names of domains, and what a container may do.

`HERE` is the policy of the machine that this runs on.  Must not judge: `cases` and its siblings take what they expect
from it.
"""

from __future__ import annotations

from typing import NamedTuple

CONFIG = "/etc/selinux/config"
# What an open shows if nothing forbids it: a simulated node has no device behind it.
_NO_DEVICE = "ENXIO"
_DENIED = "EACCES"
_ALLOWED = "ok"


class Policy(NamedTuple):
    """One of them.  What an attempt gives is ``ok`` or the name of an error."""

    # The domains of the engines.
    engine: str
    podman: str
    dockerd: str
    # What container_t gets of the host's own /dev/dri, which a user namespace has.
    dri: str
    # Whether nvidia_container_use_dri decides for nvidia_container_t.
    dri_boolean: bool
    # The level of what an agent makes in the folder of kubelet's plugins; and what keeps an agent of another from it.
    agents_socket: str
    between_agents: str
    # The type of the rest of kubelet's folder.
    kubelets_folder: str
    # Where BuildKit keeps its bundles; the type of that folder, of image layers if the policy has no other; and that of
    # config.json in a bundle.
    executor: str
    executors_type: str
    configs_type: str
    # What the runtime gets that makes or removes a file of an image's layer.
    runtime_in_layer: str
    # What the hook gets that relabels a file in the host's /dev/shm, and a container that makes one there.
    relabels_shm: str
    hosts_shm: str
    # What a container gets that lists an engine's folder in /run, and that maps a node of its own for execution.
    list_engines: str
    map_node: str
    # What engines make on the host outside /run.
    made: tuple[str, ...]


REFPOLICY = Policy(
    engine="container_engine_t",
    podman="podman_t",
    dockerd="dockerd_t",
    dri=_DENIED,
    dri_boolean=True,
    agents_socket="s0:c1,c2",
    between_agents="nvidia_agent_t container_file_t:sock_file write",
    kubelets_folder="container_var_lib_t",
    executor="/var/lib/docker/buildkit/executor",
    executors_type="container_var_lib_t",
    configs_type="container_var_lib_t",
    runtime_in_layer=_DENIED,
    # A message queue has that type there.
    relabels_shm=_ALLOWED,
    hosts_shm="EACCES",
    list_engines=_DENIED,
    map_node=_DENIED,
    made=(),
)
TARGETED = Policy(
    engine="container_runtime_t",
    podman="container_runtime_t",
    dockerd="container_runtime_t",
    # By container_use_dri_devices, which is on for all types of containers.
    dri=_NO_DEVICE,
    dri_boolean=False,
    # A new file takes after its folder.
    agents_socket="s0",
    between_agents="nvidia_agent_t nvidia_agent_t:unix_stream_socket connectto",
    kubelets_folder="kubelet_var_lib_t",
    executor="/var/lib/buildkit/runc-overlayfs/executor",
    executors_type="container_ro_file_t",
    configs_type="oci_gpu_runtime_bundle_t",
    runtime_in_layer=_ALLOWED,
    relabels_shm=_DENIED,
    # New files there are a container's.
    hosts_shm=_ALLOWED,
    list_engines=_ALLOWED,
    map_node=_ALLOWED,
    made=("/opt/containerd",),
)


def _here() -> Policy:
    try:
        with open(CONFIG, encoding="ascii") as file:
            return TARGETED if "SELINUXTYPE=targeted\n" in file else REFPOLICY
    except FileNotFoundError:
        return REFPOLICY


HERE = _here()
