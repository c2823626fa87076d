# SPDX-License-Identifier: Apache-2.0
"""Ways to ask, for the tests of what is asked for: the inputs of a container, and what becomes of them."""

from __future__ import annotations

import pytest

from oci_gpu_hook import request, sources
from oci_gpu_hook.config import Config
from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.sources import Inputs

UUID = "GPU-11111111-2222-3333-4444-5555555555aa"
OTHER = "GPU-99999999-2222-3333-4444-5555555555aa"
MIG = "MIG-11111111-2222-3333-4444-5555555555aa"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LIST = "/var/run/nvidia-container-devices"
MOUNTS = Config(accept_volume_mounts=True)
SWARM = Config(swarm_resources=("DOCKER_RESOURCE_GPU", "MY_GPUS"))
HARDENED = Config(accept_environment="privileged")


def listed(*names: str) -> tuple[tuple[str, str], ...]:
    """A device list as mounts."""
    return tuple([("/dev/null", f"{LIST}/{name}") for name in names])


def asked(inputs: Inputs, config: Config = Config()) -> request.Request:  # noqa: B008  read only
    found, _ = request.parse(inputs, config)
    assert found is not None
    assert sources.may_ask(inputs) or config.swarm_resources
    return found


def env(**variables: str) -> Inputs:
    return Inputs({VISIBLE: "0", **variables})


def refusal(inputs: Inputs, config: Config = Config()) -> str:  # noqa: B008  read only
    with pytest.raises(RequestError) as caught:
        request.parse(inputs, config)
    sentence = str(caught.value)
    assert sentence.isascii() and sentence.isprintable() and len(sentence) < 700
    return sentence


def left_out(inputs: Inputs, config: Config) -> str:
    """The one sentence for what asks for nothing."""
    found, notes = request.parse(inputs, config)
    assert found is None
    (note,) = notes
    return note
