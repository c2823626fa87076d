# SPDX-License-Identifier: Apache-2.0
"""Docker's daemon.json: one value of it is exchanged, and every other byte stays.

Its text is cut and joined, never serialised.  Must not know what a value means, nor read or write a file.
"""

from __future__ import annotations

import json
from typing import Any

from oci_gpu_hook.errors import ConfigError, quoted
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.node.setup.enginefile import FIX, EngineFile

_SPACE = " \t\n\r"
_INDENT = "    "


def values(file: EngineFile) -> dict[str, Any]:
    """The object in the file, ConfigError if there is none; dockerd takes an empty file for an empty one."""
    shown = quoted(file.path) if not file.path.isprintable() else file.path
    try:
        found = jsontext.loads(file.text.encode(), unique=True) if file.text.strip(_SPACE) else {}
    except ValueError as err:
        raise ConfigError(f"{shown} is not JSON: {err}", FIX) from err
    if not isinstance(found, dict):
        raise ConfigError(f"{shown} is not a JSON object", FIX)
    return found


def with_value(text: str, path: tuple[str, ...], value: object) -> str:
    """`text`, a JSON object, in which the value at a path of keys is this one; everything else is as it was.

    All but the last key of the path must name objects, or nothing.
    """
    text = text if text.strip(_SPACE) else "{\n}\n"
    begin = text.index("{")
    step = _indent(text, begin, _INDENT) or _INDENT
    key, *deeper = path
    while (found := jsontext.place(text, begin, key)) and deeper:
        begin = found[0]
        key, *deeper = deeper
    indent = _indent(text, begin, step)
    if found:
        return text[: found[0]] + _written(value, indent, step) + text[found[1] :]
    added = _added((key, *deeper), value, indent, step)
    gap = None if indent is None else f"\n{indent}"
    members = jsontext.members(text, begin)
    if members:
        end = members[-1][-1]
        return f"{text[:end]},{' ' if gap is None else gap}{added}{text[end:]}"
    close = text.index("}", begin)
    end = close if gap is None else text.rindex("\n", begin, close)
    return f"{text[: begin + 1]}{gap or ''}{added}{text[end:]}"


def without_value(text: str, path: tuple[str, ...], value: object) -> str:
    """`text` without this value, which must be there; "" for no file at all, if nothing else was in it.

    An object that it came with goes with it.  One that was there and empty stays, if its layout is not that of ours.
    """
    if text == with_value("", path, value):
        return ""
    begin = text.index("{")
    step = _indent(text, begin, _INDENT) or _INDENT
    while True:
        members = jsontext.members(text, begin)
        index = [name for name, *_ in members].index(path[0])
        _, at, first, end = members[index]
        if len(path) == 1 or text[at:end] == _added(path, value, _indent(text, begin, step), step):
            break
        begin, path = first, path[1:]
    if index:
        return text[: members[index - 1][3]] + text[end:]
    if len(members) > 1:
        return text[:at] + text[members[1][1] :]
    close = text.index("}", end)
    return text[: begin + 1] + (text[end:close].lstrip(" \t") if "\n" in text[end:close] else "") + text[close:]


def _indent(text: str, begin: int, step: str) -> str | None:
    """What stands ahead of each key of an object, as each is on a line of its own; None if all are in one line."""
    members = jsontext.members(text, begin)
    lead = text[begin + 1 : members[0][1] if members else text.index("}", begin)]
    return None if "\n" not in lead else lead.rpartition("\n")[2] + ("" if members else step)


def _added(path: tuple[str, ...], value: object, indent: str | None, step: str) -> str:
    """The first key of a path, with an object for each further one."""
    for name in reversed(path[1:]):
        value = {name: value}
    return f"{json.dumps(path[0])}: {_written(value, indent, step)}"


def _written(value: object, indent: str | None, step: str) -> str:
    """A value; indent: of its key, None for one line."""
    return json.dumps(value, indent=None if indent is None else step).replace("\n", f"\n{indent}")
