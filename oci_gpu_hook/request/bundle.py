# SPDX-License-Identifier: Apache-2.0
"""The bundle's config.json (runtime-spec 1.0 to 1.2, config.md and config-linux.md).  Parts are validated only if they
are used, so that a container without a GPU cannot fail for what only a GPU container needs.
"""

from __future__ import annotations

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.state import ExcessError, checked_path, open_file, read_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Kind = TypeVar("Kind", dict[str, object], list[object], str)

# The kernel's own list of device numbers, devices.txt: below 254 they are GPUs.
_NVIDIA_MAJOR = 195
_MAX_GPU_MINOR = 253
BESIDE_GPUS = ("/dev/nvidia-caps/", "/dev/dri/")

# Each variable takes some hundred bytes here, and each mount and rule some microseconds: no engine writes so many.
_MAX_VARIABLES, _MAX_MOUNTS, _MAX_RULES = 1 << 16, 1 << 13, 1 << 12
_INVALID_ID = (1 << 32) - 1  # (uid_t)-1, which is the id of no user (credentials(7))
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}


class Bundle(NamedTuple):
    """A bundle: its path, and its config.json as parsed.  Methods raise BundleError for a part of a wrong shape."""

    path: str
    document: dict[str, object]

    def environment(self) -> dict[str, str]:
        """``process.env``; of a name that is given twice the last counts, as for the container's process."""
        variables = {}
        for entry in self._part("process.env", list, _MAX_VARIABLES):
            if not isinstance(entry, str):
                raise self._wrong_shape("process.env holds something that is not a string")
            name, _, value = entry.partition("=")
            variables[name] = value
        return variables

    def bindings(self) -> tuple[tuple[str, str], ...]:
        """Source and destination of each of ``mounts``."""
        found = [(str(item.get("source", "")), item.get("destination")) for item in objects(self.document, "mounts")]
        return tuple([(source, path) for source, path in found if isinstance(path, str)])

    def hooks(self, stage: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found = [(item.get("path"), item.get("args") or []) for item in objects(self.document.get("hooks"), stage)]
        named = [(path, words) for path, words in found if isinstance(path, str) and isinstance(words, list)]
        return tuple([(path, tuple([str(word) for word in words])) for path, words in named])

    def devices(self) -> tuple[tuple[str, object, object], ...]:
        """The path, major and minor number of each of ``linux.devices``; None for a number that is not said."""
        items = self._part("linux.devices", list)
        named = [it for it in items if isinstance(it, dict) and isinstance(it.get("path"), str)]
        return tuple([(it["path"], it.get("major"), it.get("minor")) for it in named])

    def made(self) -> tuple[tuple[str, object, object], ...]:
        """As `devices`, for what a CDI spec of ours has made: buildah without root binds all and leaves none there."""
        return self.devices() or tuple([(path, None, None) for _, path in self.bindings() if path.startswith("/dev/")])

    def given_gpus(self) -> tuple[str, ...]:
        """The host's nodes of GPUs that the engine was told to give, and of MIG and DRM devices beside them: by their
        numbers, as ``linux.devices`` may rename a node; rootless engines bind nodes.
        """
        found = [source for source, _ in self.bindings() if source.startswith("/dev/")]
        for path, major, minor in self.devices():
            found.append(f"/dev/nvidia{minor}" if major == _NVIDIA_MAJOR else path)
        gpus = [path for path in found if is_gpu(path)]
        others = [path for path in found if path.startswith(BESIDE_GPUS)]
        return tuple(dict.fromkeys([*gpus, *others])) if gpus else ()

    def is_privileged(self) -> bool:
        """Whether CAP_SYS_ADMIN is in the bounding set, as it is for any user of a privileged container."""
        capabilities = self._part("process", dict).get("capabilities")
        bounding = capabilities.get("bounding") if isinstance(capabilities, dict) else None
        return isinstance(bounding, list) and "CAP_SYS_ADMIN" in bounding

    def rootfs(self) -> str:
        path = self._part("root.path", str)
        if not path:
            raise self._wrong_shape("root.path is missing")
        return checked_path(path if path.startswith("/") else f"{self.path}/{path}")

    def tmpfs(self) -> tuple[str, ...]:
        """The destinations of new tmpfs in ``mounts``, in order; none with "..", on which runtimes differ."""
        found = []
        for mount in self._part("mounts", list, _MAX_MOUNTS):
            if not isinstance(mount, dict) or not isinstance(destination := mount.get("destination"), str):
                raise self._wrong_shape("mounts holds something without a destination")
            if mount.get("type") == "tmpfs" and not _binds(mount) and ".." not in destination.split("/"):
                found.append(checked_path(destination))
        return tuple(found)

    def mount_source(self, destination: str) -> str | None:
        """The source of what is bound at `destination`, None for nothing: of several mounts there, the last counts."""
        found = [mount for mount in objects(self.document, "mounts") if mount.get("destination") == destination]
        source = found[-1].get("source") if found and _binds(found[-1]) else None
        return source if isinstance(source, str) else None

    def mount_label(self) -> str:
        return self._part("linux.mountLabel", str)

    def process_label(self) -> str:
        return self._part("process.selinuxLabel", str)

    def annotations(self) -> dict[str, str]:
        """``annotations``, of which engines repeat only some in the state."""
        return {key: value for key, value in self._part("annotations", dict).items() if isinstance(value, str)}

    def user(self) -> tuple[int, int, tuple[int, ...]]:
        """User, group and further groups of ``process.user``; what is missing, or no number, is root's."""
        user = self._part("process.user", dict)
        groups = user.get("additionalGids")
        ids = [user.get("uid"), user.get("gid"), *(groups if isinstance(groups, list) else ())]
        uid, gid, *others = [it if isinstance(it, int) and 0 <= it < _INVALID_ID else 0 for it in ids]
        return uid, gid, tuple(others)

    def has_user_namespace(self) -> bool:
        namespaces = self._part("linux.namespaces", list)
        return any([isinstance(item, dict) and item.get("type") == "user" for item in namespaces])

    def device_rules(self) -> tuple[DeviceRule, ...]:
        """``linux.resources.devices`` in order: of the rules that match a device, the last one holds."""
        return tuple([self._device_rule(item) for item in self._part("linux.resources.devices", list, _MAX_RULES)])

    def _device_rule(self, item: object) -> DeviceRule:
        rule: dict[str, object] = item if isinstance(item, dict) else {}
        kind, access = rule.get("type") or "a", rule.get("access") or "rwm"
        numbers = [it for it in (rule.get("major"), rule.get("minor")) if it is None or isinstance(it, int)]
        if rule is not item or not isinstance(kind, str) or not isinstance(access, str) or len(numbers) != 2:
            raise self._wrong_shape("linux.resources.devices holds something that is not a rule")
        # runc writes -1 for "any"; config-linux.md leaves the number out.
        major, minor = [None if number is None or number < 0 else number for number in numbers]
        return DeviceRule(kind, major, minor, access, allow=rule.get("allow") is True)

    def _part(self, where: str, kind: type[Kind], most: int | None = None) -> Kind:
        """The part of config.json at `where`, with `most` items; absent and null are empty."""
        above, _, name = where.rpartition(".")
        value = (self._part(above, dict) if above else self.document).get(name)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise self._wrong_shape(f"{where} is not {_KINDS[kind]}")
        if most is not None and len(value) > most:
            read = repr(self.document).replace("'", '"').encode("utf-8", "replace")
            raise ExcessError(f"{self.path}/config.json: {where} has more than {most} items", [read])
        return value

    def _wrong_shape(self, what: str) -> BundleError:
        return BundleError(f"{self.path}/config.json is of the wrong shape: {what}")


def read_bundle(path: str, opened: Callable[[str], int] = open_file) -> Bundle:
    name = f"{path}/config.json"
    return Bundle(path, read_object(name, opened(name)))


def is_gpu(path: str) -> bool:
    return path.startswith("/dev/nvidia") and decimal(path[len("/dev/nvidia") :], _MAX_GPU_MINOR) is not None


def objects(parent: object, key: str) -> list[dict[str, object]]:
    """The objects in a list in `parent`; what has another shape is ignored."""
    found = parent.get(key) if isinstance(parent, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _binds(mount: dict[str, object]) -> bool:
    """Whether an item of ``mounts`` is a bind: runtimes go by its options, whatever its type."""
    options = mount.get("options")
    return mount.get("type") == "bind" or (isinstance(options, list) and ("bind" in options or "rbind" in options))
