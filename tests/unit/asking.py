# SPDX-License-Identifier: Apache-2.0
"""Requests for tests: the inputs of a container, and what becomes of them."""

from __future__ import annotations

import pytest

from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs
from oci_gpu_hook.request.state import State

UUID = "GPU-11111111-2222-3333-4444-5555555555aa"
MIG = "MIG-11111111-2222-3333-4444-5555555555aa"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LIST = "/var/run/nvidia-container-devices"
MOUNTS = Settings(accept_volume_mounts=True)
HARDENED = Settings(accept_environment="privileged")
ID = "c0a7" * 16


def of_crio(image: str = "", namespace: str = "", id: str = ID, **more: str) -> State:
    """A container of CRI-O's, which says so by the container's id."""
    said = {
        "io.kubernetes.cri-o.ContainerID": id,
        "io.kubernetes.cri-o.ImageName": image,
        "io.kubernetes.pod.namespace": namespace,
    }
    return State(id, annotations={**said, **more})


def listed(*names: str) -> tuple[tuple[str, str], ...]:
    """A device list as mounts."""
    return tuple([("/dev/null", f"{LIST}/{name}") for name in names])


def env(**variables: str) -> Inputs:
    """A container that asks for GPU 0, with these variables."""
    return Inputs({VISIBLE: "0", **variables})


def annotated(environment: dict[str, str], annotations: dict[str, str], *, privileged: bool = False) -> Inputs:
    return Inputs(environment, cdi=sources.cdi_names(annotations), privileged=privileged)


def request_of(inputs: Inputs, settings: Settings = Settings()) -> Request:  # noqa: B008  read only
    found, _ = parse_request(inputs, settings)
    assert found is not None
    assert sources.may_ask(inputs) or settings.swarm_resources
    return found


def by_environment(devices: str, capabilities: str = "", **variables: str) -> Request:
    """The request of a privileged container's environment."""
    environment = {VISIBLE: devices, "NVIDIA_DRIVER_CAPABILITIES": capabilities, **variables}
    return request_of(Inputs(environment, privileged=True))


def refusal(inputs: Inputs, settings: Settings = Settings()) -> str:  # noqa: B008  read only
    with pytest.raises(RequestError) as caught:
        parse_request(inputs, settings)
    sentence = str(caught.value)
    assert sentence.isascii() and sentence.isprintable() and len(sentence) < 700
    return sentence


def left_out(inputs: Inputs, settings: Settings) -> str:
    """The only sentence about a container whose request is left out."""
    found, (note,) = parse_request(inputs, settings)
    assert found is None
    return note
