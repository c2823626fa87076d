# SPDX-License-Identifier: Apache-2.0
"""The devices that a CDI spec names, with the capability nodes of MIG that each has.  Pure.

From JSON, and from YAML in block style, which every program that writes specs uses: Python has no YAML parser.  Of
another text no device is found.
"""

from __future__ import annotations

import re

from oci_gpu_hook.record import NamedTuple

_BLOCK = re.compile(r"^devices:[ \t]*(?:#.*)?\n((?:[ \t#-].*\n|\n)*)", re.MULTILINE)
_ITEM = re.compile(r"^[ \t]*-[ \t]", re.MULTILINE)
_KEY = re.compile(r"""\bdevices["']?[ \t]*:""")
_CAPABILITY = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,10})\b")


class Device(NamedTuple):
    """A device of a spec; capabilities: the minors of its nodes in /dev/nvidia-caps, in order, each once."""

    name: str
    capabilities: tuple[int, ...]


def devices(text: str) -> tuple[Device, ...]:
    """The devices of a spec, in its order."""
    found = _of_json(text) if text.lstrip().startswith("{") else _of_yaml(text)
    return tuple([Device(name, _minors(part)) for name, part in found])


def is_unread(text: str) -> bool:
    """Whether a spec has a list of devices of which none is found."""
    return _KEY.search(text) is not None and not devices(text)


def _of_yaml(text: str) -> list[tuple[str, str]]:
    """Name and text of each item of the list; the key may stand before or behind the device's edits."""
    block = _BLOCK.search(text.replace("\r\n", "\n") + "\n")
    first = _ITEM.search(block.group(1)) if block else None
    if block is None or first is None:
        return []
    dash = re.escape(first.group())
    indent = " " * len(first.group())
    name = re.compile(rf"^(?:{dash}|{indent})name:[ \t]*([\"']?)([^\"'\n#]*)\1", re.MULTILINE)
    parts = re.split(rf"^(?={dash})", block.group(1), flags=re.MULTILINE)
    pairs = [(name.search(part), part) for part in parts]
    return [(match.group(2).strip(), part) for match, part in pairs if match]


def _of_json(text: str) -> list[tuple[str, str]]:
    import json

    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    items = document.get("devices") if isinstance(document, dict) else None
    return [
        (item["name"], json.dumps(item.get("containerEdits")))
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, dict) and isinstance(item.get("name"), str)
    ]


def _minors(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys([int(number) for number in _CAPABILITY.findall(text)]))
