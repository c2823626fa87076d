# SPDX-License-Identifier: Apache-2.0
"""Patterns of names, as a shell has them: ``*``, ``?``, ``[a-z]`` and ``[!a-z]`` in one component of a path.  Pure.

``fnmatch`` imports ``re``, which costs a start as much as all that it does with a vendor's file.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_SPECIAL = frozenset("*?[")


def is_pattern(text: str) -> bool:
    return not _SPECIAL.isdisjoint(text)


def matches(pattern: str, name: str) -> bool:
    """Whether `name` fits `pattern`; takes time linear in both lengths multiplied.  A ``[`` without end is a letter."""
    parts = _parts(pattern)
    at = position = 0
    # Where the last star stood, and where its rest was tried last: only the last star need ever take more letters.
    star, tried = -1, 0
    while at < len(name):
        if position < len(parts) and parts[position] == "*":
            star, tried = position, at
            position += 1
        elif position < len(parts) and _fits(parts[position], name[at]):
            position += 1
            at += 1
        elif star >= 0:
            tried += 1
            position, at = star + 1, tried
        else:
            return False
    return all([part == "*" for part in parts[position:]])


def expanded(pattern: str, names: Callable[[str], list[str]], most: int) -> list[str]:
    """Of very many paths the first ones: `most` and one more.  names: gives the names in a folder.  If the last part is
    not a pattern, a path need not be there.
    """
    paths = [""]
    for part in pattern.split("/")[1:]:
        if is_pattern(part):
            found = [f"{folder}/{name}" for folder in paths for name in names(folder or "/") if matches(part, name)]
            paths = found[: most + 1]
        else:
            paths = [f"{folder}/{part}" for folder in paths]
    return paths


def _parts(pattern: str) -> list[str]:
    found = []
    at = 0
    while at < len(pattern):
        end = at + 1
        if pattern[at] == "[":
            # The first letter in brackets is one of them, even if it is "]".
            first = at + 2 if pattern[at + 1 : at + 2] == "!" else at + 1
            close = pattern.find("]", first + 1)
            end = close + 1 if close >= 0 else end
        found.append(pattern[at:end])
        at = end
    return found


def _fits(part: str, letter: str) -> bool:
    if len(part) == 1:
        return part in ("?", letter)
    negated, found = part[1] == "!", False
    inner = part[2:-1] if negated else part[1:-1]
    while inner:
        size = 3 if inner[1:2] == "-" and len(inner) > 2 else 1
        found = found or inner[0] <= letter <= inner[size - 1]
        inner = inner[size:]
    return found != negated
