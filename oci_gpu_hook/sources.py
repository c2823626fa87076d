# SPDX-License-Identifier: Apache-2.0
"""Where a container names its devices: the environment, swarm resources, volume mounts, annotations.  Pure.

Which of them are accepted, and which goes before which, is decided here; what is not accepted is not read.  Must not
know what a name means: `request` makes selectors of them.
"""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.selectors import ALL, VOID, items

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.config import Config

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
CUDA_VERSION = "CUDA_VERSION"
REQUIRE_CUDA = "NVIDIA_REQUIRE_CUDA"

# A device list as mounts: of /dev/null, each with a device's name below this folder.
LIST_FOLDER = "/var/run/nvidia-container-devices"
CDI_ANNOTATIONS = "cdi.k8s.io/"

# What is asked for beside GPUs: the class of its CDI names, and its variable.
FEATURES = (
    ("gds", "NVIDIA_GDS"),
    ("mofed", "NVIDIA_MOFED"),
    ("gdrcopy", "NVIDIA_GDRCOPY"),
    ("nvswitch", "NVIDIA_NVSWITCH"),
)

# Who can mend a request, as the end of a sentence.
AUTHOR = "the container's author must mend it"
ADMINISTRATOR = "the administrator decides, in /etc/oci-gpu-hook.conf"
UNPRIVILEGED = f"is not accepted from a container without CAP_SYS_ADMIN: {ADMINISTRATOR}"

_CDI_VENDORS = ("nvidia.com", "runtime.nvidia.com", "management.nvidia.com")


class Inputs(NamedTuple):
    """All of a container's configuration that can ask for something.

    mounts: source and destination of each; privileged: CAP_SYS_ADMIN is in its bounding set.
    """

    environment: dict[str, str]
    mounts: tuple[tuple[str, str], ...] = ()
    annotations: dict[str, str] = {}  # noqa: RUF012  read only
    privileged: bool = False


class Names(NamedTuple):
    """The device names of one source, as they were given, and what only CDI names can ask for beside GPUs."""

    source: str
    where: str
    devices: tuple[str, ...]
    imex_channels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


def may_ask(inputs: Inputs) -> bool:
    """Whether anything at all asks, whatever the administrator allows; swarm resources, which he names, apart.

    Never False where `request.parse` finds one under the default settings.
    """
    environment = inputs.environment
    return (
        environment.get(VISIBLE_DEVICES, "") not in ("", VOID)
        or bool(environment.get(CUDA_VERSION) and VISIBLE_DEVICES not in environment)
        or any([destination.startswith(LIST_FOLDER) for _, destination in inputs.mounts])
        or any([key.startswith(CDI_ANNOTATIONS) for key in inputs.annotations])
    )


def named(inputs: Inputs, allowed: Config, notes: list[str]) -> Names:
    """Where the devices are named: accepted mounts before annotations, those before the environment.

    What is not accepted is not read either: no mistake in it stops the container.
    """
    if allowed.accept_volume_mounts:
        listed = _in_mounts(inputs.mounts, notes)
        if listed.devices or listed.imex_channels or listed.features:
            return listed
    elif any([_is_listed(*mount) for mount in inputs.mounts]):
        notes.append(f"the device list in volume mounts is not accepted: {ADMINISTRATOR}")
    named = _in_annotations(inputs)
    if not named.devices:
        named = _in_environment(inputs.environment, allowed)
    if _is_void(named.devices):
        return named._replace(devices=())
    if named.devices and not accepts_words(inputs, allowed):
        notes.append(f"the request in {named.where} {UNPRIVILEGED}")
        return named._replace(devices=())
    if named.devices == (LIST_FOLDER,):
        # What device plugins set beside a list in mounts.
        if not allowed.accept_volume_mounts:
            raise RequestError(
                f"{named.where} says that the devices are listed in volume mounts, which are not accepted",
                ADMINISTRATOR,
            )
        notes.append(
            f"{named.where} says that the devices are listed in volume mounts, and none are"
        )
        return named._replace(devices=())
    return _without_kinds(named)


def accepts_words(inputs: Inputs, allowed: Config) -> bool:
    """Whether this container's environment and annotations may ask: an image or a pod's author writes both."""
    return allowed.accept_environment == "always" or inputs.privileged


def _is_void(words: Iterable[str]) -> bool:
    return VOID in [word.lower() for word in words]


def _in_environment(environment: dict[str, str], allowed: Config) -> Names:
    """The device names in the environment: the administrator's swarm resources replace the usual variable."""
    swarm = [name for name in allowed.swarm_resources if name in environment]
    if swarm:
        found = [item for name in swarm for item in items(environment[name])]
        return Names("swarm", ",".join(swarm), tuple(found))
    value = environment.get(VISIBLE_DEVICES)
    if value is None:
        value = ALL if is_legacy(environment) else ""
    return Names("env", VISIBLE_DEVICES, tuple(items(value)))


def _is_listed(source: str, destination: str) -> bool:
    return source == "/dev/null" and destination.startswith(f"{LIST_FOLDER}/")


def _in_mounts(mounts: Iterable[tuple[str, str]], notes: list[str]) -> Names:
    """The device names that mounts of /dev/null stand for."""
    plain: list[str] = []
    qualified: list[str] = []
    channels: list[str] = []
    for source, destination in mounts:
        if not destination.startswith(f"{LIST_FOLDER}/"):
            continue
        name = destination[len(LIST_FOLDER) + 1 :]
        if source != "/dev/null":
            notes.append(
                f"the mount at {quoted(destination)} names no device: it is not of /dev/null"
            )
        elif name.startswith("cdi/"):
            vendor, _, rest = name[4:].partition("/")
            kind, _, last = rest.rpartition("/")
            qualified.append(f"{vendor}/{kind}={last}" if kind else f"{vendor}/{rest}")
        elif name.startswith("imex/"):
            channels.append(name[5:])
        else:
            plain.append(name)
    named = _without_kinds(Names("mounts", f"the mounts in {LIST_FOLDER}", tuple(qualified)))
    return named._replace(
        devices=(*plain, *named.devices), imex_channels=(*channels, *named.imex_channels)
    )


def _in_annotations(inputs: Inputs) -> Names:
    """The CDI names of NVIDIA's in annotations; those of other vendors are none of our business.

    None where the variable says ``void``, as a CDI spec sets it: then the engine itself has seen to the annotations.
    """
    found = [
        item
        for key, value in inputs.annotations.items()
        if key.startswith(CDI_ANNOTATIONS)
        for item in items(value)
        if item.partition("/")[0] in _CDI_VENDORS
    ]
    if found and _is_void(items(inputs.environment.get(VISIBLE_DEVICES, ""))):
        found = []
    return Names("annotations", f"the annotations {CDI_ANNOTATIONS}*", tuple(found))


def _without_kinds(names: Names) -> Names:
    """CDI-qualified names as what they name: devices, IMEX channels, features."""
    qualified = [item for item in names.devices if "=" in item]
    if not qualified:
        return names
    if len(qualified) != len(names.devices):
        raise RequestError(
            f"CDI names such as {quoted(qualified[0])} stand beside others in {names.where}",
            AUTHOR,
        )
    devices: list[str] = []
    channels: list[str] = []
    features: list[str] = []
    for item in qualified:
        kind, _, name = item.partition("=")
        vendor, _, device_class = kind.partition("/")
        if vendor in _CDI_VENDORS and device_class == "gpu":
            devices.append(name)
        elif vendor in _CDI_VENDORS and device_class == "imex-channel":
            channels.append(name)
        elif vendor in _CDI_VENDORS and device_class in [feature for feature, _ in FEATURES]:
            features.append(device_class)
        else:
            raise RequestError(
                f"unknown CDI kind in {quoted(item)} in {names.where}: the engine must resolve it",
                "nvidia.com/gpu, imex-channel, gds, mofed, gdrcopy and nvswitch are served",
            )
    return names._replace(
        devices=tuple(devices), imex_channels=tuple(channels), features=tuple(features)
    )


def is_legacy(environment: dict[str, str]) -> bool:
    """An image older than NVIDIA_REQUIRE_CUDA: it tells its CUDA version, and gets what such images got."""
    return bool(environment.get(CUDA_VERSION) and not environment.get(REQUIRE_CUDA))
