# SPDX-License-Identifier: Apache-2.0
"""Decimal numbers in texts of others.  Pure."""

from __future__ import annotations

# int() takes other scripts' digits and signs, and fails with an error of its own for thousands of digits.
_MAX_DIGITS = 20


def decimal(text: str, most: int = 10**9 - 1) -> int | None:
    """The number from 0 to `most` that a text of ASCII digits stands for; None for any other text."""
    if not (text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS):
        return None
    number = int(text)
    return number if number <= most else None


def beginning(text: str) -> tuple[int, ...]:
    """The numbers of the version that a text begins with: 5, 14 and 0 of ``5.14.0-503.el9``; () for none."""
    found: list[int] = []
    for part in text[: len(text) - len(text.lstrip("0123456789."))].split("."):
        number = decimal(part)
        if number is None:
            break
        found.append(number)
    return tuple(found)


def decimals(text: str, most: int = 10**9 - 1) -> tuple[int, ...]:
    """The numbers between the dots of a version such as ``575.57.08``; () for any other text."""
    parts = text.split(".")
    numbers = [number for part in parts if (number := decimal(part, most)) is not None]
    return tuple(numbers) if len(numbers) == len(parts) else ()
