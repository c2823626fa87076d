# SPDX-License-Identifier: Apache-2.0
"""A vendor's file: JSON in, `Vendor` out, or one sentence that names the key that is wrong.

The form is oci-decorator's, whose published files are read as they are, with more keys: see oci-gpu-hook-vendors(5),
and packaging/vendors/vendor.schema.json, which says the same to editors.  All of a file is checked, groups that no
request gets too.  Must not look at the host.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, quoted
from oci_gpu_hook.formats import glob, jsontext
from oci_gpu_hook.request.words import LONGEST_FLAG, is_flag
from oci_gpu_hook.vendors import allowed, values
from oci_gpu_hook.vendors.values import Wrong
from oci_gpu_hook.vendors.vendorinventory import LARGEST_FILE, DevicePattern, Group, Item, Vendor, Version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_gpu_hook.vendors.values import Place, Reader

# Bounds far above what a driver has: ROCm's and NVIDIA's have some hundreds of files.
MOST_ITEMS = 4096
MOST_DEVICES = 256

# Where a driver says its version, beside the folders of files.
_KERNELS = ("/sys/", "/proc/driver/")
_PATH_REMEDY = "name files of the driver's own, by their whole paths"
_HEX = frozenset("0123456789abcdef")


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
    except Wrong as err:
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
    top = values.keys_of(document, (), _KEYS, ("activation_flag", "inventory"))
    groups, versioned = top["inventory"]
    if versioned and "version" not in top:
        raise Wrong(versioned, "{version} stands for nothing", "write the key version too")
    chosen = _chosen(top["driver_feature"], groups) if "driver_feature" in top else groups
    more = {key: top[key] for key in ("kind", "version", "environment") if key in top}
    more.update(top.get("requires", {}))
    more.update({f"selinux_{key}": text for key, text in top.get("selinux", {}).items()})
    return Vendor(path, top["activation_flag"], tuple(chosen.values()), **more)


# --- the top level


def _flag(value: object, place: Place) -> str:
    flag = values.text_of(value, place)
    if len(flag) > LONGEST_FLAG:
        what = f"activation_flag {quoted(flag)} has {len(flag)} characters"
        raise Wrong(place, what, f"{LONGEST_FLAG} are allowed")
    if not is_flag(flag):
        remedy = "write OCI_ and capitals, digits or underscores, such as OCI_AMD"
        raise Wrong(place, f"activation_flag is {quoted(flag)}, which is no flag", remedy)
    return flag


def _kind(value: object, place: Place) -> str:
    kind = values.text_of(value, place)
    vendor, slash, name = kind.partition("/")
    if not slash or not _is_cdi_name(vendor) or not _is_cdi_name(name):
        remedy = "write VENDOR/CLASS, such as amd.com/gpu, of letters, digits, '.', '_' and '-'"
        raise Wrong(place, f"kind is {quoted(kind)}, which is no kind of CDI's", remedy)
    if vendor == "nvidia.com":
        raise Wrong(place, f"kind is {quoted(kind)}, whose devices are not a vendor file's", "name another vendor")
    return kind


def _is_cdi_name(text: str) -> bool:
    """As CDI's parser takes it: a letter, then letters, digits and ``_-.``, and at the end no such sign."""
    ends_well = text[:1] in values.LETTERS and text[-1:] not in ("_", "-", ".")
    return ends_well and (values.WORD | {"-", "."}).issuperset(text)


def _version(value: object, place: Place) -> Version:
    if isinstance(value, str):
        values.refuse(place, allowed.version(value), "write the version as the files' names have it")
        return Version("text", value)
    readers: dict[str, Reader] = {"module": _MODULE, "file": _version_file}
    found = values.keys_of(value, place, readers, wanted='a string, {"module": NAME} or {"file": PATH}')
    if len(found) != 1:
        raise Wrong(place, "version has not one source", 'write {"module": NAME} or {"file": PATH}')
    return Version(*found.popitem())


def _version_file(value: object, place: Place) -> str:
    path = values.text_of(value, place)
    if glob.is_pattern(path):
        raise Wrong(place, f"{quoted(path)} is a pattern", "name one file")
    check = allowed.written if path.startswith(_KERNELS) else allowed.host_path
    values.refuse(place, check(path), _PATH_REMEDY)
    return path


def _environment(value: object, place: Place) -> tuple[tuple[str, str], ...]:
    variables = values.object_of(value, place)
    for name, text in variables.items():
        if not values.WORD.issuperset(name) or name[:1] in values.DIGITS or not name:
            raise Wrong((*place, name), f"{quoted(name)} is no variable's name", "write letters, digits and _")
        values.text_of(text, (*place, name), least=0)
    return tuple(variables.items())


def _kernel(value: object, place: Place) -> str:
    release = values.text_of(value, place)
    parts = release.split(".")
    if len(parts) > 3 or not all([0 < len(part) <= 5 and values.DIGITS.issuperset(part) for part in parts]):
        raise Wrong(place, f"kernel is {quoted(release)}, which is no release", "write one such as 5.14")
    return release


def _chosen(names: tuple[str, ...], groups: dict[str, Group]) -> dict[str, Group]:
    """The groups that driver_feature names."""
    place: Place = ("driver_feature",)
    if not names:
        raise Wrong(place, "driver_feature is empty", "name groups of inventory, or leave it out")
    chosen: dict[str, Group] = {}
    for number, name in enumerate(names):
        if name not in groups:
            what = f"driver_feature has {quoted(name)}, which inventory has not{values.meant(name, groups)}"
            raise Wrong((*place, number), what, f"inventory has {values.listed(groups)}")
        if name in chosen:
            raise Wrong((*place, number), f"driver_feature has {quoted(name)} twice", "name it once")
        chosen[name] = groups[name]
    return chosen


# --- the inventory


def _inventory(value: object, place: Place) -> tuple[dict[str, Group], Place]:
    """The groups, and where ``{version}`` stands first."""
    document = values.object_of(value, place)
    if not document:
        raise Wrong(place, "inventory has no group", "write one, such as compute")
    groups: dict[str, Group] = {}
    versioned: Place = ()
    count = devices = 0
    for name, content in document.items():
        where = (*place, name)
        values.text_of(name, where)
        for key, items in values.object_of(content, where, _LISTS).items():
            count += len(values.list_of(items, (*where, key)))
            devices += len(items) if key == "devices" else 0
            if count > MOST_ITEMS or devices > MOST_DEVICES:
                most = f"{MOST_ITEMS} things" if count > MOST_ITEMS else f"{MOST_DEVICES} devices"
                raise Wrong((*where, key), f"with this list there are more than {most}", "write patterns")
        lists = values.keys_of(content, where, _LISTS)
        groups[name] = _group(name, lists)
        places = [
            (key, number)
            for key in _ITEM_LISTS
            for number, item in enumerate(lists.get(key, ()))
            if allowed.VERSION in item.path
        ]
        versioned = versioned or ((*where, *places[0]) if places else ())
    return groups, versioned


def _group(name: str, lists: dict[str, Any]) -> Group:
    libraries, binaries, folders, others = [lists.get(key, ()) for key in _ITEM_LISTS]
    # oci-decorator's files list a library that is preloaded among the programs.
    misplaced = [item for item in binaries if _is_library(item.path)]
    programs = [item for item in binaries if item not in misplaced]
    return Group(
        name,
        devices=lists.get("devices", ()),
        libraries=(*libraries, *misplaced),
        files=(*programs, *folders, *others),
        sockets=lists.get("sockets", ()),
    )


def _is_library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name or ".so*" in name


def _item(value: object, place: Place) -> Item:
    if isinstance(value, str):
        return Item(_host_path(value, place))
    return Item(**values.keys_of(value, place, _ITEM_KEYS, ("path",), "a path, or an object with path"))


def _host_path(value: object, place: Place) -> str:
    path = _without_slash(values.text_of(value, place))
    odd = path.replace(allowed.VERSION, "")
    if "{" in odd or "}" in odd:
        raise Wrong(place, f"{quoted(path)} has braces", "{version} alone stands in braces")
    values.refuse(place, allowed.host_path(path), _PATH_REMEDY)
    return path


def _target(value: object, place: Place) -> str:
    target = _without_slash(values.text_of(value, place))
    values.refuse(place, allowed.target(target), "name a folder, by its path in the container")
    return target


def _socket(value: object, place: Place) -> Item:
    """Services come and go while a driver stays: a socket is looked up at each start, and so is one path."""
    path = values.text_of(value, place)
    if glob.is_pattern(path) or "{" in path:
        raise Wrong(place, f"{quoted(path)} is a pattern, a socket is one path", "name each socket")
    return Item(_host_path(path, place))


def _without_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") and len(path) > 1 else path


def _device(value: object, place: Place) -> DevicePattern:
    if isinstance(value, str):
        return DevicePattern(_device_path(value, place))
    device = values.keys_of(value, place, _DEVICE_KEYS, wanted="a name, or an object")
    if device.keys().isdisjoint(_DEVICE_SIGNS):
        raise Wrong(place, "the device is not described", f"write one of {', '.join(_DEVICE_SIGNS)}")
    if device.get("major") == "misc" and "path" not in device:
        raise Wrong((*place, "major"), "'misc' is the driver of many devices", "write path beside it")
    properties = device.pop("udev", ())
    return DevicePattern(**{"path": "", **device, "properties": properties})


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
    if isinstance(value, str):
        return (_pci_id(value, place),)
    if value == []:
        raise Wrong(place, "pci is empty", "write 1002 or 1d0f:7064, or leave it out")
    found: tuple[str, ...] = values.each(_pci_id)(value, place)
    return found


def _pci_id(value: object, place: Place) -> str:
    text = values.text_of(value, place).lower()
    parts = text.split(":")
    if len(parts) > 2 or not all([len(part) == 4 and _HEX.issuperset(part) for part in parts]):
        remedy = "write four hexadecimal digits, 1002, or twice four, 1d0f:7064"
        raise Wrong(place, f"pci has {quoted(str(value))}, which is no vendor of a PCI device", remedy)
    return text


def _udev(value: object, place: Place) -> tuple[tuple[str, str], ...]:
    properties = values.object_of(value, place)
    if not properties:
        raise Wrong(place, "udev is empty", "write a property as 'udevadm info' shows it")
    for name, text in properties.items():
        _SYSFS_NAME(name, (*place, name))
        values.text_of(text, (*place, name))
    return tuple(properties.items())


# --- the keys of each object, and what reads their values

_MODULE = values.name_of(values.WORD | {"-"})
_SYSFS_NAME = values.name_of(values.WORD | {"-", "."})
_SELINUX_NAME = values.name_of(values.WORD)
_ITEM_KEYS = {"path": _host_path, "target": _target, "required": values.flag_of}
_DEVICE_KEYS = {
    "path": _device_path,
    "major": _major,
    "pci": _pci,
    "udev": _udev,
    "each": values.flag_of,
    "name": _SYSFS_NAME,
    "required": values.flag_of,
}
_DEVICE_SIGNS = ("path", "major", "pci", "udev")
_ITEM_LISTS = ("libraries", "binaries", "directories", "miscellaneous")
_LISTS = {
    "devices": values.each(_device),
    **dict.fromkeys(_ITEM_LISTS, values.each(_item)),
    "sockets": values.each(_socket),
}
_KEYS: dict[str, Reader] = {
    "activation_flag": _flag,
    "driver_feature": values.each(values.text_of),
    "inventory": _inventory,
    "version": _version,
    "kind": _kind,
    "environment": _environment,
    "requires": values.object_reader({"kernel": _kernel, "modules": values.each(_MODULE)}),
    "selinux": values.object_reader({"type": _SELINUX_NAME, "boolean": _SELINUX_NAME}),
    # For editors and people; log_level is oci-decorator's: the settings say what is logged here.
    **dict.fromkeys(("$schema", "description", "log_level"), values.text_of),
}
