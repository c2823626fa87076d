# SPDX-License-Identifier: Apache-2.0
"""Parse JSON by Python's C scanner alone.

``import json`` doubles the time of the interpreter's start.  The scanner is private to Python: if it is missing or
works in another way, ``json`` does the work.  Must not raise anything but ValueError.
"""

from __future__ import annotations

import sys

from oci_gpu_hook.errors import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Pairs = list[tuple[str, Any]]

try:
    import _json

    _make_scanner: Any = _json.make_scanner
except (ImportError, AttributeError):  # another implementation of Python, or a later one that moved it
    _make_scanner = None

_WHITESPACE = " \t\n\r"


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")


def _scanner(pairs: Callable[[Pairs], object] | None = None) -> Callable[[str, int], tuple[Any, int]]:
    # What `json.JSONDecoder` passes to the scanner, as a types.SimpleNamespace.  The scanner itself clears the memo.
    context = type(sys.implementation)(  # type: ignore[call-arg]
        strict=True,
        object_hook=None,
        object_pairs_hook=pairs,
        array_hook=None,  # Python 3.15
        parse_float=float,
        parse_int=int,
        parse_constant=_refuse_constant,
        memo={},
    )
    try:
        scan: Callable[[str, int], tuple[Any, int]] = _make_scanner(context)
    except (AttributeError, TypeError):  # there is none, or it asks for more
        import json

        return json.JSONDecoder(object_pairs_hook=pairs, parse_constant=_refuse_constant).raw_decode
    return scan


def loads(data: bytes, *, unique: bool = False) -> object:
    """The one JSON value in `data`; ValueError, as json's own, for none or more; unique: for a name given twice."""
    text, pairs = data.decode("utf-8"), _unique if unique else None
    try:
        value, end = _scanner(pairs)(text, len(text) - len(text.lstrip(_WHITESPACE)))
        if not text[end:].strip(_WHITESPACE):
            return value
    except (StopIteration, ValueError, SystemError, AttributeError, TypeError, RecursionError):
        # json itself raises the right error.  Or it knows what a later Python's scanner needs.
        pass
    import json

    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: Pairs) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it has the key {quoted(name)} twice")
        found[name] = value
    return found


def members(text: str, begin: int) -> list[tuple[str, int, int, int]]:
    """Each member of the valid object at `begin`: its name, where that begins, where its value begins and ends."""
    scan = _scanner()
    found = []
    at = _behind_space(text, begin + 1)
    while text[at] != "}":
        name, end = scan(text, at)
        first = _behind_space(text, _behind_space(text, end) + 1)
        _, end = scan(text, first)
        found.append((name, at, first, end))
        at = _behind_space(text, end)
        if text[at] == ",":
            at = _behind_space(text, at + 1)
    return found


def place(text: str, begin: int, name: str) -> tuple[int, int] | None:
    """Where a member's value begins and ends, in the object that begins at `begin`; of several the last counts."""
    found = [(first, end) for key, _, first, end in members(text, begin) if key == name]
    return found[-1] if found else None


def _behind_space(text: str, at: int) -> int:
    while text[at] in _WHITESPACE:
        at += 1
    return at


def has_more_values(data: bytes, most: int) -> bool:
    """Whether a text has more values than `most`: commas, colons and brackets outside of its strings, or strings."""
    if len(data) <= most or sum([data.count(mark) for mark in (b",", b":", b"{", b"[")]) <= most:
        return False
    others = bytes([byte for byte in range(256) if byte not in b',:{["'])
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, others)
    if marks.count(b'"') > 2 * most:
        return True
    return sum(map(len, marks.split(b'"')[::2])) > most
