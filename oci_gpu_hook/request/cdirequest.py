# SPDX-License-Identifier: Apache-2.0
"""The request of a container whose engine has injected devices by a CDI spec of ours.  Pure."""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, RequestError, quoted
from oci_gpu_hook.request import words
from oci_gpu_hook.request.bundle import BESIDE_GPUS, is_gpu
from oci_gpu_hook.request.parse import check_sections, permitted, requirements
from oci_gpu_hook.request.selectors import KnownVendor, Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs

# Nodes that a spec of ours brings with a device, beside those of GPUs: on a server, on a Jetson, under WSL 2.
_BESIDE = (*BESIDE_GPUS, "/dev/nvhost", "/dev/nvgpu/", "/dev/nvmap", "/dev/dxg")


def of_nodes(
    inputs: Inputs, settings: Settings, nodes: tuple[str, ...], capabilities: tuple[str, ...]
) -> tuple[Request, tuple[str, ...]]:
    """The request that the device nodes in config.json stand for, and a sentence for each thing that is left out."""
    # Control nodes stand for no device, and ``none`` has no node on a Jetson and under WSL 2.
    given = tuple([path for path in nodes if is_gpu(path) or path.startswith(_BESIDE)])
    notes, environment = check_sections(settings), inputs.environment
    # What the administrator allowed when the spec was made may be forbidden by now, or for this container.
    granted = permitted(capabilities, settings, notes)
    required, asked = requirements(environment, settings), words.listed(environment, words.DRIVER_CAPABILITIES)
    beyond = [name for name in words.CAPABILITIES if name in asked and name not in capabilities]
    variables = [name for name in (words.IMEX_CHANNELS, *words.MIG_MANAGEMENT) if environment.get(name)]
    variables += [feature.variable for feature in words.FEATURES if environment.get(feature.variable) == "enabled"]
    notes += [f"capability {name} is left out: the CDI spec is for {', '.join(capabilities)}" for name in beyond]
    notes += [f"{name} is left out: the CDI spec brings GPUs only" for name in variables]
    return Request("cdi", (), granted, required, nodes=given), tuple(notes)


def of_vendor(
    flag: str, known: tuple[KnownVendor, ...], nodes: tuple[str, ...], settings: Settings
) -> tuple[Request, tuple[str, ...]]:
    notes = tuple(check_sections(settings))
    if words.ALL not in settings.allowed_vendors and flag not in settings.allowed_vendors:
        raise RequestError(f"{flag} is not allowed", words.ADMINISTRATOR)
    for vendor in [it for it in known if it.flag == flag]:
        if vendor.fault:
            raise ConfigError(vendor.fault, words.ADMINISTRATOR)
        return Request("cdi", (), vendors=(Request("cdi", (), nodes=nodes, flag=flag, file=vendor.file),)), notes
    hint = "the administrator must take the spec away, or put the file back"
    raise ConfigError(f"the CDI spec is for {quoted(flag)}, which no vendor's file has", hint)
