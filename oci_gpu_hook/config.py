# SPDX-License-Identifier: Apache-2.0
"""What the administrator allows: ``key = value`` lines in one file and its drop-ins.

``/etc/oci-gpu-hook.conf``, then ``/etc/oci-gpu-hook.conf.d/*.conf`` in the order of their names; what is said later
holds.  Below a heading, ``[namespace NAME]`` or ``[image PATTERN]``, lines hold for those containers only.

Not TOML: Python 3.9 has no parser for it, and the one of later Pythons costs twice the interpreter's own start at
every container.  Must not look at the host beyond its own files.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ConfigError, RequestError, quoted
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request import CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Where engines say which namespace and which image a container is of: CRI-O, containerd, podman's kube play; podman.
# CRI-O sets cri-o.Namespace for a pod's sandbox alone: in its containers that one is the pod's author's to set.
_NAMESPACE_ANNOTATIONS = (
    "io.kubernetes.pod.namespace",
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri-o.Namespace",
)
_IMAGE_ANNOTATIONS = (
    "io.kubernetes.cri-o.ImageName",
    "io.kubernetes.cri.image-name",
    "io.container.image",
    "org.opencontainers.image.ref.name",
)
_LARGEST = 1 << 20
_MOST_DROP_INS = 256


class Config(NamedTuple):
    """The settings, each with the default that a missing file means."""

    # "auto": opened where there is one and we may; "on": a container without one is refused; "off": never touched
    device_cgroup: str = "auto"
    # whose /dev/shm and /dev/mqueue are given the right label: those of GPU containers, of all, of none
    ipc_labels: str = "gpu"
    # what happens to a GPU container whose /dev/shm was mounted with a wrong context=, which nobody can change
    ipc_context_mismatch: str = "refuse"
    # whose environment may ask for GPUs: every container's, or only those with CAP_SYS_ADMIN
    accept_environment: str = "always"
    # whether a device list as volume mounts is accepted; who may make such mounts is for the cluster to restrict
    accept_volume_mounts: bool = False
    # the driver capabilities that any container can get
    allowed_capabilities: tuple[str, ...] = CAPABILITIES
    # variables that, where a container has them, name its devices in the place of NVIDIA_VISIBLE_DEVICES
    swarm_resources: tuple[str, ...] = ()
    # whether NVIDIA_REQUIRE_* are left unchecked
    disable_requirements: bool = False
    # where the driver's files lie: / or, for a driver container, such as /run/nvidia/driver
    driver_root: str = "/"
    # whether requests for IMEX channels are left out
    ignore_imex_channels: bool = False
    # whether an image's own newer CUDA libraries are named in its loader's cache
    cuda_forward_compatibility: bool = True
    # whether the journal is told of each start of a GPU container
    records: bool = True
    # the file that counters are written to, for Prometheus's textfile collector; "" is none
    metrics: str = ""


class Setting(NamedTuple):
    """One line: where it stands, for whom it holds ("" is everybody), the field and its value."""

    where: str
    scope: str
    pattern: str
    field: str
    value: object


_BOOLEANS = {"yes": True, "no": False}
_WORDS = {
    "device-cgroup": ("auto", "on", "off"),
    "ipc-labels": ("gpu", "all", "off"),
    "ipc-context-mismatch": ("refuse", "warn"),
    "accept-environment": ("always", "privileged"),
    "accept-volume-mounts": tuple(_BOOLEANS),
    "disable-requirements": tuple(_BOOLEANS),
    "ignore-imex-channels": tuple(_BOOLEANS),
    "cuda-forward-compatibility": tuple(_BOOLEANS),
    "records": tuple(_BOOLEANS),
}
_KEYS = (*_WORDS, "allowed-capabilities", "swarm-resources", "driver-root", "metrics")
_SCOPES = ("namespace", "image")
# What the host is, or where a request stands, is the same for all containers.
_HOST_WIDE = ("driver-root", "swarm-resources", "ipc-labels", "metrics")


def files(name: str, may_be_absent: bool) -> list[str]:
    """The file `name` and its drop-ins that are there, in the order in which they are read."""
    try:
        posix.stat(name)
        found = [name]
    except OSError as err:
        if not (may_be_absent and isinstance(err, FileNotFoundError)):
            raise ConfigError(f"cannot open {name}: {err.strerror}") from err
        found = []
    try:
        names = posix.listdir(f"{name}.d")
    except FileNotFoundError:
        return found
    except OSError as err:
        raise ConfigError(f"cannot open {name}.d: {err.strerror}") from err
    drop_ins = sorted([item for item in names if item.endswith(".conf") and item[0] != "."])
    if len(drop_ins) > _MOST_DROP_INS:
        raise ConfigError(f"{name}.d has more than {_MOST_DROP_INS} drop-ins")
    return found + [f"{name}.d/{item}" for item in drop_ins]


def settings(name: str, may_be_absent: bool) -> list[Setting]:
    """Every line of all files, in order."""
    return [setting for file in files(name, may_be_absent) for setting in parse(_text(file), file)]


def read(name: str, may_be_absent: bool, annotations: dict[str, str]) -> Config:
    """The settings for a container with these annotations."""
    return effective(settings(name, may_be_absent), annotations)


def effective(lines: Iterable[Setting], annotations: dict[str, str]) -> Config:
    """What holds for a container with these annotations."""
    said = decisive(lines, annotations)
    return Config(**{field: line.value for field, line in said.items()})  # type: ignore[arg-type]


def decisive(lines: Iterable[Setting], annotations: dict[str, str]) -> dict[str, Setting]:
    """The line that holds for each field of which the files speak.

    Those for everybody are read first, then those for the container's image, then for its namespace.  RequestError
    where that is in doubt.
    """
    named = {
        "": "",
        "image": image(annotations),
        "namespace": namespace(annotations),
    }
    rows = list(lines)
    if any([line.scope == "namespace" for line in rows]):
        _check_namespace(annotations)
    fields = {}
    for scope, name in named.items():
        for line in rows:
            if line.scope == scope and (not scope or (name and matches(line.pattern, name))):
                fields[line.field] = line
    return fields


def parse(text: str, name: str) -> list[Setting]:
    """The lines of `text`; errors name `name` and the line."""
    found = []
    scope, pattern = "", ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{name}:{number}"
        if line.startswith("["):
            scope, pattern = _heading(line, where)
            continue
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not equals:
            raise ConfigError(f"{where}: {quoted(line)} is no 'key = value' line")
        if key not in _KEYS:
            raise ConfigError(
                f"{where}: unknown key {quoted(key)}, did you mean '{nearest(key)}'?",
                f"known are {', '.join(_KEYS)}",
            )
        if scope and key in _HOST_WIDE:
            raise ConfigError(f"{where}: {key} is for the whole host, not for one {scope}")
        found.append(
            Setting(where, scope, pattern, key.replace("-", "_"), _value(key, value, where))
        )
    return found


def written(value: object) -> str:
    """A field's value as a line of a file has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == CAPABILITIES:
        return "all"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def matches(pattern: str, text: str) -> bool:
    """Whether `text` is as `pattern` has it, in which ``*`` stands for anything.  Linear in the text."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return at <= end


def nearest(key: str, among: Iterable[str] = _KEYS) -> str:
    """The known key that takes the fewest changes to come to."""
    return min(among, key=lambda known: _distance(key[:64], known))


def _value(key: str, value: str, where: str) -> object:
    if key in _WORDS:
        if value not in _WORDS[key]:
            allowed = ", ".join(_WORDS[key])
            raise ConfigError(f"{where}: {key} is {quoted(value)}, allowed is one of {allowed}")
        return _BOOLEANS.get(value, value)
    if key == "driver-root":
        if not value.startswith("/") or "\0" in value:
            raise ConfigError(f"{where}: driver-root is {quoted(value)}, which is no absolute path")
        return value.rstrip("/") or "/"
    if key == "metrics":
        if value and not (
            value.startswith("/") and value.endswith(".prom") and value.isprintable()
        ):
            raise ConfigError(
                f"{where}: metrics is {quoted(value)}, which is no absolute path that ends in .prom"
            )
        return value
    words = tuple([word for word in [part.strip() for part in value.split(",")] if word])
    if key == "swarm-resources":
        for word in words:
            if "=" in word or "\0" in word or len(word.split()) > 1:
                raise ConfigError(f"{where}: {key} has {quoted(word)}, which names no variable")
        return words
    unknown = [word for word in words if word not in CAPABILITIES and word != "all"]
    if unknown or not words:
        allowed = ", ".join(CAPABILITIES)
        shown = quoted(unknown[0]) if unknown else "empty"
        raise ConfigError(f"{where}: {key} has {shown}, allowed are all, {allowed}")
    return CAPABILITIES if "all" in words else words


def _heading(line: str, where: str) -> tuple[str, str]:
    """``[namespace NAME]`` or ``[image PATTERN]``."""
    scope, _, pattern = line[1:-1].strip().partition(" ")
    if not line.endswith("]") or scope not in _SCOPES or not pattern.strip():
        raise ConfigError(
            f"{where}: {quoted(line)} is no heading, which are [namespace NAME] and [image PATTERN]"
        )
    return scope, pattern.strip()


def image(annotations: dict[str, str]) -> str:
    """The container's image, where its engine says so."""
    return _first(annotations, _IMAGE_ANNOTATIONS)


def namespace(annotations: dict[str, str]) -> str:
    """The container's Kubernetes namespace, where its engine says so."""
    return _first(annotations, _NAMESPACE_ANNOTATIONS)


def _check_namespace(annotations: dict[str, str]) -> None:
    """Engines hand a pod's own annotations on: none of them may say other than the engine's."""
    said = {annotations[name] for name in _NAMESPACE_ANNOTATIONS if name in annotations}
    if len(said) > 1:
        raise RequestError(
            f"the annotations name several namespaces, {' and '.join(map(quoted, sorted(said)))}",
            "the pod's author must leave them to the engine",
        )


def _first(annotations: dict[str, str], names: tuple[str, ...]) -> str:
    # The engine's own comes first, and where it says "", nobody else may say more.
    return next((annotations[name] for name in names if name in annotations), "")


def _distance(one: str, other: str) -> int:
    """Insertions, deletions and substitutions between two words (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, known in enumerate(other, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != known))
    return row[-1]


def _text(name: str) -> str:
    try:
        fd = posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
        try:
            text = posix.read(fd, _LARGEST + 1)
        finally:
            posix.close(fd)
    except OSError as err:
        raise ConfigError(f"cannot read {name}: {err.strerror}") from err
    if len(text) > _LARGEST:
        raise ConfigError(f"cannot read {name}: it is larger than {_LARGEST >> 20} MiB")
    try:
        return text.decode()
    except UnicodeDecodeError as err:
        raise ConfigError(f"cannot read {name}: it is no UTF-8 text") from err
