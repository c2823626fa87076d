# SPDX-License-Identifier: Apache-2.0
"""A CDI spec as text, JSON or YAML, and back.  Pure.

`read` takes only the YAML that `write` makes: block style, one key or item on each line, scalars in JSON's form so that
no word is taken for another type, and keys without quotes, as CDI's keys are plain words.  Other YAML is not ours.  No
library reads it: on a host without one, a spec that an older version has written must still be known as ours.
Must not know what a spec means.
"""

from __future__ import annotations

import json
from typing import Any

YAML, JSON = "yaml", "json"

_START = "---"
_STEP = "  "
_ITEM = "- "
# No spec of ours is nested so deep.  Other text must not lead to Python's own limit.
_DEEPEST = 20


def form_of(path: str) -> str:
    """The form of a file, by its name."""
    return JSON if path.endswith(".json") else YAML


def write(document: dict[str, Any], form: str) -> str:
    """The document as text; it must not have a list as an item of a list."""
    if form == JSON:
        return json.dumps(document, indent=2) + "\n"
    return "\n".join([_START, *_lines(document, "")]) + "\n"


def read(text: str) -> object:
    """The document from a text that `write` has made; ValueError for another text."""
    if not text.startswith(_START):
        try:
            return json.loads(text)
        except RecursionError as err:
            raise ValueError("nested too deep") from err
    lines = text.splitlines()[1:]
    document, rest = _mapping(lines, "")
    if rest:
        raise ValueError(f"no line of ours: {rest[0]}")
    return document


def _lines(value: Any, indent: str) -> list[str]:
    lines = []
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, (dict, list)) and item:
                lines += [f"{indent}{key}:", *_lines(item, indent + _STEP)]
            else:
                lines.append(f"{indent}{key}: {_scalar(item)}")
        return lines
    for item in value:
        if isinstance(item, dict) and item:
            first, *rest = _lines(item, indent + _STEP)
            lines += [f"{indent}{_ITEM}{first.lstrip()}", *rest]
        else:
            lines.append(f"{indent}{_ITEM}{_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    """A scalar in JSON's form.  Printable text is not escaped, as YAML does not know JSON's pairs of surrogates."""
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))


def _value(lines: list[str], indent: str) -> tuple[Any, list[str]]:
    """The mapping or list that begins here, and the lines after it."""
    if len(indent) > _DEEPEST * len(_STEP) or not lines or not lines[0].startswith(indent):
        raise ValueError("no value where one must be")
    if lines[0].startswith(indent + _ITEM):
        return _list(lines, indent)
    return _mapping(lines, indent)


def _mapping(lines: list[str], indent: str) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    while lines and lines[0].startswith(indent) and lines[0][len(indent) : len(indent) + 1] != " ":
        key, colon, scalar = lines[0][len(indent) :].partition(":")
        if not colon or key.startswith("-"):
            break
        if scalar:
            found[key], lines = json.loads(scalar), lines[1:]
        else:
            found[key], lines = _value(lines[1:], indent + _STEP)
    return found, lines


def _list(lines: list[str], indent: str) -> tuple[list[Any], list[str]]:
    found = []
    while lines and lines[0].startswith(indent + _ITEM):
        item, inner = lines[0][len(indent) + len(_ITEM) :], indent + _STEP
        try:
            value, lines = json.loads(item), lines[1:]
        except ValueError:
            value, lines = _mapping([inner + item, *lines[1:]], inner)
        found.append(value)
    return found, lines
