# SPDX-License-Identifier: Apache-2.0
"""The host's CDI specs for NVIDIA's GPUs, ours and others', with the driver version that each was made for.

And our own for other vendors' devices.  They are searched as text, for Python has no YAML parser: the patterns fit both
JSON and YAML.  A spec's devices are found in JSON, and in YAML in block style, which every program that writes specs
uses; in another text none is.  Reads only.
"""

from __future__ import annotations

import json
import re

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import text
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.words import CDI_FOLDERS

_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(?:[,#}]|$)""", re.MULTILINE)
_OUR_DRIVER = re.compile(r"""--cdi-driver["'],?\s*(?:-\s*)?["']([^"']*)["']""")
_OUR_VENDOR = re.compile(r"""--cdi-vendor["'],?\s*(?:-\s*)?["'](OCI_[A-Z0-9_]+)["']""")
_OUR_KIND = re.compile(r"\bOCI_GPU_HOOK_CDI=nvidia\.com/([a-z]+)")
_MANAGEMENT = re.compile(r"""["']?kind["']?\s*:\s*["']?management\.nvidia\.com/gpu\b""")
_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+\.[0-9.]*\d)")
_BLOCK = re.compile(r"^devices:[ \t]*(?:#.*)?\n((?:[ \t#-].*\n|\n)*)", re.MULTILINE)
_ITEM = re.compile(r"^[ \t]*-[ \t]", re.MULTILINE)
_KEY = re.compile(r"""\bdevices["']?[ \t]*:""")
_CAPABILITY = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,10})\b")


class Device(NamedTuple):
    """A device of a spec; capabilities: the minors of its nodes in /dev/nvidia-caps, in order, each once."""

    name: str
    capabilities: tuple[int, ...]


class Spec(NamedTuple):
    """One spec.

    driver: the version that it was made for, "" if it does not say; devices: those that it names; unread: it has a
    list of devices, and none was found in it; flag: of the vendor for whose devices we have made it.
    """

    path: str
    is_ours: bool
    driver: str
    devices: tuple[Device, ...] = ()
    unread: bool = False
    flag: str = ""


def specs(root: HostRoot) -> tuple[Spec, ...]:
    """Every spec of kind nvidia.com/gpu, in the order in which engines read them."""
    return tuple([_spec(path, said) for path, said in _texts(root) if _KIND.search(said)])


def of_management(root: HostRoot) -> tuple[Spec, ...]:
    """Every spec of ours of kind management.nvidia.com/gpu, in the same order."""
    found = [_spec(path, said) for path, said in _texts(root) if _MANAGEMENT.search(said)]
    return tuple([spec for spec in found if spec.is_ours])


def beside_gpus(root: HostRoot) -> tuple[tuple[str, str], ...]:
    """Path and family of every spec of ours for what is beside GPUs, which starts no hook: ``imex``, ``gds``, ..."""
    found = [(path, _OUR_KIND.search(said)) for path, said in _texts(root)]
    return tuple([(path, match.group(1)) for path, match in found if match])


def of_vendors(root: HostRoot) -> tuple[Spec, ...]:
    """Every spec of ours for other vendors' devices, in the same order."""
    return tuple([_spec(path, said) for path, said in _texts(root) if _OUR_VENDOR.search(said)])


def _texts(root: HostRoot) -> list[tuple[str, str]]:
    """Path and text of each file that engines read."""
    paths = [f"{folder}/{name}" for folder in CDI_FOLDERS for name in root.names(folder)]
    return [(path, text(root, path)) for path in paths if path.endswith((".yaml", ".json"))]


def _spec(path: str, said: str) -> Spec:
    ours, vendor = _OUR_DRIVER.search(said), _OUR_VENDOR.search(said)
    version = ours or _LIBRARY.search(said)
    found = devices(said)
    unread = not found and _KEY.search(said) is not None
    driver, flag = [match.group(1) if match else "" for match in (version, vendor)]
    return Spec(path, ours is not None, driver, found, unread, flag)


def devices(said: str) -> tuple[Device, ...]:
    """The devices of a spec, in its order."""
    found = []
    for name, part in _of_json(said) if said.lstrip().startswith("{") else _of_yaml(said):
        minors = [int(number) for number in _CAPABILITY.findall(part)]
        found.append(Device(name, tuple(dict.fromkeys(minors))))
    return tuple(found)


def _of_yaml(said: str) -> list[tuple[str, str]]:
    """Name and text of each item of the list; the key may stand before or behind the device's edits."""
    block = _BLOCK.search(said.replace("\r\n", "\n") + "\n")
    first = _ITEM.search(block.group(1)) if block else None
    if block is None or first is None:
        return []
    dash = re.escape(first.group())
    indent = " " * len(first.group())
    name = re.compile(rf"^(?:{dash}|{indent})name:[ \t]*([\"']?)([^\"'\n#]*)\1", re.MULTILINE)
    parts = re.split(rf"^(?={dash})", block.group(1), flags=re.MULTILINE)
    pairs = [(name.search(part), part) for part in parts]
    return [(match.group(2).strip(), part) for match, part in pairs if match]


def _of_json(said: str) -> list[tuple[str, str]]:
    try:
        document = json.loads(said)
    except (ValueError, RecursionError):
        return []
    items = document.get("devices") if isinstance(document, dict) else None
    return [
        (item["name"], json.dumps(item.get("containerEdits")))
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, dict) and isinstance(item.get("name"), str)
    ]
