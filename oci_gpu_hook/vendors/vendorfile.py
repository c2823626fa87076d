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
from oci_gpu_hook.vendors.vendorinventory import LARGEST_FILE, DevicePattern, Group, Item, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    # What reads a value or raises ConfigError, and its arguments behind the value and its place, ``.inventory.a.b[3]``.
    Row = tuple[Any, ...]

# Bounds far above what a driver has: ROCm's and NVIDIA's have some hundreds of files.
MAX_ITEMS, MAX_DEVICES, _LONGEST_TEXT = 4096, 256, 4096

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
    return Vendor(path, top["activation_flag"], tuple(groups.values()), source=top.get("version", ("", "")), **more)


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
    names = [(item, f"{item.path.rpartition('/')[2]}.") for item in binaries]
    misplaced = [item for item, name in names if ".so." in name or ".so*" in name]
    files = (*[item for item in binaries if item not in misplaced], *folders, *others)
    return Group(name, lists.get("devices", ()), (*libraries, *misplaced), files, lists.get("sockets", ()))


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


def _version(value: object, place: str) -> tuple[str, str]:
    if isinstance(value, str):
        return "text", _read(value, place, _VERSION_TEXT)
    found = _keys(value, place, _VERSION_KEYS, wanted='a string, {"module": NAME} or {"file": PATH}')
    if len(found) != 1:
        raise ConfigError(f"{place}: it must have one source", 'write {"module": NAME} or {"file": PATH}')
    return found.popitem()


# --- what is right, and why a path is not


def _unless(is_right: Callable[[str], bool], what: str) -> Callable[[str], str]:
    return lambda text: "" if is_right(text) else f"{quoted(text)} is not {what}"


def _is_kind(text: str) -> bool:
    vendor, slash, name = text.partition("/")
    return bool(slash) and vendor != "nvidia.com" and _is_cdi_name(vendor) and _is_cdi_name(name)


def _is_cdi_name(text: str) -> bool:
    """As CDI's parser takes it: a letter, then letters, digits and ``_-.``, and at the end no such sign."""
    return text[:1] in _LETTERS and text[-1] not in "_-." and (_WORD | {"-", "."}).issuperset(text)


def _is_pci(text: str) -> bool:
    parts = text.split(":")
    return len(parts) <= 2 and all([len(part) == 4 and _HEX.issuperset(part) for part in parts])


def _is_release(text: str) -> bool:
    return len(text) < 18 and 0 < len(decimals(text, 10**5 - 1)) <= 3


def _is_variable(text: str) -> bool:
    return _WORD.issuperset(text) and text[0] not in _DIGITS


def _host_path_fault(path: str) -> str:
    if not {"{", "}"}.isdisjoint(path.replace(_VERSION, "")):
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
    letters = _LETTERS | _DIGITS | {*signs}
    fault = _unless(lambda it: letters.issuperset(it) and it not in (".", ".."), "a name")
    return _checked(value, place, fault, f"names have letters, digits and {signs}")


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
_PCI_ID = (_checked, _unless(_is_pci, "a PCI vendor"), "write hexadecimal digits as in 1002 or 1d0f:7064", str.lower)
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
_RELEASE = (_checked, _unless(_is_release, "a release"), "write one such as 5.14")
_FLAG = f"write OCI_ and capitals, digits or underscores, such as OCI_AMD, up to {LONGEST_FLAG} characters"
_KIND = "write VENDOR/CLASS, such as amd.com/gpu, of letters, digits, '.', '_' and '-'"
_KEYS: dict[str, Row] = {
    "activation_flag": (_checked, _unless(is_flag, "a flag"), _FLAG),
    "driver_feature": (_some, "name groups of inventory, or leave it out", _each, _plain_text),
    "inventory": (_some, "write a group, such as compute", _inventory),
    "version": (_version,),
    "kind": (_checked, _unless(_is_kind, "a CDI kind of a vendor's file"), _KIND),
    "environment": (_pairs, 0, _checked, _unless(_is_variable, "a variable's name"), "write letters, digits and _"),
    "requires": (_keys, {"kernel": _RELEASE, "modules": (_each, _name, "-_")}),
    "selinux": (_keys, {"type": (_name, "_"), "boolean": (_name, "_")}),
    # For editors and people; log_level is oci-decorator's: the settings say what is logged here.
    **dict.fromkeys(("$schema", "description", "log_level"), (_plain_text,)),
}
