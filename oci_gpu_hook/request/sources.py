# SPDX-License-Identifier: Apache-2.0
"""Where a container names its devices: environment, swarm resources, volume mounts, annotations; which of these has
precedence, and which are accepted: another is not read.  Pure.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, RequestError, quoted
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request import words
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import ADMINISTRATOR, ALL, AUTHOR, CUDA_VERSION, VISIBLE_DEVICES, VOID, items, listed

LIST_FOLDER = "/var/run/nvidia-container-devices"  # of mounts of /dev/null, each at a device's name
CDI_ANNOTATIONS = "cdi.k8s.io/"
# NVIDIA's device plugin writes a CDI spec of a kind of its own.  Where engines resolve annotations themselves, NVIDIA's
# GPU operator has it write them with another prefix, for NVIDIA's runtime.
_PLUGINS_ANNOTATIONS, _PLUGINS_KIND = f"nvidia.{CDI_ANNOTATIONS}", "k8s.device-plugin.nvidia.com/"
# Where nvidia-docker 1 mounted a volume with the driver's files, and how that volume's name began.
_DRIVER_FOLDER, _DRIVER_VOLUME = "/usr/local/nvidia", "/nvidia_driver_"

UNPRIVILEGED = "is not accepted from a container without CAP_SYS_ADMIN"
_PODS = f"a pod's author must ask for nvidia.com/gpu in its limits; else {ADMINISTRATOR}"
_STRATEGY = "the administrator must set DEVICE_LIST_STRATEGY to envvar or volume-mounts in NVIDIA's device plugin"
_RESOURCES = "the administrator must name them in node-generic-resources: 'oci-gpu-hook configure docker --swarm' does"

# Docker Swarm tells a task in variables of these names which of its node's generic resources are the task's.
SWARM_VARIABLE = "DOCKER_RESOURCE_"

# CRI-O hands each container its pod's annotations too, and says here, as one JSON object, which are its own.
_OWN_ANNOTATIONS = "io.kubernetes.cri-o.Annotations"
_CRIOS_CONTAINER_TYPE = "io.kubernetes.cri-o.ContainerType"
_CONTAINER_TYPE = "io.kubernetes.cri.container-type"  # containerd's


class Inputs(NamedTuple):
    """All that can ask.  cdi: names in annotations that count; given: see `Bundle.given_gpus`, for an old image.  By
    dockerd's record: docker_devices: the value of NVIDIA_VISIBLE_DEVICES that dockerd itself has appended (``--gpus``),
    else ""; images: the variables of a Swarm task that can be its image's own, None for any other container.
    """

    environment: dict[str, str]
    mounts: tuple[tuple[str, str], ...] = ()
    cdi: tuple[str, ...] = ()
    privileged: bool = False
    given: tuple[str, ...] = ()
    docker_devices: str = ""
    images: frozenset[str] | None = None


class Names(NamedTuple):
    """The device names of one place, as they were given; where: the place, for people."""

    source: str
    where: str
    devices: tuple[str, ...]
    imex_channels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


NOTHING = Names("", "", ())


def inputs_of(bundle: Bundle, annotations: dict[str, str]) -> Inputs:
    """annotations: those of config.json and of the state; RequestError as `cdi_names`."""
    environment, mounts = bundle.environment(), bundle.bindings()
    # dockerd makes a volume of nvidia-docker 1's name, empty, if there is none.
    has_volume = any([_DRIVER_VOLUME in source and path.rstrip("/") == _DRIVER_FOLDER for source, path in mounts])
    is_old = VISIBLE_DEVICES not in environment and (has_volume or is_legacy(environment))
    given = bundle.given_gpus() if is_old else ()
    return Inputs(environment, mounts, cdi_names(annotations), bundle.is_privileged(), given)


def may_ask(inputs: Inputs) -> bool:
    """Whether anything asks, accepted or not, swarm resources apart.  Never False where `parse` finds a request."""
    environment = inputs.environment
    return (
        environment.get(VISIBLE_DEVICES, "") not in ("", VOID)
        or _gets_default(environment)
        or bool(inputs.given or inputs.cdi)
        or any([destination.startswith(LIST_FOLDER) for _, destination in inputs.mounts])
    )


def may_name_vendor(inputs: Inputs, settings: Settings | None = None) -> bool:
    """Whether anything may ask for another vendor's devices; without `settings`, swarm resources apart."""
    return (
        any([name.startswith(words.VENDOR_PREFIX) for name in inputs.environment])
        or not all(map(_by_nvidia, inputs.cdi))
        or bool(settings and any(["=" in word for word in settings.swarm_resources]))
    )


def place(inputs: Inputs, cdi: list[str], settings: Settings | None, flag: str = "") -> Names:
    """Names in annotations (`cdi`), else in swarm resources, if `settings` are given, else in the flag's variable."""
    environment, variable = inputs.environment, flag or VISIBLE_DEVICES
    # A CDI spec sets the variable to ``void``: the engine has served the annotations.
    if cdi and not is_void(listed(environment, variable)):
        return Names("annotations", f"the annotations {CDI_ANNOTATIONS}*", tuple(cdi))
    swarm = [name for name in _swarm_variables(settings, flag) if name in environment] if settings else []
    found = [item for name in swarm or [variable] for item in listed(environment, name)]
    return Names("swarm" if swarm else "env", ",".join(swarm) or variable, tuple(found))


def swarm_variables(path: str | None) -> tuple[str, ...]:
    """All variables of swarm resources that the administrator's files name; none if these cannot be read."""
    from oci_gpu_hook.request.settings import read_settings

    try:
        return tuple(_swarm_variables(read_settings(path, None)))
    except (ConfigError, RequestError):
        return ()


def _swarm_variables(settings: Settings, flag: str | None = None) -> list[str]:
    """The variables of swarm resources for the vendor with this flag, "" for NVIDIA, None for all."""
    pairs = [word.rpartition("=") for word in settings.swarm_resources]
    return [variable for owner, _, variable in pairs if flag is None or owner == flag]


def find_names(inputs: Inputs, settings: Settings, notes: list[str]) -> Names:
    """NVIDIA's devices in the first place that names any: accepted mounts, then annotations, then variables."""
    if settings.accept_volume_mounts:
        mounted = _in_mounts(inputs.mounts, notes)
        if any(mounted[2:]):
            return mounted
    elif any([source == "/dev/null" and target.startswith(f"{LIST_FOLDER}/") for source, target in inputs.mounts]):
        leave_out("the device list in volume mounts is not accepted: accept-volume-mounts is no", settings, notes)
    if inputs.cdi:
        _refuse_plugins(inputs.cdi, inputs.environment)
    found = place(inputs, [name for name in inputs.cdi if _by_nvidia(name)], settings)
    is_old = _gets_default(inputs.environment)
    if found.source == "env" and (is_old or inputs.given):
        where = CUDA_VERSION if is_old else f"the volume at {_DRIVER_FOLDER}"
        found = Names("devices" if inputs.given else "env", where, inputs.given or (ALL,))
    places = [found, place(inputs, [], None)] if _is_dockers(inputs) else [found]
    found = accepted(places, inputs, settings, notes)
    if found.devices != (LIST_FOLDER,):
        return _without_kinds(found)
    # Device plugins set this beside a list in volume mounts.
    if not settings.accept_volume_mounts:
        why = f"{found.where} says that the devices are listed in volume mounts, which are not accepted"
        raise RequestError(f"{why}: accept-volume-mounts is no", ADMINISTRATOR)
    notes.append(f"{found.where} says that the devices are listed in volume mounts, and none are")
    return NOTHING


def accepted(places: list[Names], inputs: Inputs, settings: Settings, notes: list[str], flag: str = "") -> Names:
    """The first of these places that may ask, with a note for each before it; NOTHING if one asks for nothing."""
    for names in places:
        if not names.devices or is_void(names.devices):
            break
        why = refusal(inputs, settings, names.where, flag)
        if not why:
            _refuse_counts(names.where, inputs.environment)
            return names
        # Lists in volume mounts are a device plugin's.
        hint = _PODS if settings.accept_volume_mounts and not flag else ADMINISTRATOR
        leave_out(f"the request in {names.where} {why}", settings, notes, hint)
    return NOTHING


def accepts_environment(inputs: Inputs, settings: Settings) -> bool:
    """Whether environment and annotations may ask: an image or a pod's author writes both, swarm resources too."""
    return settings.accept_environment == "always" or inputs.privileged


def _is_dockers(inputs: Inputs) -> bool:
    """Whether dockerd has appended the variable: who may say ``--gpus`` to dockerd is root on the host."""
    return bool(inputs.docker_devices) and inputs.docker_devices == inputs.environment.get(VISIBLE_DEVICES)


def refusal(inputs: Inputs, settings: Settings, where: str, flag: str = "") -> str:
    """Why a request in the variables `where` (a comma list) is not accepted; "" if it is.  Who may make services is
    root on their nodes, so what no image can have written in a task counts as Swarm's own.
    """
    names, images = where.split(","), inputs.images
    if not flag and where == VISIBLE_DEVICES and _is_dockers(inputs):
        return ""
    if images is not None and images.isdisjoint(names):
        if all([name.startswith(SWARM_VARIABLE) for name in names]):
            return ""
    elif images is not None and _swarm_variables(settings, flag):
        return "may be the image's own, and must not go past what Swarm counts"
    return "" if accepts_environment(inputs, settings) else UNPRIVILEGED


def leave_out(sentence: str, settings: Settings, notes: list[str], hint: str = ADMINISTRATOR) -> None:
    """Note that a request is not accepted; RequestError if the settings refuse such containers."""
    if settings.unaccepted_requests == "refuse":
        raise RequestError(sentence, hint)
    notes.append(f"{sentence}: {hint}")


def accepts_variable(inputs: Inputs, variable: str, settings: Settings, notes: list[str]) -> bool:
    if accepts_environment(inputs, settings):
        return True
    leave_out(f"the request in {variable} {UNPRIVILEGED}", settings, notes)
    return False


def is_legacy(environment: dict[str, str]) -> bool:
    """Whether the image is older than NVIDIA_REQUIRE_CUDA, and says its CUDA version alone."""
    return bool(environment.get(CUDA_VERSION) and not environment.get(words.REQUIRE_CUDA))


def _gets_default(environment: dict[str, str]) -> bool:
    """Whether an old image asks by its age alone."""
    return VISIBLE_DEVICES not in environment and is_legacy(environment)


def is_void(names: list[str] | tuple[str, ...]) -> bool:
    return VOID in [name.lower() for name in names]


def _refuse_counts(where: str, environment: dict[str, str]) -> None:
    """RequestError if Swarm gives a number of devices in one of these variables, but not which: dockerd takes a number
    for a count, never for a resource's name.  So a number that stands alone is not an index.
    """
    for variable in where.split(","):
        names = listed(environment, variable)
        if variable.startswith(SWARM_VARIABLE) and len(names) == 1 and names[0].isascii() and names[0].isdecimal():
            why = f"{variable} is {quoted(names[0])}, a number of devices, which does not say which ones"
            raise RequestError(why, _RESOURCES)


def _refuse_plugins(cdi: tuple[str, ...], environment: dict[str, str]) -> None:
    """RequestError for the device plugin's own kind, unless the variable has the same devices: an image's own value of
    it must not give others than the plugin has counted.
    """
    names = [item.partition("=")[2] for item in cdi if item.startswith(_PLUGINS_KIND)]
    asked = listed(environment, VISIBLE_DEVICES)
    if names and not is_void(asked) and sorted(asked) != sorted(names):
        why = f"the device plugin names {quoted(names[0])} by {_PLUGINS_KIND}gpu, a CDI kind of its own"
        raise RequestError(f"{why}, which needs nvidia-ctk", _STRATEGY)


def _in_mounts(mounts: tuple[tuple[str, str], ...], notes: list[str]) -> Names:
    plain, qualified, channels = [], [], []
    for source, destination in mounts:
        if not destination.startswith(f"{LIST_FOLDER}/"):
            continue
        name = destination[len(LIST_FOLDER) + 1 :]
        if source != "/dev/null":
            notes.append(f"the mount at {quoted(destination)} names no device: it is not of /dev/null")
        elif name.startswith("cdi/"):
            kind, _, last = name[4:].rpartition("/")
            # Without a vendor and a class it names nothing, and no GPU is called "/0".
            qualified.append(f"{kind}={last}" if "/" in kind else f"{kind}/{last}")
        elif name.startswith("imex/"):
            channels.append(name[5:])
        else:
            plain.append(name)
    found = _without_kinds(Names("mounts", f"the mounts in {LIST_FOLDER}", tuple(qualified)))
    return found._replace(devices=(*plain, *found.devices), imex_channels=(*channels, *found.imex_channels))


def cdi_names(annotations: dict[str, str]) -> tuple[str, ...]:
    """The names in the annotations cdi.k8s.io/* that count: the container's own, if its engine marks these, else its
    pod's too.  RequestError if they are too long, or whose they are is not known.
    """
    own, counts = annotations.get(_OWN_ANNOTATIONS), annotations
    # In a sandbox all are the pod's, and nothing of the pod's author's runs in it.
    if annotations.get(_CONTAINER_TYPE if own is None else _CRIOS_CONTAINER_TYPE) == "sandbox":
        return ()
    if own is not None and (CDI_ANNOTATIONS in own or any([_is_cdi(*pair) for pair in annotations.items()])):
        counts = _own_annotations(own)
    texts = [text for key, text in counts.items() if isinstance(text, str) and _is_cdi(key, text)]
    if sum(map(len, texts)) > words.LONGEST_VALUE:
        why = f"the annotations {CDI_ANNOTATIONS}* are longer than {words.LONGEST_VALUE >> 10} KiB"
        raise RequestError(why, AUTHOR)
    return tuple([item for text in texts for item in items(text)])


def _own_annotations(text: str) -> dict[str, str]:
    try:
        found = jsontext.loads(text.encode())
    except ValueError:
        found = text
    if isinstance(found, dict) or found is None:
        return found or {}  # Go writes an empty map as null
    why = f"the annotation {_OWN_ANNOTATIONS} is not a JSON object: whose {CDI_ANNOTATIONS}* are is not known"
    raise RequestError(why, "the container engine must fix it")


def _is_cdi(key: str, text: str) -> bool:
    return key.startswith(CDI_ANNOTATIONS) or (key.startswith(_PLUGINS_ANNOTATIONS) and _PLUGINS_KIND in text)


def _by_nvidia(item: str) -> bool:
    return item.partition("/")[0] in ("nvidia.com", "runtime.nvidia.com", "management.nvidia.com")


def _without_kinds(names: Names) -> Names:
    qualified = [item for item in names.devices if "=" in item]
    if not qualified:
        return names
    if len(qualified) != len(names.devices):
        raise RequestError(f"CDI names such as {quoted(qualified[0])} are mixed with others in {names.where}", AUTHOR)
    found: dict[str, list[str]] = {"gpu": [], "imex-channel": [], **{feature.name: [] for feature in words.FEATURES}}
    # A Jetson's lists bring it with the GPU.
    brought = ("pva",) if any(["/gpu=" in item for item in qualified]) else ()
    for item in qualified:
        kind, _, name = item.partition("=")
        device_class = kind.partition("/")[2]
        if not _by_nvidia(kind) or device_class not in (*found, *brought):
            hint = _STRATEGY if kind.startswith(_PLUGINS_KIND) else f"nvidia.com/{', '.join(found)} are served"
            raise RequestError(f"unknown CDI kind in {quoted(item)} in {names.where}: the engine must resolve it", hint)
        found.setdefault(device_class, []).append(name)
    devices, channels, *_ = map(tuple, found.values())
    features = tuple([feature.name for feature in words.FEATURES if found[feature.name]])
    return names._replace(devices=devices, imex_channels=channels, features=features)
