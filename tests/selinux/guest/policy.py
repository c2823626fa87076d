# SPDX-License-Identifier: Apache-2.0
"""What differs between the policies that the rows can be run on: names of domains and types, and what is denied first.

`HERE` is the policy of the machine that this runs on.  Must not judge: `cases` and its siblings take what they expect
from it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

CONFIG = "/etc/selinux/config"


class Policy(NamedTuple):
    """One of them."""

    # The domains of the engines.
    engine: str
    podman: str
    dockerd: str
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
    # What engines make on the host outside /run.
    made: tuple[str, ...]
    # What a container may read of it.
    executor_is_closed: bool = True


REFPOLICY = Policy(
    engine="container_engine_t",
    podman="podman_t",
    dockerd="dockerd_t",
    agents_socket="s0:c1,c2",
    between_agents="nvidia_agent_t container_file_t:sock_file write",
    kubelets_folder="container_var_lib_t",
    executor="/var/lib/docker/buildkit/executor",
    executors_type="container_var_lib_t",
    configs_type="container_var_lib_t",
    made=(),
)
# Debian 13's: what engines and kubelet keep is of one type, and every pod's volume may have it.
LATER = REFPOLICY._replace(executor_is_closed=False)
TARGETED = Policy(
    engine="container_runtime_t",
    podman="container_runtime_t",
    dockerd="container_runtime_t",
    # A new file takes after its folder.
    agents_socket="s0",
    between_agents="nvidia_agent_t nvidia_agent_t:unix_stream_socket connectto",
    kubelets_folder="kubelet_var_lib_t",
    executor="/var/lib/buildkit/runc-overlayfs/executor",
    executors_type="container_ro_file_t",
    configs_type="oci_gpu_runtime_bundle_t",
    made=("/opt/containerd",),
)


def _here() -> Policy:
    try:
        with open(CONFIG, encoding="ascii") as file:
            if "SELINUXTYPE=targeted\n" in file:
                return TARGETED
    except FileNotFoundError:
        pass
    return LATER if os.path.exists("/sys/fs/selinux/booleans/container_use_host_all_caps") else REFPOLICY


HERE = _here()
