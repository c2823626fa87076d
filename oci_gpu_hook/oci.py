# SPDX-License-Identifier: Apache-2.0
"""What the runtime tells us: the container's state on stdin, and the bundle's config.json.

Runtime-spec 1.0 to 1.2 (runtime.md "State", config.md, config-linux.md), and the ``bundlePath`` of engines before it.
Reads, checks shapes, gives typed values.  Must not look at the host, at the rootfs or at the meaning of any value, and
must not complain of a part of config.json that nobody has asked for: a container without a GPU cannot fail here for
what only a GPU container needs.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import jsontext
from oci_gpu_hook.errors import BundleError, quoted
from oci_gpu_hook.record import NamedTuple

_LARGEST_DOCUMENT = 64 << 20
_OWN_TYPES = ("tmpfs", "devpts", "mqueue", "proc", "sysfs")
_ENGINE_HINT = "the container engine or runtime must mend it"


class State(NamedTuple):
    """The state of one container (runtime.md, "State")."""

    id: str
    pid: int
    bundle: str
    annotations: dict[str, str]


class Bundle(NamedTuple):
    """A bundle whose config.json has been read; the functions below take out its parts, checked."""

    path: str
    document: dict[str, object]


class DeviceRule(NamedTuple):
    """One rule of a device cgroup, as in ``linux.resources.devices`` (config-linux.md).

    type: ``c``, ``b``, or ``a`` for both; None as a number: any; access: letters of ``rwm``.
    """

    type: str
    major: int | None
    minor: int | None
    access: str
    allow: bool = True


def written(rule: DeviceRule) -> str:
    """A rule as devices.allow takes it (Documentation/admin-guide/cgroup-v1/devices.rst)."""
    major, minor = ["*" if number is None else number for number in (rule.major, rule.minor)]
    return f"{rule.type} {major}:{minor} {rule.access}"


def read_state(fd: int, head: bytes = b"") -> State:
    """The state from `fd` (the hook's stdin), read to its end; `head` is what the door has read of it."""
    data = head + _read_all(fd, "the state on stdin")
    document = _object(_parse(data, "the state on stdin"), "the state")
    bundle = document.get("bundle", document.get("bundlePath"))
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise BundleError("the state on stdin has no absolute path as 'bundle'", _ENGINE_HINT)
    pid = document.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        raise BundleError("the state on stdin has no 'pid' above 0", _ENGINE_HINT)
    container_id = document.get("id", "")
    if not isinstance(container_id, str):
        raise BundleError("the 'id' in the state on stdin is no string", _ENGINE_HINT)
    return State(container_id, pid, _path(bundle), _strings(document, "annotations"))


def read_bundle(path: str) -> Bundle:
    """The bundle at `path`: its config.json, parsed."""
    name = f"{path}/config.json"
    try:
        # A fifo is not waited for.
        fd = posix.open(name, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
    except OSError as err:
        raise BundleError(f"cannot open {name}: {err.strerror}", _ENGINE_HINT) from err
    try:
        data = _read_all(fd, name)
    finally:
        posix.close(fd)
    return Bundle(path, _object(_parse(data, name), name))


def environment(bundle: Bundle) -> dict[str, str]:
    """``process.env`` as a mapping; of a name given twice the last counts, as for the container's process."""
    process = _member(bundle, bundle.document, "process", "process")
    variables = {}
    for entry in _list(bundle, process, "env", "process.env"):
        if not isinstance(entry, str):
            raise _wrong_shape(bundle, "process.env holds something that is no string")
        name, _, value = entry.partition("=")
        variables[name] = value
    return variables


def all_mounts(bundle: Bundle) -> tuple[tuple[str, str], ...]:
    """Source and destination of each of ``mounts``; what is of another shape names nothing and is passed over."""
    found = bundle.document.get("mounts")
    return tuple(
        [
            (str(item.get("source", "")), item["destination"])
            for item in (found if isinstance(found, list) else ())
            if isinstance(item, dict) and isinstance(item.get("destination"), str)
        ]
    )


def linux_devices(bundle: Bundle) -> tuple[str, ...]:
    """The paths of ``linux.devices``: nodes that the runtime itself makes."""
    linux = _member(bundle, bundle.document, "linux", "linux")
    devices = _list(bundle, linux, "devices", "linux.devices")
    return tuple(
        [
            item["path"]
            for item in devices
            if isinstance(item, dict) and isinstance(item.get("path"), str)
        ]
    )


def is_privileged(bundle: Bundle) -> bool:
    """Whether CAP_SYS_ADMIN is in the bounding set: also of a container whose user is not root."""
    process = _member(bundle, bundle.document, "process", "process")
    capabilities = process.get("capabilities")
    bounding = capabilities.get("bounding") if isinstance(capabilities, dict) else None
    return isinstance(bounding, list) and "CAP_SYS_ADMIN" in bounding


def rootfs(bundle: Bundle) -> str:
    """The absolute path of the container's root, as ``root.path`` gives it."""
    root = bundle.document.get("root")
    path = root.get("path") if isinstance(root, dict) else None
    if not isinstance(path, str) or not path:
        raise _wrong_shape(bundle, "root.path is missing")
    return _path(path if path.startswith("/") else f"{bundle.path}/{path}")


def mounted(bundle: Bundle) -> tuple[tuple[str, bool], ...]:
    """Where the runtime mounts something, in its order; and whether that is a filesystem of the container's own.

    Its own are those that the kernel makes for it.  What is bound is the host's, as is one of a type that lies on a
    disk or a server, or that has a layer of the host.  So is one with ".." in its path: whether that is taken as text
    or by where links lead is the runtime's choice.
    """
    found = []
    for mount in _list(bundle, bundle.document, "mounts", "mounts"):
        destination = mount.get("destination") if isinstance(mount, dict) else None
        if not isinstance(mount, dict) or not isinstance(destination, str):
            raise _wrong_shape(bundle, "mounts holds something without a destination")
        is_own = mount.get("type") in _OWN_TYPES and ".." not in destination.split("/")
        found.append((_path(destination), is_own and not _binds(mount)))
    return tuple(found)


def mount_source(bundle: Bundle, destination: str) -> str | None:
    """What is bound at `destination`, as config.json has it; None where nothing is."""
    found = None
    for mount in _list(bundle, bundle.document, "mounts", "mounts"):
        if isinstance(mount, dict) and mount.get("destination") == destination:
            source = mount.get("source")
            found = source if _binds(mount) and isinstance(source, str) else None
    return found


def mount_label(bundle: Bundle) -> str:
    """``linux.mountLabel``; "" where the engine gives none."""
    return _text(bundle, _member(bundle, bundle.document, "linux", "linux"), "mountLabel")


def process_label(bundle: Bundle) -> str:
    """``process.selinuxLabel``; "" where the engine gives none."""
    return _text(bundle, _member(bundle, bundle.document, "process", "process"), "selinuxLabel")


def bundle_annotations(bundle: Bundle) -> dict[str, str]:
    """``annotations`` of config.json, of which engines repeat only some in the state."""
    found = _member(bundle, bundle.document, "annotations", "annotations")
    return {key: value for key, value in found.items() if isinstance(value, str)}


def has_user_namespace(bundle: Bundle) -> bool:
    """Whether config.json asks for a user namespace."""
    linux = _member(bundle, bundle.document, "linux", "linux")
    namespaces = _list(bundle, linux, "namespaces", "linux.namespaces")
    return any(isinstance(item, dict) and item.get("type") == "user" for item in namespaces)


def device_rules(bundle: Bundle) -> tuple[DeviceRule, ...]:
    """``linux.resources.devices`` in its order: of the rules that match a device, the last one holds."""
    linux = _member(bundle, bundle.document, "linux", "linux")
    resources = _member(bundle, linux, "resources", "linux.resources")
    devices = _list(bundle, resources, "devices", "linux.resources.devices")
    return tuple([_device_rule(bundle, item) for item in devices])


def _binds(mount: dict[str, object]) -> bool:
    """Whether an item of ``mounts`` binds something that exists: runtimes go by the options, whatever the type."""
    options = mount.get("options")
    words = options if isinstance(options, list) else ()
    return mount.get("type") == "bind" or "bind" in words or "rbind" in words


def _device_rule(bundle: Bundle, item: object) -> DeviceRule:
    if not isinstance(item, dict):
        raise _wrong_shape(bundle, "linux.resources.devices holds something that is no object")
    kind, access = item.get("type") or "a", item.get("access") or "rwm"
    numbers = [item.get("major"), item.get("minor")]
    if not isinstance(kind, str) or not isinstance(access, str):
        raise _wrong_shape(bundle, "a rule in linux.resources.devices is of the wrong shape")
    if not all(number is None or isinstance(number, int) for number in numbers):
        raise _wrong_shape(bundle, "a device number in linux.resources.devices is no number")
    # runc writes -1 for "any"; config-linux.md leaves the number out.
    major, minor = [None if number is None or number < 0 else number for number in numbers]
    return DeviceRule(kind, major, minor, access, allow=item.get("allow") is True)


def _read_all(fd: int, what: str) -> bytes:
    pieces = []
    size = 0
    try:
        while piece := posix.read(fd, 1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST_DOCUMENT:
                raise BundleError(f"{what} is larger than 64 MiB", _ENGINE_HINT)
    except OSError as err:
        raise BundleError(f"cannot read {what}: {err.strerror}", _ENGINE_HINT) from err
    return b"".join(pieces)


def _parse(data: bytes, what: str) -> object:
    try:
        return jsontext.loads(data)
    except ValueError as err:
        raise BundleError(f"{what} is no JSON: {str(err)[:200]}", _ENGINE_HINT) from err


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BundleError(f"{what} is no JSON object", _ENGINE_HINT)
    return value


def _member(bundle: Bundle, parent: dict[str, object], key: str, where: str) -> dict[str, object]:
    """An optional object below `parent`; absent and null are empty."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong_shape(bundle, f"{where} is no object")
    return value


def _list(bundle: Bundle, parent: dict[str, object], key: str, where: str) -> list[object]:
    """An optional list below `parent`; absent and null are empty."""
    value = parent.get(key) or []
    if not isinstance(value, list):
        raise _wrong_shape(bundle, f"{where} is no list")
    return value


def _text(bundle: Bundle, parent: dict[str, object], key: str) -> str:
    """An optional string below `parent`; absent and null are empty."""
    value = parent.get(key) or ""
    if not isinstance(value, str):
        raise _wrong_shape(bundle, f"{key} is no string")
    return value


def _strings(document: dict[str, object], key: str) -> dict[str, str]:
    """An optional object of strings in the state."""
    value = document.get(key) or {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise BundleError(f"'{key}' in the state on stdin is no object of strings", _ENGINE_HINT)
    return value


def _path(text: str) -> str:
    """`text`, if the kernel can take it as a path."""
    try:
        if b"\0" not in text.encode():
            return text
    except UnicodeEncodeError:
        pass
    raise BundleError(f"{quoted(text)} cannot be a path", _ENGINE_HINT)


def _wrong_shape(bundle: Bundle, what: str) -> BundleError:
    return BundleError(f"{bundle.path}/config.json is of the wrong shape: {what}", _ENGINE_HINT)
