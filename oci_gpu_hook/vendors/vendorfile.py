# SPDX-License-Identifier: Apache-2.0
"""A vendor's file: JSON in, `Vendor` out, or one sentence that names the key that is wrong.

The form is oci-decorator's, whose published files are read as they are, with more keys: see oci-gpu-hook-vendors(5),
and packaging/vendors/vendor.schema.json, which says the same to editors.  All of a file is checked, groups that no
request gets too.  Must not look at the host.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, quoted
from oci_gpu_hook.formats import glob, jsontext
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.vendors import allowed, values
from oci_gpu_hook.vendors.vendor import LARGEST_FILE, DevicePattern, Group, Item, Vendor, Version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_gpu_hook.vendors.values import Place

# Bounds far above what a driver has: ROCm's and NVIDIA's have some hundreds of files.
MOST_ITEMS = 4096
MOST_DEVICES = 256
LONGEST_FLAG = 64

_FILE_LISTS = ("binaries", "directories", "miscellaneous")
_ITEM_LISTS = ("libraries", *_FILE_LISTS)
_LISTS = ("devices", *_ITEM_LISTS, "sockets")
# log_level is oci-decorator's: the settings say what is logged here.  $schema is for editors.
_IGNORED = ("$schema", "description", "log_level")
_KEYS = (
    *("activation_flag", "driver_feature", "inventory", "version", "kind", "environment"),
    *("requires", "selinux", *_IGNORED),
)
_DEVICE_KEYS = ("path", "major", "pci", "udev", "each", "name", "required")
_DEVICE_SIGNS = _DEVICE_KEYS[:4]
_ITEM_KEYS = ("path", "target", "required")
_HEX = frozenset("0123456789abcdef")
_MODULE = values.WORD | {"-"}
# Where a driver says its version, beside the folders of files.
_KERNELS = ("/sys/", "/proc/driver/")
_PATH_REMEDY = "name files of the driver's own, by their whole paths"


class _Found(NamedTuple):
    """The groups of an inventory, and where ``{version}`` stands first."""

    groups: dict[str, Group]
    versioned: Place


def read(data: bytes, path: str) -> Vendor:
    """What the file at `path` says, which has this content; ConfigError ``PATH: KEY: ...`` if it is wrong.

    KEY is the way to what is wrong, such as ``inventory.compute.libraries[3]``, or the line where the text is no JSON.
    """
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"{path}: it is larger than {LARGEST_FILE >> 20} MiB", "write a pattern for many files")
    try:
        document = jsontext.loads(data, jsontext.unique)
    except ValueError as err:
        remedy = "it must be one JSON object, each name once"
        raise ConfigError(f"{path}: {_fault(data, err)}", remedy) from None
    try:
        return _vendor(document, path)
    except values.Wrong as err:
        raise ConfigError(f"{path}: {values.way(err.place)}{err.what}", err.remedy) from None


def _fault(data: bytes, err: ValueError) -> str:
    """Why a text is refused, which `err` does not say in full."""
    import json

    try:
        json.loads(data.decode())
    except json.JSONDecodeError as found:
        return f"line {found.lineno}: {found.msg[:1].lower()}{found.msg[1:]}"
    except UnicodeDecodeError:
        return "it is no UTF-8 text"
    except RecursionError:
        return "it is nested too deeply"
    return str(err)


def _vendor(document: object, path: str) -> Vendor:
    top = values.object_of(document, (), _KEYS)
    for key in _IGNORED:
        if key in top:
            values.text_of(top[key], (key,))
    flag = _flag(values.needed(top, "activation_flag", ()))
    groups, versioned = _inventory(values.needed(top, "inventory", ()))
    version = _version(top["version"]) if "version" in top else Version()
    if versioned and not version.kind:
        raise values.Wrong(versioned, "{version} stands for nothing", "write the key version too")
    requires = values.object_of(top.get("requires", {}), ("requires",), ("kernel", "modules"))
    selinux = values.object_of(top.get("selinux", {}), ("selinux",), ("type", "boolean"))
    return Vendor(
        file=path,
        flag=flag,
        groups=_chosen(top, groups),
        kind=_kind(top["kind"]) if "kind" in top else "",
        version=version,
        environment=_environment(top.get("environment", {})),
        kernel=_kernel(requires["kernel"]) if "kernel" in requires else "",
        modules=tuple(values.words(requires.get("modules", []), ("requires", "modules"), _MODULE)),
        selinux_type=_selinux(selinux, "type"),
        selinux_boolean=_selinux(selinux, "boolean"),
    )


# --- the top level


def _flag(value: object) -> str:
    flag = values.text_of(value, ("activation_flag",))
    rest = flag[4:]
    letters = values.UPPER | values.DIGITS | {"_"}
    if not flag.startswith("OCI_") or not rest or not letters.issuperset(rest):
        raise values.Wrong(
            ("activation_flag",),
            f"activation_flag is {quoted(flag)}, which is no flag",
            "write OCI_ and capitals, digits or underscores, such as OCI_AMD",
        )
    if len(flag) > LONGEST_FLAG:
        raise values.Wrong(
            ("activation_flag",),
            f"activation_flag {quoted(flag)} has {len(flag)} characters",
            f"{LONGEST_FLAG} are allowed",
        )
    return flag


def _kind(value: object) -> str:
    kind = values.text_of(value, ("kind",))
    vendor, slash, name = kind.partition("/")
    if not slash or not _is_cdi_name(vendor) or not _is_cdi_name(name):
        raise values.Wrong(
            ("kind",),
            f"kind is {quoted(kind)}, which is no kind of CDI's",
            "write VENDOR/CLASS, such as amd.com/gpu, of letters, digits, '.', '_' and '-'",
        )
    if vendor == "nvidia.com":
        raise values.Wrong(
            ("kind",), f"kind is {quoted(kind)}, whose devices are not a vendor file's", "name another vendor"
        )
    return kind


def _is_cdi_name(text: str) -> bool:
    """As CDI's parser takes it: a letter, then letters, digits and ``_-.``, and at the end no such sign."""
    ends_well = text[:1] in values.LETTERS and text[-1:] not in ("_", "-", ".")
    return ends_well and (values.WORD | {"-", "."}).issuperset(text)


def _version(value: object) -> Version:
    place = ("version",)
    if isinstance(value, str):
        values.refuse(place, allowed.version(value), "write the version as the files' names have it")
        return Version("text", value)
    if not isinstance(value, dict):
        raise values.wrong_type(place, value, 'a string, {"module": NAME} or {"file": PATH}')
    source = values.object_of(value, place, ("module", "file"))
    if len(source) != 1:
        raise values.Wrong(place, "version has not one source", 'write {"module": NAME} or {"file": PATH}')
    if "module" in source:
        return Version("module", values.word(source["module"], (*place, "module"), _MODULE))
    path = values.text_of(source["file"], (*place, "file"))
    if glob.is_pattern(path):
        raise values.Wrong((*place, "file"), f"{quoted(path)} is a pattern", "name one file")
    check = allowed.written if path.startswith(_KERNELS) else allowed.host_path
    values.refuse((*place, "file"), check(path), _PATH_REMEDY)
    return Version("file", path)


def _environment(value: object) -> tuple[tuple[str, str], ...]:
    found = []
    for name, text in values.object_of(value, ("environment",), None).items():
        place = ("environment", name)
        if not values.WORD.issuperset(name) or name[:1] in values.DIGITS or not name:
            raise values.Wrong(place, f"{quoted(name)} is no variable's name", "write letters, digits and _")
        found.append((name, values.text_of(text, place, least=0)))
    return tuple(found)


def _kernel(value: object) -> str:
    place = ("requires", "kernel")
    release = values.text_of(value, place)
    parts = release.split(".")
    if len(parts) > 3 or not all([_is_number(part) for part in parts]):
        raise values.Wrong(place, f"kernel is {quoted(release)}, which is no release", "write one such as 5.14")
    return release


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 5 and values.DIGITS.issuperset(text)


def _selinux(value: dict[str, Any], key: str) -> str:
    return values.word(value[key], ("selinux", key), values.WORD) if key in value else ""


def _chosen(top: dict[str, Any], groups: dict[str, Group]) -> tuple[Group, ...]:
    """The groups that a request gets: those of driver_feature, else all."""
    if "driver_feature" not in top:
        return tuple(groups.values())
    place = ("driver_feature",)
    names = [
        values.text_of(name, (*place, number))
        for number, name in enumerate(values.list_of(top["driver_feature"], place))
    ]
    if not names:
        raise values.Wrong(place, "driver_feature is empty", "name groups of inventory, or leave it out")
    chosen: dict[str, Group] = {}
    for number, name in enumerate(names):
        if name not in groups:
            raise values.Wrong(
                (*place, number),
                f"driver_feature has {quoted(name)}, which inventory has not{values.meant(name, groups)}",
                f"inventory has {values.listed(groups)}",
            )
        if name in chosen:
            raise values.Wrong((*place, number), f"driver_feature has {quoted(name)} twice", "name it once")
        chosen[name] = groups[name]
    return tuple(chosen.values())


# --- the inventory


def _inventory(value: object) -> _Found:
    place: Place = ("inventory",)
    document = values.object_of(value, place, None)
    if not document:
        raise values.Wrong(place, "inventory has no group", "write one, such as compute")
    groups: dict[str, Group] = {}
    versioned: Place = ()
    count = devices = 0
    for name, content in document.items():
        where = (*place, name)
        values.text_of(name, where)
        lists = values.object_of(content, where, _LISTS)
        for key, items in lists.items():
            count += len(values.list_of(items, (*where, key)))
            devices += len(items) if key == "devices" else 0
            if count > MOST_ITEMS or devices > MOST_DEVICES:
                most = f"{MOST_ITEMS} things" if count > MOST_ITEMS else f"{MOST_DEVICES} devices"
                raise values.Wrong((*where, key), f"with this list there are more than {most}", "write patterns")
        groups[name] = _group(name, lists, where)
        versioned = versioned or _first_versioned(lists, where)
    return _Found(groups, versioned)


def _group(name: str, lists: dict[str, Any], where: Place) -> Group:
    found: dict[str, list[Item]] = {
        key: [_item(item, (*where, key, number)) for number, item in enumerate(lists.get(key, ()))]
        for key in _ITEM_LISTS
    }
    # oci-decorator's files list a library that is preloaded among the programs.
    misplaced = [item for item in found["binaries"] if _is_library(item.path)]
    found["binaries"] = [item for item in found["binaries"] if not _is_library(item.path)]
    return Group(
        name=name,
        devices=tuple(
            [_device(item, (*where, "devices", number)) for number, item in enumerate(lists.get("devices", ()))]
        ),
        libraries=tuple(found["libraries"] + misplaced),
        files=tuple([item for key in _FILE_LISTS for item in found[key]]),
        sockets=tuple(
            [_socket(item, (*where, "sockets", number)) for number, item in enumerate(lists.get("sockets", ()))]
        ),
    )


def _is_library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name or ".so*" in name


def _first_versioned(lists: dict[str, Any], where: Place) -> Place:
    for key in _ITEM_LISTS:
        for number, item in enumerate(lists.get(key, ())):
            if allowed.VERSION in (item["path"] if isinstance(item, dict) else item):
                return (*where, key, number)
    return ()


def _item(value: object, place: Place) -> Item:
    if isinstance(value, str):
        return Item(_host_path(value, place))
    if not isinstance(value, dict):
        raise values.wrong_type(place, value, "a path, or an object with path")
    item = values.object_of(value, place, _ITEM_KEYS)
    path = _host_path(values.needed(item, "path", place), (*place, "path"))
    target = ""
    if "target" in item:
        where = (*place, "target")
        target = _without_slash(values.text_of(item["target"], where))
        values.refuse(where, allowed.target(target), "name a folder, by its path in the container")
    return Item(path, target, values.flag_of(item, "required", place, default=False))


def _host_path(value: object, place: Place) -> str:
    path = _without_slash(values.text_of(value, place))
    odd = path.replace(allowed.VERSION, "")
    if "{" in odd or "}" in odd:
        raise values.Wrong(place, f"{quoted(path)} has braces", "{version} alone stands in braces")
    values.refuse(place, allowed.host_path(path), _PATH_REMEDY)
    return path


def _socket(value: object, place: Place) -> Item:
    """Services come and go while a driver stays: a socket is looked up at each start, and so is one path."""
    path = values.text_of(value, place)
    if glob.is_pattern(path) or "{" in path:
        raise values.Wrong(place, f"{quoted(path)} is a pattern, a socket is one path", "name each socket")
    return Item(_host_path(path, place))


def _without_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") and len(path) > 1 else path


def _device(value: object, place: Place) -> DevicePattern:
    if isinstance(value, str):
        return DevicePattern(_device_path(value, place))
    if not isinstance(value, dict):
        raise values.wrong_type(place, value, "a name, or an object")
    device = values.object_of(value, place, _DEVICE_KEYS)
    if not set(device).intersection(_DEVICE_SIGNS):
        raise values.Wrong(place, "the device is not described", f"write one of {', '.join(_DEVICE_SIGNS)}")
    path = _device_path(device["path"], (*place, "path")) if "path" in device else ""
    if device.get("major") == "misc" and not path:
        raise values.Wrong((*place, "major"), "'misc' is the driver of many devices", "write path beside it")
    return DevicePattern(
        path=path,
        major=_major(device["major"], (*place, "major")) if "major" in device else "",
        pci=_pci(device["pci"], (*place, "pci")) if "pci" in device else (),
        properties=_udev(device["udev"], (*place, "udev")) if "udev" in device else (),
        each=values.flag_of(device, "each", place, default=False),
        name=values.word(device["name"], (*place, "name"), values.WORD | {"-", "."}) if "name" in device else "",
        required=values.flag_of(device, "required", place, default=True),
    )


def _device_path(value: object, place: Place) -> str:
    text = values.text_of(value, place)
    path = text if text.startswith("/") else allowed.DEV + text
    values.refuse(place, allowed.device_path(path), "name the accelerator's own devices, below /dev")
    return path


def _major(value: object, place: Place) -> str:
    name = values.text_of(value, place)
    values.refuse(place, allowed.driver(name), "name the accelerator's own driver in /proc/devices")
    return name


def _pci(value: object, place: Place) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else values.list_of(value, place)
    if not names:
        raise values.Wrong(place, "pci is empty", "write 1002 or 1d0f:7064, or leave it out")
    found = []
    for number, name in enumerate(names):
        where = place if isinstance(value, str) else (*place, number)
        text = values.text_of(name, where).lower()
        parts = text.split(":")
        if len(parts) > 2 or not all([len(part) == 4 and _HEX.issuperset(part) for part in parts]):
            raise values.Wrong(
                where,
                f"pci has {quoted(name)}, which is no vendor of a PCI device",
                "write four hexadecimal digits, 1002, or twice four, 1d0f:7064",
            )
        found.append(text)
    return tuple(found)


def _udev(value: object, place: Place) -> tuple[tuple[str, str], ...]:
    properties = values.object_of(value, place, None)
    if not properties:
        raise values.Wrong(place, "udev is empty", "write a property as 'udevadm info' shows it")
    for name, text in properties.items():
        values.word(name, (*place, name), values.WORD | {"-", "."})
        values.text_of(text, (*place, name))
    return tuple(properties.items())
