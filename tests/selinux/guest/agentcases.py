# SPDX-License-Identifier: Apache-2.0
"""The rows of a node's agents: what nvidia_agent_t may do with kubelet and features.d, and what stays closed.

The agents are stand-ins (`agent`), and so is kubelet (`kubelet`).
"""

from __future__ import annotations

from . import policy
from .cases import CRUN, OTHER, RUNC, WORKS, Container, Row
from .kubelet import ENGINE, FEATURES, PLUGINS, RESOURCES, ROOT

_AGENT = Container("nvidia_agent_t", agent=True, capabilities="utility")
_PROGRAM = ("/usr/bin/python3", "-Es", "/app/agent.py")
_GPUS = r"[1-9]\d*"
_REGISTRATION = f"connect:{PLUGINS}/kubelet.sock"
_LISTING = f"connect:{RESOURCES}/kubelet.sock"
_WRITTEN = f"{FEATURES}/gfd"
_CLOSED = "EACCES"
_LIVE = f"{PLUGINS}/live.sock"
_LISTENER = _AGENT._replace(
    gpu=False,
    mounts=(PLUGINS,),
    command=("/app/probe", f"listen:{_LIVE}", "stay"),
    hold=True,
    expect={f"listen:{_LIVE}": WORKS, "stay": WORKS},
)
# A container that is not an agent, though it was given the folders; the features are there for everybody.
_OTHERS = {_REGISTRATION: _CLOSED, _LISTING: _CLOSED, f"read:{_WRITTEN}": WORKS, f"make:{FEATURES}/planted": _CLOSED}
_FOLDERS = (PLUGINS, RESOURCES, FEATURES)
_EXPORTER = {"nvml": _GPUS, "pods": "team/train-0/main nvidia.com/gpu:GPU-0"}
_DISCOVERY = {"nvml": _GPUS, "features": "gfd", "feature label": "system_u:object_r:nvidia_feature_t:s0"}
_ASKER = _LISTENER._replace(command=(), hold=False)
_STRANGER = Container("container_t", OTHER, agent=True, gpu=False, mounts=_FOLDERS, expect=_OTHERS, avcs=None)

AGENTS = (
    Row(
        "agents: the device plugin",
        (
            _AGENT._replace(
                mounts=(PLUGINS,),
                command=(*_PROGRAM, "plugin"),
                expect={
                    "nvml": _GPUS,
                    "watch": WORKS,
                    "register": WORKS,
                    # Of kubelet's side.
                    "devices": _GPUS,
                    "plugin label": f"system_u:object_r:container_file_t:{policy.HERE.agents_socket}",
                },
            ),
        ),
        kubelet=True,
        runtimes=RUNC,
    ),
    Row(
        "agents: the exporter and feature discovery",
        (
            _AGENT._replace(mounts=(RESOURCES,), command=(*_PROGRAM, "exporter"), expect=_EXPORTER),
            _AGENT._replace(mounts=(FEATURES,), command=(*_PROGRAM, "discovery"), expect=_DISCOVERY),
        ),
        kubelet=True,
        runtimes=CRUN,
    ),
    Row(
        "agents: another agent's live socket",
        (
            _LISTENER,
            _ASKER._replace(level=OTHER, expect={f"connect:{_LIVE}": _CLOSED}, avcs=None),
            # Of one level they are one.
            _ASKER._replace(expect={f"connect:{_LIVE}": WORKS}),
        ),
        kubelet=True,
        denied=policy.HERE.between_agents,
        runtimes=CRUN,
    ),
    Row(
        "agents: the host",
        (
            _AGENT._replace(
                level=OTHER,
                gpu=False,
                mounts=(*_FOLDERS, f"{ROOT}:/host/kubelet", "/etc:/host/etc", "/run:/host/run"),
                expect={
                    _REGISTRATION: WORKS,
                    f"make:{RESOURCES}/planted": _CLOSED,
                    "read:/host/kubelet/cpu_manager_state": _CLOSED,
                    "make:/host/kubelet/planted": _CLOSED,
                    "make:/host/etc/planted": _CLOSED,
                    "make:/host/etc/kubernetes/planted": _CLOSED,
                    "make:/host/run/planted": _CLOSED,
                    f"connect:/host{ENGINE}": _CLOSED,
                    "connect:/host/run/systemd/private": _CLOSED,
                },
                avcs=None,
            ),
        ),
        kubelet=True,
        denied=f"nvidia_agent_t {policy.HERE.kubelets_folder}:dir write",
        runtimes=CRUN,
    ),
    Row(
        "agents: kubelet's sockets and other containers",
        (_STRANGER, _STRANGER._replace(type="nvidia_container_t")),
        kubelet=True,
        denied="nvidia_container_t kubelet_t:unix_stream_socket connectto",
        runtimes=RUNC,
    ),
)
