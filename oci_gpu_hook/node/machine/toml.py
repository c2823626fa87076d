# SPDX-License-Identifier: Apache-2.0
"""Parse TOML, by Python's tomllib, or by tomli before Python 3.11."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any


class NoParser(Exception):
    """This Python has neither tomllib nor tomli."""


class MalformedToml(ValueError):
    """A text that is not TOML; the message says why, on one line of ASCII."""


def parse_toml(data: bytes) -> dict[str, Any]:
    """The document in `data`; MalformedToml, or NoParser."""
    try:
        return dict(_parser().loads(data.decode()))
    except UnicodeDecodeError as err:
        raise MalformedToml("it is not UTF-8 text") from err
    except RecursionError as err:
        raise MalformedToml("it is nested too deep") from err
    except ValueError as err:
        why = str(err).encode("ascii", "backslashreplace").decode()[:200]
        raise MalformedToml(f"{why[:1].lower()}{why[1:]}") from err


def _parser() -> Any:
    for name in ("tomllib", "tomli"):
        with suppress(ImportError):
            return importlib.import_module(name)
    raise NoParser("this Python has no tomllib, and no tomli")
