# SPDX-License-Identifier: Apache-2.0
"""JSON text to values, by the C scanner alone.

``import json`` doubles the interpreter's start (it brings ``re`` and ``enum``), while the scanner that does its work
is a small C module.  That module is private to Python, so this file is the only one that knows it, and where it is
missing or behaves otherwise, ``json`` itself does the work.

Must not be used to write JSON, and must not raise anything but ValueError.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import _json

    _make_scanner: Any = _json.make_scanner
except (
    ImportError,
    AttributeError,
):  # another implementation of Python, or a later one that moved it
    _make_scanner = None

_WHITESPACE = " \t\n\r"


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


# What `json.JSONDecoder` hands to its scanner, whose names these are: a types.SimpleNamespace.  The scanner clears its
# memo itself.
_SCANNER_CONTEXT = type(sys.implementation)(  # type: ignore[call-arg]
    strict=True,
    object_hook=None,
    object_pairs_hook=None,
    parse_float=float,
    parse_int=int,
    parse_constant=_refuse_constant,
    memo={},
)


def loads(data: bytes) -> object:
    """The one JSON value in `data` (UTF-8); ValueError where there is none or more than one."""
    text = data.decode("utf-8").strip(_WHITESPACE)
    if _make_scanner is None:
        return _loads_by_json(text)
    try:
        value: object
        value, end = _make_scanner(_SCANNER_CONTEXT)(text, 0)
    except StopIteration:
        raise ValueError("no JSON value") from None
    except (SystemError, AttributeError, TypeError):
        # The scanner looks for its exception in json.decoder, which before Python 3.13 it does not import: it fails
        # without an error to tell.  json itself has the words for it.  And a later scanner may want more of its
        # context, or be called otherwise, which json knows.
        return _loads_by_json(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if end != len(text):
        raise ValueError(f"something follows the JSON value at character {end}")
    return value


def _loads_by_json(text: str) -> object:
    import json

    try:
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value
