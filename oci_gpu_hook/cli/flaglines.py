# SPDX-License-Identifier: Apache-2.0
"""The lines that give GPUs to containers, for each engine and spawner, as text to paste.  Pure.

Python that JupyterHub's configuration takes, or words of a command line.  Must not know what the host has: the caller
has looked the devices up.
"""

from __future__ import annotations

import json
import shlex
from textwrap import indent
from typing import NamedTuple

from oci_gpu_hook.cli.cdi import ENTRY
from oci_gpu_hook.request.words import ALL, VISIBLE_DEVICES

RUNTIME = "oci-gpu-runtime"
_PREFIX = ENTRY.rpartition("/libexec/")[0]
PROGRAM = f"{_PREFIX}/bin/{RUNTIME}"
HOOKS_FOLDER = f"{_PREFIX}/share/containers/oci/hooks.d"
# What dockerd's settings need, for people.
RUNTIMES = f'"runtimes": {{"{RUNTIME}": {{"path": "{PROGRAM}"}}}}'
MOUNTED_AT = "/usr/local/nvidia"
_KIND = "nvidia.com/gpu"


class Asked(NamedTuple):
    """Devices of this host.

    names: as they were asked for, `ALL` alone for all; each: a name for every single device; nodes: the paths of their
    nodes; version: the driver's that the driver's volume is named after.
    """

    names: tuple[str, ...]
    each: tuple[str, ...]
    nodes: tuple[str, ...]
    version: str


def volume_name(version: str) -> str:
    """The name of a driver's volume, as nvidia-docker 1 named it."""
    return f"nvidia_driver_{version}"


def docker_gpus(asked: Asked) -> list[str]:
    """``--gpus``.  Docker reads its value as a line of CSV, so more than one device must stand in quotes there."""
    if asked.names == (ALL,):
        return ["--gpus", ALL]
    value = f"device={','.join(asked.names)}"
    return ["--gpus", f'"{value}"' if "," in value else value]


def docker_runtime(asked: Asked) -> list[str]:
    """The runtime that adds the hook, and the variable that the hook reads."""
    return ["--runtime", RUNTIME, *podman_environment(asked)]


def docker_cdi(asked: Asked) -> list[str]:
    """CDI names; podman has the same option."""
    return [word for name in asked.names for word in ("--device", f"{_KIND}={name}")]


def docker_driver_volume(asked: Asked) -> list[str]:
    """What nvidia-docker 1 gave, but for its volume driver: today's dockerd makes the volume by its own."""
    nodes = [f"--device={path}" for path in asked.nodes]
    return [f"--volume={volume_name(asked.version)}:{MOUNTED_AT}:ro", *nodes]


def podman_environment(asked: Asked) -> list[str]:
    """The variable that the hook reads."""
    return ["--env", f"{VISIBLE_DEVICES}={','.join(asked.names)}"]


def compose_reservations(asked: Asked) -> str:
    """Compose: what ``docker run --gpus`` asks for; docker-compose 1 takes no count as none."""
    devices = f"count: {ALL}" if asked.names == (ALL,) else f"device_ids: {json.dumps(asked.names)}"
    return _compose(
        "by --gpus: needs the package oci-gpu-hook-docker; podman-compose drops 'deploy'", _reserved(devices)
    )


def compose_runtime(asked: Asked) -> str:
    """Compose: the runtime and the variable."""
    text = f"    runtime: {RUNTIME}\n{_variable(asked)}"
    return _compose(f"by the runtime: daemon.json needs {RUNTIMES}", text)


def compose_environment(asked: Asked) -> str:
    """Compose: the variable alone, which every Compose passes on."""
    needs = f"for docker-compose 1, Compose 2 and podman-compose: Docker needs {RUNTIME} as its default-runtime"
    return _compose(needs, _variable(asked))


def compose_cdi(asked: Asked) -> str:
    """Compose: CDI names."""
    names = json.dumps([f"{_KIND}={name}" for name in asked.names])
    needs = "by CDI, for Compose 2 from Docker 26 on; needs oci-gpu-hook cdi generate --output /etc/cdi/nvidia.yaml"
    return _compose(needs, _reserved(f"driver: cdi\n              device_ids: {names}"))


def _reserved(devices: str) -> str:
    """One reserved device of a service, ``capabilities`` beside it."""
    return f"""\
    deploy:
      resources:
        reservations:
          devices:
            - capabilities: [gpu]
              {devices}
"""


def _variable(asked: Asked) -> str:
    return f"    environment:\n      {VISIBLE_DEVICES}: {json.dumps(','.join(asked.names))}\n"


def _compose(needs: str, text: str) -> str:
    """A file with one service, which docker-compose 1 takes too."""
    return f'# {needs}\nversion: "3.8"\nservices:\n  gpu:\n    image: IMAGE\n{text}'


def shell(words: list[str]) -> str:
    """Words as a shell reads them."""
    return " ".join([shlex.quote(word) for word in words])


def spawner_runtime(asked: Asked) -> str:
    """DockerSpawner: the runtime and the environment."""
    names = json.dumps(",".join(asked.names))
    return f"""\
# The same GPUs for every user, by the runtime. dockerd's daemon.json needs
#   {RUNTIMES}
c.DockerSpawner.extra_host_config = {{"runtime": "{RUNTIME}"}}
c.DockerSpawner.environment = {{
    "{VISIBLE_DEVICES}": {names},
    "NVIDIA_DRIVER_CAPABILITIES": "utility,compute",
}}
"""


def spawner_requests(asked: Asked) -> str:
    """DockerSpawner: what ``docker run --gpus`` asks for."""
    devices = "count=-1" if asked.names == (ALL,) else f"device_ids={json.dumps(asked.names)}"
    return f"""\
# The same GPUs for every user, as by docker run --gpus: dockerd needs the package oci-gpu-hook-docker.
from docker.types import DeviceRequest

c.DockerSpawner.extra_host_config = {{
    "device_requests": [DeviceRequest({devices}, capabilities=[["gpu"]])],
}}
"""


def spawner_by_user(asked: Asked) -> str:
    """DockerSpawner: a callable, which gives each user another GPU."""
    rows = "".join([f'    "user{number}": [{json.dumps(name)}],\n' for number, name in enumerate(asked.each)])
    return f"""\
# A GPU for each user, as by docker run --gpus: dockerd needs the package oci-gpu-hook-docker. Put your users' names
# here; who is not named gets none, whatever the image asks for, and two users who have the same one share it.
from docker.types import DeviceRequest

GPUS = {{
{rows}}}


def host_config(spawner):
    gpus = GPUS.get(spawner.user.name)
    if not gpus:
        return {{}}
    return {{"device_requests": [DeviceRequest(device_ids=gpus, capabilities=[["gpu"]])]}}


def visible(spawner):
    return ",".join(GPUS.get(spawner.user.name) or ["void"])


c.DockerSpawner.extra_host_config = host_config
c.DockerSpawner.environment = {{"{VISIBLE_DEVICES}": visible}}
"""


def spawner_driver_volume(asked: Asked) -> str:
    """DockerSpawner: devices and the driver's volume, as in the time of nvidia-docker 1."""
    nodes = "".join([f'        "{path}:{path}:rw",\n' for path in asked.nodes])
    return f"""\
# The same GPUs for every user, without a runtime or a hook, for images of nvidia-docker 1's time: these look for the
# driver in {MOUNTED_AT}. 'oci-gpu-hook volume create', and the command that it prints, make the volume.
c.DockerSpawner.read_only_volumes = {{"{volume_name(asked.version)}": "{MOUNTED_AT}"}}
c.DockerSpawner.extra_host_config = {{
    "devices": [
{nodes}    ],
}}
"""


# JupyterHub shows the message of tornado's HTTPError, and of any other error nothing but its number.
SPAWNER_TELLS = """\

# A user whose server gets no GPU reads why, in the place of "500 : Internal Server Error".
from docker.errors import APIError
from dockerspawner import DockerSpawner
from tornado.web import HTTPError


class TellingSpawner(DockerSpawner):
    async def start(self):
        try:
            return await super().start()
        except APIError as err:
            _, said, why = str(err.explanation).rpartition("oci-gpu-hook: ")
            if not said:
                raise
            raise HTTPError(503, why.strip()) from err


c.JupyterHub.spawner_class = TellingSpawner
"""


def swarm_spawner(name: str, count: int) -> str:
    """SwarmSpawner: generic resources.  A service can say how many, never which."""
    return f"""\
# GPUs of each user's own, or shares: Swarm counts them, and no two tasks of a node get the same. The nodes' daemon.json
# and /etc/oci-gpu-hook.conf are as 'oci-gpu-hook swarm resources' says.
c.SwarmSpawner.extra_resources_spec = {{"generic_resources": {{{json.dumps(name)}: {count}}}}}
"""


_SHARED_MEMORY = """\
# Of the old work-arounds for /dev/shm none is needed: the hook gives /dev/shm and /dev/mqueue the label that the pod's
# containers need. Take out hostIPC and level s0. An emptyDir of medium Memory at /dev/shm still makes it larger than
# 64 MB, and serves nothing else.
"""


class _KubeMode(NamedTuple):
    """A GPU mode: what people must know of it, and KubeSpawner's settings beside the resources, as Python."""

    needs: str
    settings: dict[str, str]


KUBE_MODES = {
    "none": _KubeMode(
        """\
# GPU mode none: the pod stays in container_t. The device plugin picks the GPUs, and the hook puts them in.
""",
        {},
    ),
    # Our type, at the level that Open Data Hub's ConfigMap had.
    "selinux": _KubeMode(
        """\
# GPU mode selinux: for user namespaces, MPS and NVIDIA's services. The nodes need the module nvidia_container
# ('oci-gpu-hook selinux install'), and on OpenShift the service account needs an SCC that allows this type and level.
""",
        {
            "pod_security_context": """\
{
    "seLinuxOptions": {
        "type": "nvidia_container_t",
        # All such pods have this one level, so SELinux does not keep them apart from one another. It was there for
        # /dev/shm alone: without this line each pod has its own level, and shared memory works all the same.
        "level": "s0",
    },
}"""
        },
    ),
    "privileged": _KubeMode(
        """\
# GPU mode privileged: never needed for GPUs here. It costs everything: root in the pod is root on the node, with all
# its devices and GPUs, whatever the limit says; neither SELinux (spc_t) nor seccomp confines it. On OpenShift the
# service account needs the SCC 'privileged'. Take mode none.
# Kubernetes refuses a privileged pod that may not gain privileges, which is KubeSpawner's default.
""",
        {"privileged": "True", "allow_privilege_escalation": "True"},
    ),
}
_BY_SCC = """\
# GPU mode selinux: for user namespaces, MPS and NVIDIA's services. The nodes need the module nvidia_container. The
# constraints set the type and the namespace's level; the notebooks' service account must be allowed to use them.
"""
_PROFILES = """\
# Only who picks the profile has them: other notebooks keep the SELinux type, and the SCC, of notebooks without GPUs.
"""


def kube(mode: str, limits: dict[str, int], *, scc: str = "", is_profile: bool = False) -> str:
    """KubeSpawner, in one of `KUBE_MODES`.

    scc: OpenShift's constraints that set the type, "" for none; is_profile: for who picks a profile, not for everybody.
    """
    needs, settings = KUBE_MODES[mode]
    others: dict[str, str] = {}
    if scc:
        needs, settings = _BY_SCC, {"extra_annotations": _required(scc)}
        # Who may use both gets those whose name sorts first, if a pod requires none.
        others = {"extra_annotations": _required("restricted-v2")}
    rows = ", ".join([f'{json.dumps(name)}: "{count}"' for name, count in limits.items()])
    settings = {"extra_resource_limits": f"{{{rows}}}", **settings}
    if is_profile:
        profiles = [
            _profile("Without a GPU", "no-gpu", {"default": "True"}, others),
            _profile("With a GPU", "gpu", {}, settings),
        ]
        lines = [_PROFILES, "c.KubeSpawner.profile_list = [\n", *profiles, "]\n"]
    else:
        lines = [f"c.KubeSpawner.{name} = {text}\n" for name, text in settings.items()]
    return "".join([needs, *lines, _SHARED_MEMORY])


def _required(scc: str) -> str:
    return json.dumps({"openshift.io/required-scc": scc})


def _profile(title: str, slug: str, more: dict[str, str], overrides: dict[str, str]) -> str:
    """An item of KubeSpawner's list."""
    items = {"display_name": json.dumps(title), "slug": json.dumps(slug), **more}
    if overrides:
        items["kubespawner_override"] = f"{{\n{_items(overrides)}}}"
    return indent(f"{{\n{_items(items)}}},\n", " " * 4)


def _items(found: dict[str, str]) -> str:
    """What stands in a dictionary's braces; the values are Python."""
    return indent("".join([f'"{name}": {text},\n' for name, text in found.items()]), " " * 4)
