# SPDX-License-Identifier: Apache-2.0
"""A vendor's file: JSON in, `Vendor` out, or one sentence that names the key that is wrong.  Pure.

The form is oci-decorator's with more keys: oci-gpu-hook-vendors(5) describes it, and
packaging/vendors/vendor.schema.json says it to editors.  All of a file is checked, groups that no request gets too.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, quoted
from oci_gpu_hook.formats import glob, jsontext
from oci_gpu_hook.formats.decimal import decimals
from oci_gpu_hook.request.words import LONGEST_FLAG, is_flag
from oci_gpu_hook.vendors import vendorrules
from oci_gpu_hook.vendors.vendorinventory import LARGEST_FILE, DevicePattern, Group, Item, Vendor, Version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    # What reads a value, and its arguments after the value and its place, ``.inventory.compute.libraries[3]``.  A reader
    # raises ConfigError for what is not right.
    Row = tuple[Any, ...]

# Bounds far above what a driver has: ROCm's and NVIDIA's have some hundreds of files.
MAX_ITEMS = 4096
MAX_DEVICES = 256
_LONGEST_TEXT = 4096

# Where a driver says its version, beside the folders of files.
_KERNELS = ("/sys/", "/proc/driver/")
_DIGITS, _HEX = frozenset("0123456789"), frozenset("0123456789abcdef")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WORD = _LETTERS | _DIGITS | {"_"}


def parse_vendor(data: bytes, path: str) -> Vendor:
    """What the file at `path` says, which has this content; ConfigError ``PATH: KEY: ...`` if it is wrong, or names the
    line where the text is not JSON.
    """
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"{path}: it is larger than {LARGEST_FILE >> 20} MiB", "write a pattern for many files")
    try:
        document = jsontext.loads(data, unique=True)
    except ValueError as err:
        line, said = getattr(err, "lineno", 0), getattr(err, "msg", "")
        fault = f"line {line}: {said[:1].lower()}{said[1:]}" if line else str(err)
        fault = "it is not UTF-8 text" if isinstance(err, UnicodeDecodeError) else fault
        raise ConfigError(f"{path}: {fault}", "it must be one JSON object, each name once") from None
    try:
        return _vendor(document, path)
    except ConfigError as err:
        raise ConfigError(f"{path}: {err.message.lstrip('.: ')}", err.hint) from None


def _vendor(document: object, path: str) -> Vendor:
    top = _keys(document, "", _KEYS, ("activation_flag", "inventory"))
    groups: dict[str, Group] = top["inventory"]
    versioned = [item.path for it in groups.values() for item in (*it.libraries, *it.files) if _VERSION in item.path]
    if versioned and "version" not in top:
        what = f"{_VERSION} in {quoted(versioned[0])} has no value"
        raise ConfigError(f".inventory: {what}", "write the key version too")
    chosen: tuple[str, ...] = top.get("driver_feature", tuple(groups))
    if unknown := [name for name in chosen if name not in groups]:
        raise ConfigError(f".driver_feature: inventory has no {quoted(unknown[0])}", "name its groups")
    groups = {name: groups[name] for name in chosen}
    more = {key: top[key] for key in ("kind", "environment") if key in top}
    more.update(top.get("requires", {}))
    more.update({f"selinux_{key}": text for key, text in top.get("selinux", {}).items()})
    return Vendor(path, top["activation_flag"], tuple(groups.values()), source=top.get("version", Version()), **more)


def _inventory(value: object, place: str) -> dict[str, Group]:
    document = _typed(value, place, dict, "an object")
    found = [(key, items) for it in document.values() if isinstance(it, dict) for key, items in it.items()]
    # Before an item is read, which takes far longer than to count it.
    for keys, most, what in ((_LISTS, MAX_ITEMS, "things"), (("devices",), MAX_DEVICES, "devices")):
        if sum([len(items) for key, items in found if key in keys and isinstance(items, list)]) > most:
            raise ConfigError(f"{place}: it has more than {most} {what}", "write patterns")
    return {_plain_text(name, f"{place}.{name}"): _group(name, it, f"{place}.{name}") for name, it in document.items()}


def _group(name: str, value: object, place: str) -> Group:
    lists = _keys(value, place, _LISTS)
    libraries, binaries, folders, others = [lists.get(key, ()) for key in _ITEM_LISTS]
    # oci-decorator's files list a library that is preloaded among the programs.
    misplaced = [item for item in binaries if _is_library(item.path)]
    programs = [item for item in binaries if item not in misplaced]
    files = (*programs, *folders, *others)
    return Group(name, lists.get("devices", ()), (*libraries, *misplaced), files, lists.get("sockets", ()))


def _is_library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name or ".so*" in name


def _item(value: object, place: str) -> Item:
    if isinstance(value, str):
        return Item(_read(value, place, _HOST_PATH))
    return Item(**_keys(value, place, _ITEM_KEYS, ("path",), "a path, or an object with path"))


def _device(value: object, place: str) -> DevicePattern:
    if isinstance(value, str):
        device = {"path": _read(value, place, _DEVICE_PATH)}
    else:
        device = _keys(value, place, _DEVICE_KEYS, wanted="a name, or an object")
    if "major" not in device and not vendorrules.known_node(device.get("path", "")):
        raise ConfigError(f"{place}: it does not say whose device it is", "write an object with major in it")
    return DevicePattern(**device)


def _pci(value: object, place: str) -> tuple[str, ...]:
    return (_read(value, place, _PCI_ID),) if isinstance(value, str) else _each(value, place, *_PCI_ID)


def _version(value: object, place: str) -> Version:
    if isinstance(value, str):
        return Version("text", _read(value, place, _VERSION_TEXT))
    found = _keys(value, place, _VERSION_KEYS, wanted='a string, {"module": NAME} or {"file": PATH}')
    if len(found) != 1:
        raise ConfigError(f"{place}: it must have one source", 'write {"module": NAME} or {"file": PATH}')
    return Version(*found.popitem())


# --- why a text is wrong, "" if it is right


def _kind_fault(kind: str) -> str:
    vendor, slash, name = kind.partition("/")
    if not slash or not _is_cdi_name(vendor) or not _is_cdi_name(name):
        return f"{quoted(kind)} is not a CDI kind"
    return f"the devices of {quoted(kind)} are not a vendor file's" if vendor == "nvidia.com" else ""


def _is_cdi_name(text: str) -> bool:
    """As CDI's parser takes it: a letter, then letters, digits and ``_-.``, and at the end no such sign."""
    ends_well = text[:1] in _LETTERS and text[-1:] not in ("_", "-", ".")
    return ends_well and (_WORD | {"-", "."}).issuperset(text)


def _flag_fault(text: str) -> str:
    return "" if is_flag(text) else f"{quoted(text)} is not a flag"


def _release_fault(text: str) -> str:
    is_release = len(text) < 18 and 0 < len(decimals(text, 10**5 - 1)) <= 3
    return "" if is_release else f"{quoted(text)} is not a release"


def _pci_fault(text: str) -> str:
    parts = text.split(":")
    is_id = len(parts) <= 2 and all([len(part) == 4 and _HEX.issuperset(part) for part in parts])
    return "" if is_id else f"{quoted(text)} is not a PCI vendor"


def _variable_fault(text: str) -> str:
    is_variable = _WORD.issuperset(text) and text[0] not in _DIGITS
    return "" if is_variable else f"{quoted(text)} is not a variable's name"


def _host_path_fault(path: str) -> str:
    odd = path.replace(_VERSION, "")
    if "{" in odd or "}" in odd:
        return f"{quoted(path)} has braces, which only {_VERSION} may have"
    return vendorrules.fault_of_host_path(path)


def _one_path_fault(path: str, kernels: tuple[str, ...] = ()) -> str:
    """Of a socket, which is looked up at each start, as services come and go; and of the version's file."""
    if glob.is_pattern(path) or "{" in path:
        return f"{quoted(path)} is a pattern, it must be one path"
    return vendorrules.fault_of_path(path) if path.startswith(kernels) else vendorrules.fault_of_host_path(path)


# --- readers of values


def _read(value: object, place: str, row: Row) -> Any:
    reader, *arguments = row
    return reader(value, place, *arguments)


def _keys(
    value: object, place: str, rows: Mapping[str, Row], needed: tuple[str, ...] = (), wanted: str = "an object"
) -> dict[str, Any]:
    found = _typed(value, place, dict, wanted)
    for key in found:
        if key not in rows:
            raise ConfigError(f"{place}: unknown key {quoted(key)}", f"known are {', '.join(rows)}")
    for key in needed:
        if key not in found:
            raise ConfigError(f"{place}: it has no {key}", f"write the key {key}")
    return {key: _read(item, f"{place}.{key}", rows[key]) for key, item in found.items()}


def _typed(value: object, place: str, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"{place}: it is not {wanted}", f"write {wanted}")
    return value


def _each(value: object, place: str, *row: Any) -> tuple[Any, ...]:
    items = _typed(value, place, list, "a list")
    return tuple([_read(item, f"{place}[{number}]", row) for number, item in enumerate(items)])


def _some(value: object, place: str, remedy: str, *row: Any) -> Any:
    if value in ([], {}):
        raise ConfigError(f"{place}: it is empty", remedy)
    return _read(value, place, row)


def _pairs(value: object, place: str, least: int, *row: Any) -> tuple[tuple[str, str], ...]:
    items = [(key, text, f"{place}.{key}") for key, text in _typed(value, place, dict, "an object").items()]
    return tuple([(_read(key, at, row), _plain_text(text, at, least)) for key, text, at in items])


def _checked(
    value: object, place: str, fault: Callable[[str], str], remedy: str, clean: Callable[[str], str] = str
) -> str:
    """A text that `fault` finds right, once `clean` has changed what may be written in more ways than one."""
    text = clean(_plain_text(value, place))
    if why := fault(text):
        raise ConfigError(f"{place}: {why}", remedy)
    return text


def _name(value: object, place: str, signs: str) -> str:
    text, letters = _plain_text(value, place), _LETTERS | _DIGITS | {*signs}
    if not letters.issuperset(text) or text in (".", ".."):
        raise ConfigError(f"{place}: {quoted(text)} is not a name", f"names have letters, digits and {signs}")
    return text


def _plain_text(value: object, place: str, least: int = 1) -> str:
    text: str = _typed(value, place, str, "a string")
    if not text.isprintable():
        raise ConfigError(f"{place}: {quoted(text)} has characters that cannot be printed", "leave them out")
    if not least <= len(text) <= _LONGEST_TEXT:
        what = f"it is longer than {_LONGEST_TEXT} characters" if text else "it is empty"
        raise ConfigError(f"{place}: {what}", "write it, or leave the key out")
    return text


def _without_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") and len(path) > 1 else path


# --- the keys of each object, and how their values are read

_VERSION = vendorrules.VERSION
_OF_DRIVER = "name files of the driver's own, by their whole paths"
_HOST_PATH = (_checked, _host_path_fault, _OF_DRIVER, _without_slash)
_DEVICE_PATH = (
    _checked,
    vendorrules.fault_of_device_path,
    "name the accelerator's own devices, below /dev",
    lambda text: text if text.startswith("/") else vendorrules.DEV + text,
)
_PCI_ID = (_checked, _pci_fault, "write four hexadecimal digits, 1002, or twice four, 1d0f:7064", str.lower)
_VERSION_TEXT = (_checked, vendorrules.fault_of_version, "write the version as the files' names have it")
_VERSION_KEYS = {"module": (_name, "-_"), "file": (_checked, lambda path: _one_path_fault(path, _KERNELS), _OF_DRIVER)}
_ITEM_KEYS = {
    "path": _HOST_PATH,
    "target": (_checked, vendorrules.fault_of_target, "name a folder, by its path in the container", _without_slash),
    "required": (_typed, bool, "true or false"),
}
_DEVICE_KEYS = {
    "path": _DEVICE_PATH,
    "major": (_checked, vendorrules.fault_of_driver, "name the accelerator's driver in /proc/devices or /proc/misc"),
    "pci": (_some, "write 1002 or 1d0f:7064, or leave it out", _pci),
    "udev": (_some, "write a property as 'udevadm info' shows it", _pairs, 1, _name, "-._"),
    "each": (_typed, bool, "true or false"),
    "name": (_name, "-._"),
    "required": (_typed, bool, "true or false"),
}
_ITEM_LISTS = ("libraries", "binaries", "directories", "miscellaneous")
_LISTS = {
    "devices": (_each, _device),
    **dict.fromkeys(_ITEM_LISTS, (_each, _item)),
    "sockets": (_each, _checked, _one_path_fault, "name each socket of the driver's own, by its whole path"),
}
_FLAG = f"write OCI_ and capitals, digits or underscores, such as OCI_AMD, up to {LONGEST_FLAG} characters"
_KIND = "write VENDOR/CLASS, such as amd.com/gpu, of letters, digits, '.', '_' and '-'"
_KEYS: dict[str, Row] = {
    "activation_flag": (_checked, _flag_fault, _FLAG),
    "driver_feature": (_some, "name groups of inventory, or leave it out", _each, _plain_text),
    "inventory": (_some, "write a group, such as compute", _inventory),
    "version": (_version,),
    "kind": (_checked, _kind_fault, _KIND),
    "environment": (_pairs, 0, _checked, _variable_fault, "write letters, digits and _"),
    "requires": (
        _keys,
        {"kernel": (_checked, _release_fault, "write one such as 5.14"), "modules": (_each, _name, "-_")},
    ),
    "selinux": (_keys, {"type": (_name, "_"), "boolean": (_name, "_")}),
    # For editors and people; log_level is oci-decorator's: the settings say what is logged here.
    **dict.fromkeys(("$schema", "description", "log_level"), (_plain_text,)),
}
