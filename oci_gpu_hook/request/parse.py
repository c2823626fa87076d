# SPDX-License-Identifier: Apache-2.0
"""What the container asks for: device names and the rest of its environment become one `Request`.  Pure.

The grammar is that of NVIDIA's container stack.  What cannot be served or is not allowed is refused or left out.
"""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.request import selectors, words
from oci_gpu_hook.request.selectors import KnownVendor, Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, Names, accepts_variable, find_names, is_legacy, is_void
from oci_gpu_hook.request.words import ADMINISTRATOR, ALL, AUTHOR, CAPABILITIES, CUDA_VERSION, NONE, listed

_REQUIRE = "NVIDIA_REQUIRE_"
_ALL_CSV_FILES = "csv-mounts=all"  # the one value of NVIDIA_REQUIRE_JETPACK that NVIDIA's runtime knows
_MAX_IMEX_CHANNEL = (1 << 20) - 1
_MAX_IMEX_CHANNELS = 2048  # as many as a driver has by default: a container that wants more can ask for all
_TRUE = ("1", "t", "T", "true", "TRUE", "True")  # for NVIDIA_DISABLE_REQUIRE, by Go's strconv.ParseBool


def parse_request(
    inputs: Inputs, settings: Settings, known: tuple[KnownVendor, ...] = ()
) -> tuple[Request | None, tuple[str, ...]]:
    """The request, None for none, and what is left out.  known: the vendors' files, () if none is named."""
    notes: list[str] = []
    names = find_names(inputs, settings, notes)
    nodes = names.devices if names.source == "devices" else ()
    by_name = () if nodes or is_void(names.devices) else names.devices
    devices, any_of = selectors.parse_devices(by_name, names.where, settings)
    if not names.devices and (names.imex_channels or names.features):
        devices = (NONE,)
    of_vendors: tuple[Request, ...] = ()
    unknown: list[str] = []
    if known:
        from oci_gpu_hook.request import vendorrequest

        of_vendors = vendorrequest.parse_vendors(inputs, settings, known, notes)
        unknown = vendorrequest.unknown(inputs, known)
    asks = bool(devices or nodes or any_of)
    if asks or of_vendors or notes:
        notes += check_sections(settings)
    notes += unknown
    if not asks:
        return Request(of_vendors[0].source, (), (), vendors=of_vendors) if of_vendors else None, tuple(notes)
    environment = inputs.environment
    is_single = any(map(selectors.is_mig, (*devices, *nodes))) or bool(any_of and any_of.profile)
    mig_config, mig_monitor = [_manages_mig(inputs, settings, it, is_single) for it in words.MIG_MANAGEMENT]
    request = Request(
        source=names.source,
        devices=devices,
        capabilities=_capabilities(inputs, names, settings, notes),
        requirements=requirements(environment, settings),
        mig_config=mig_config,
        mig_monitor=mig_monitor,
        imex_channels=_imex_channels(inputs, names, settings, notes),
        features=_features(inputs, names, settings, notes),
        jetpack_all=environment.get(words.REQUIRE_JETPACK) == _ALL_CSV_FILES,
        vendors=of_vendors,
        nodes=nodes,
        any_of=any_of,
    )
    return request, tuple(notes)


def check_sections(settings: Settings) -> list[str]:
    """A note if the container's sections are not known; RequestError if no settings can hold then."""
    if not settings.unmatched:
        return []
    sentence = f"the engine does not say the container's {' and '.join(settings.unmatched)}, by which settings differ"
    if settings.unmatched_sections == "refuse":
        raise RequestError(sentence, ADMINISTRATOR)
    return [f"{sentence}: the strictest of them hold"]


def requirements(environment: dict[str, str], settings: Settings) -> tuple[str, ...]:
    """The expressions of all NVIDIA_REQUIRE_* variables, and the one that a legacy image stands for."""
    if settings.disable_requirements or environment.get("NVIDIA_DISABLE_REQUIRE", "") in _TRUE:
        return ()
    # NVIDIA_REQUIRE_JETPACK says which files a Jetson gives, not what a driver must be.
    given = [(name, value) for name, value in environment.items() if name.startswith(_REQUIRE)]
    # Not strip(), which copies what may be megabytes.
    found = [it for name, it in given if it and not (it.isspace() or name.startswith(words.REQUIRE_JETPACK))]
    if sum(map(len, found)) > words.LONGEST_VALUE:
        raise RequestError(f"the variables {_REQUIRE}* are longer than {words.LONGEST_VALUE >> 10} KiB", AUTHOR)
    if is_legacy(environment):
        found.append(f"cuda>={_major_minor(environment[CUDA_VERSION])}")
    return tuple(found)


def _capabilities(inputs: Inputs, names: Names, settings: Settings, notes: list[str]) -> tuple[str, ...]:
    """Unset and empty mean utility and compute."""
    variable, environment = words.DRIVER_CAPABILITIES, inputs.environment
    asked = listed(environment, variable)
    # By its devices it asks as nvidia-docker 1 did, which gave all.
    if variable not in environment and (names.source == "devices" or is_legacy(environment)):
        asked = [ALL]
    asked = asked or list(words.DEFAULT_CAPABILITIES)
    if unknown := [word for word in asked if word not in (*CAPABILITIES, ALL)]:
        hint = f"the container's author must choose from {', '.join(CAPABILITIES)} or all"
        raise RequestError(f"unknown capability {quoted(unknown[0])} in {variable}", hint)
    return permitted(asked, settings, notes)


def permitted(asked: list[str] | tuple[str, ...], settings: Settings, notes: list[str]) -> tuple[str, ...]:
    """Of these capabilities those that the administrator allows; RequestError if there is none."""
    allowed = settings.allowed_capabilities
    granted = [name for name in CAPABILITIES if (name in asked or ALL in asked) and name in allowed]
    refused = [name for name in CAPABILITIES if name in asked and name not in allowed]
    if not granted:
        raise RequestError(f"none of the capabilities {', '.join(dict.fromkeys(asked))} is allowed", ADMINISTRATOR)
    if refused:
        notes.append(f"capability {', '.join(refused)} is not allowed: {ADMINISTRATOR}")
    return tuple(granted)


def _major_minor(version: str) -> str:
    numbers = [decimal(part, 10**6) for part in (*version.strip().split(".", 2), "0")[:2]]
    if None in numbers:
        raise RequestError(f"{CUDA_VERSION} is {quoted(version)}, which is not a version", AUTHOR)
    return f"{numbers[0]}.{numbers[1]}"


def _manages_mig(inputs: Inputs, settings: Settings, variable: str, is_single: bool) -> bool:
    """Whether it may configure, or monitor, all of MIG: if privileged, or if the settings let it watch."""
    value = inputs.environment.get(variable, "").strip()
    if not value:
        return False
    if value.lower() != ALL:
        raise RequestError(f"{variable} is {quoted(value)}: only 'all' can be asked for", AUTHOR)
    watches = variable == words.MIG_MANAGEMENT[1]
    if not inputs.privileged and not (watches and settings.mig_monitor == "always"):
        hint = f"start the container privileged{', or the administrator must set mig-monitor' if watches else ''}"
        raise RequestError(f"{variable} is for containers with CAP_SYS_ADMIN only", hint)
    if is_single:
        raise RequestError(f"{variable}=all cannot be given beside single MIG devices", AUTHOR)
    return True


def _imex_channels(inputs: Inputs, names: Names, settings: Settings, notes: list[str]) -> tuple[str, ...]:
    variable = words.IMEX_CHANNELS
    channels = [(item, names.where) for item in names.imex_channels]
    in_environment = listed(inputs.environment, variable)
    if in_environment and accepts_variable(inputs, variable, settings, notes):
        channels += [(item, variable) for item in in_environment]
    if channels and settings.ignore_imex_channels:
        notes.append(f"IMEX channels are left out: {ADMINISTRATOR}")
        return ()
    if ALL in [item for item, _ in channels]:
        return (ALL,)
    found: dict[str, None] = {}
    for item, where in channels:
        number = decimal(item.removeprefix("channel"), _MAX_IMEX_CHANNEL)
        if number is None:
            raise RequestError(f"{quoted(item)} in {where} is not an IMEX channel: 0 to {_MAX_IMEX_CHANNEL}", AUTHOR)
        found[str(number)] = None
    if len(found) > _MAX_IMEX_CHANNELS:
        raise RequestError(f"the container asks for more than {_MAX_IMEX_CHANNELS} single IMEX channels", AUTHOR)
    return tuple(found)


def _features(inputs: Inputs, names: Names, settings: Settings, notes: list[str]) -> tuple[str, ...]:
    found = []
    for feature in words.FEATURES:
        value = inputs.environment.get(feature.variable, "")
        asks = value == "enabled"
        if feature.name in names.features or (asks and accepts_variable(inputs, feature.variable, settings, notes)):
            found.append(feature.name)
        elif value and not asks:
            notes.append(f"{feature.variable} is {quoted(value)}, which asks for nothing: only 'enabled' does")
    return tuple(found)
