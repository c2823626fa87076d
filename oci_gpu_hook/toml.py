# SPDX-License-Identifier: Apache-2.0
"""As much of TOML as container engines' configuration is written in: tables, strings and arrays of strings.  Pure.

Python 3.9 has no parser of its own.  Never on the hook's path.  Must not complain: what it does not understand it gives
as text, for the engine itself refuses a file that is wrong.
"""

from __future__ import annotations

import re  # noqa: TID253  for people: never on the hook's path
from typing import Union  # noqa: TID253

Value = Union[str, "tuple[str, ...]"]

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*"|\'[^\']*\')|#.*')


def parse(text: str) -> dict[str, Value]:
    """Every key with its table's name before it, ``engine.hooks_dir``; what is said later holds."""
    found: dict[str, Value] = {}
    table, key, value = "", "", ""
    for raw in text.splitlines():
        line = _COMMENT.sub(lambda match: match.group(1) or "", raw).strip()
        if not line:
            continue
        if key:
            value = f"{value} {line}"
        elif line.startswith("["):
            table = line.strip("[] ").replace('"', "").replace("'", "") + "."
            continue
        else:
            key, _, value = [part.strip() for part in line.partition("=")]
        if value.startswith("[") and not value.endswith("]"):
            continue  # an array goes on until it is closed
        found[table + key.strip("\"'")] = _value(value)
        key = ""
    return found


def _value(text: str) -> Value:
    strings = tuple([item[1:-1] for item in _STRING.findall(text)])
    if text.startswith("["):
        return strings
    return strings[0] if text[:1] in ('"', "'") and strings else text
