# SPDX-License-Identifier: Apache-2.0
"""What the container asks for: the names of its devices and the rest of its environment become one `Request`.  Pure.

The grammar is that of NVIDIA's container stack, so that no image, no pod and no script has to change.  What cannot be
served is refused with a sentence, or left out with one; nothing is ignored.  What the administrator allows is applied
here.  Must not know what the host has: which GPU a selector means is `selection`'s business.
"""

from __future__ import annotations

from oci_gpu_hook import selectors
from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.selectors import ALL, NONE, VOID, items
from oci_gpu_hook.sources import (
    ADMINISTRATOR,
    AUTHOR,
    CUDA_VERSION,
    FEATURES,
    UNPRIVILEGED,
    accepts_words,
    is_legacy,
    named,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.config import Config
    from oci_gpu_hook.sources import Inputs, Names

DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"

# video also brings compute's libraries and display those of graphics: in the catalogue, which names both for them.
CAPABILITIES = ("utility", "compute", "video", "graphics", "display", "ngx", "compat32")
DEFAULT_CAPABILITIES = ("utility", "compute")

_REQUIRE = "NVIDIA_REQUIRE_"
_REQUIRE_JETPACK = "NVIDIA_REQUIRE_JETPACK"
_MIG_MANAGEMENT = ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
_MOST_IMEX_CHANNEL = (1 << 20) - 1
# As Go's strconv.ParseBool has it, which NVIDIA's stack reads this variable with.
_TRUE = ("1", "t", "T", "true", "TRUE", "True")


class Request(NamedTuple):
    """One container's request.

    source: ``env``, ``swarm``, ``mounts``, ``annotations``; ``cdi`` where the engine itself has injected devices by a
    spec of ours, and the devices are the paths of their nodes.
    devices: selectors in canonical form, in the order given: ``all`` alone; ``none`` alone (driver files, no GPU);
    a decimal index; ``GPU-<uuid>`` in lower case after the dash; ``00000000:07:00.0``; ``0:1`` and ``MIG-<uuid>`` and
    ``MIG-GPU-<uuid>/1/0`` for MIG devices.
    requirements: expressions as `requirements` reads them, all of which must hold.
    imex_channels: ``all`` alone, or decimal numbers; features: names in `FEATURES`.
    """

    source: str
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    mig_config: bool = False
    mig_monitor: bool = False
    imex_channels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


def parse(inputs: Inputs, allowed: Config) -> tuple[Request | None, tuple[str, ...]]:
    """The request, None where nothing is asked for; and a sentence for each thing that is left out.

    RequestError for what can be neither served nor left out.
    """
    notes: list[str] = []
    names = named(inputs, allowed, notes)
    devices = _devices(names)
    if not devices:
        return None, tuple(notes)
    environment = inputs.environment
    mig_config, mig_monitor = [
        _manages_mig(inputs, variable, devices) for variable in _MIG_MANAGEMENT
    ]
    asked = Request(
        source=names.source,
        devices=devices,
        capabilities=_capabilities(environment, allowed, notes),
        requirements=_requirements(environment, allowed, notes),
        mig_config=mig_config,
        mig_monitor=mig_monitor,
        imex_channels=_imex_channels(inputs, names, allowed, notes),
        features=_features(inputs, names, allowed, notes),
    )
    return asked, tuple(notes)


def of_nodes(
    inputs: Inputs, allowed: Config, nodes: Iterable[str], capabilities: Iterable[str]
) -> tuple[Request | None, tuple[str, ...]]:
    """The request that an engine has met by a CDI spec of ours: the device nodes in config.json stand for themselves.

    capabilities: those that the spec is for.  The image's requirements are the only thing left to read.
    """
    notes: list[str] = []
    given = tuple([path for path in nodes if path.startswith(("/dev/nvidia", "/dev/dri/"))])
    if not any([path.startswith("/dev/nvidia") for path in given]):
        return None, ()
    granted = tuple([name for name in CAPABILITIES if name in capabilities])
    requirements = _requirements(inputs.environment, allowed, notes)
    notes += _beyond_spec(inputs.environment, granted)
    return Request("cdi", given, granted, requirements), tuple(notes)


def _beyond_spec(environment: dict[str, str], granted: tuple[str, ...]) -> list[str]:
    """A sentence for each thing that the environment asks for and a CDI spec of GPUs does not bring."""
    asked = items(environment.get(DRIVER_CAPABILITIES, ""))
    notes = [
        f"capability {name} is left out: the CDI spec is for {', '.join(granted)}"
        for name in CAPABILITIES
        if name in asked and name not in granted
    ]
    features = [
        variable for feature, variable in FEATURES if environment.get(variable) == "enabled"
    ]
    others = [name for name in (IMEX_CHANNELS, *_MIG_MANAGEMENT) if environment.get(name)]
    notes += [f"{name} is left out: the CDI spec brings GPUs only" for name in (*others, *features)]
    return notes


def _devices(names: Names) -> tuple[str, ...]:
    """Selectors; empty where nothing is asked for.

    ``void`` anywhere turns everything off; else the first of ``all`` and ``none`` stands for the whole list.
    """
    words = [item.lower() for item in names.devices]
    if VOID in words:
        return ()
    for word in words:
        if word in (ALL, NONE):
            return (word,)
    if not words and (names.imex_channels or names.features):
        return (NONE,)
    return tuple(dict.fromkeys([selectors.device(item, names.where) for item in names.devices]))


def _capabilities(
    environment: dict[str, str], allowed: Config, notes: list[str]
) -> tuple[str, ...]:
    """Capabilities in `CAPABILITIES`' order; unset and empty mean utility and compute."""
    value = environment.get(DRIVER_CAPABILITIES)
    if value is None and is_legacy(environment):
        value = ALL
    asked = items(value or "") or list(DEFAULT_CAPABILITIES)
    for item in asked:
        if item not in CAPABILITIES and item != ALL:
            raise RequestError(
                f"unknown capability {quoted(item)} in {DRIVER_CAPABILITIES}",
                f"the container's author must choose from {', '.join(CAPABILITIES)} or all",
            )
    permitted = allowed.allowed_capabilities
    granted = [
        name for name in CAPABILITIES if (name in asked or ALL in asked) and name in permitted
    ]
    refused = [name for name in CAPABILITIES if name in asked and name not in permitted]
    if not granted:
        raise RequestError(
            f"none of the capabilities {', '.join(dict.fromkeys(asked))} is allowed", ADMINISTRATOR
        )
    if refused:
        notes.append(f"capability {', '.join(refused)} is not allowed: {ADMINISTRATOR}")
    return tuple(granted)


def granted(value: str) -> tuple[str, ...]:
    """A list of capabilities as a person gives it; RequestError for a name that is none."""
    words = items(value)
    for word in words:
        if word not in CAPABILITIES and word != ALL:
            raise RequestError(
                f"unknown capability {quoted(word)}",
                f"choose from {', '.join(CAPABILITIES)} or all",
            )
    return tuple([name for name in CAPABILITIES if name in words or ALL in words])


def _requirements(
    environment: dict[str, str], allowed: Config, notes: list[str]
) -> tuple[str, ...]:
    """The expressions of all NVIDIA_REQUIRE_* variables, and the one that a legacy image stands for."""
    found = []
    for name, value in environment.items():
        if name.startswith(_REQUIRE_JETPACK):
            notes.append(
                f"{quoted(name)} is left out: it is for Tegra, which this hook does not serve"
            )
        elif name.startswith(_REQUIRE) and value.strip():
            found.append(value)
    if allowed.disable_requirements or environment.get("NVIDIA_DISABLE_REQUIRE", "") in _TRUE:
        return ()
    if is_legacy(environment):
        found.append(f"cuda>={_major_minor(environment[CUDA_VERSION])}")
    return tuple(found)


def _major_minor(version: str) -> str:
    """``12.4`` of ``12.4.1``."""
    major, minor, *_ = (*version.strip().split(".", 2), "0")
    if not selectors.number(major, 10**6) or not selectors.number(minor, 10**6):
        raise RequestError(f"{CUDA_VERSION} is {quoted(version)}, which is no version", AUTHOR)
    return f"{int(major)}.{int(minor)}"


def _manages_mig(inputs: Inputs, variable: str, devices: tuple[str, ...]) -> bool:
    """Whether the container may configure, or monitor, MIG itself: for privileged ones only, and all of it."""
    value = inputs.environment.get(variable, "").strip()
    if not value:
        return False
    if value.lower() != ALL:
        raise RequestError(f"{variable} is {quoted(value)}: only 'all' can be asked for", AUTHOR)
    if not inputs.privileged:
        raise RequestError(
            f"{variable} is for containers with CAP_SYS_ADMIN only",
            "start the container privileged",
        )
    if any([selector.startswith("MIG-") or selector.count(":") == 1 for selector in devices]):
        raise RequestError(f"{variable}=all cannot be given beside single MIG devices", AUTHOR)
    return True


def _imex_channels(
    inputs: Inputs, names: Names, allowed: Config, notes: list[str]
) -> tuple[str, ...]:
    """Channels, each once; ``all`` alone."""
    asked = [(item, names.where) for item in names.imex_channels]
    in_environment = items(inputs.environment.get(IMEX_CHANNELS, ""))
    if accepts_words(inputs, allowed):
        asked += [(item, IMEX_CHANNELS) for item in in_environment]
    elif in_environment:
        notes.append(f"the request in {IMEX_CHANNELS} {UNPRIVILEGED}")
    if asked and allowed.ignore_imex_channels:
        notes.append(f"IMEX channels are left out: {ADMINISTRATOR}")
        return ()
    if ALL in [item for item, _ in asked]:
        return (ALL,)
    return tuple(dict.fromkeys([_imex_channel(item, where) for item, where in asked]))


def _imex_channel(item: str, where: str) -> str:
    channel = item[len("channel") :] if item.startswith("channel") else item
    found = selectors.number(channel, _MOST_IMEX_CHANNEL)
    if not found:
        raise RequestError(
            f"{quoted(item)} in {where} is no IMEX channel: a number from 0 to {_MOST_IMEX_CHANNEL}",
            AUTHOR,
        )
    return found


def _features(inputs: Inputs, names: Names, allowed: Config, notes: list[str]) -> tuple[str, ...]:
    """Features: the environment's where it is accepted, those of the list of devices in any case."""
    accepted = accepts_words(inputs, allowed)
    found = []
    for feature, variable in FEATURES:
        value = inputs.environment.get(variable, "")
        if feature in names.features or (value == "enabled" and accepted):
            found.append(feature)
        elif value == "enabled":
            notes.append(f"the request in {variable} {UNPRIVILEGED}")
        elif value:
            notes.append(
                f"{variable} is {quoted(value)}, which asks for nothing: only 'enabled' does"
            )
    return tuple(found)
