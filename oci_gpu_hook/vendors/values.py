# SPDX-License-Identifier: Apache-2.0
"""The values of a vendor's file, each of the type that it must have, or what is wrong with it and where.

Must not know which keys a file has.
"""

from __future__ import annotations

from oci_gpu_hook.errors import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Any, Union

    Place = tuple[Union[str, int], ...]
    Reader = Callable[[object, Place], Any]

_LONGEST_TEXT = 4096
# Of names that one could be meant of, in a sentence or to compare with.
_MOST_NAMES = 32

UPPER, DIGITS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), frozenset("0123456789")
LETTERS = UPPER | frozenset("abcdefghijklmnopqrstuvwxyz")
WORD = LETTERS | DIGITS | {"_"}


class Wrong(Exception):
    """Something in a valid JSON text is wrong: where, what, and how to fix it."""

    def __init__(self, place: Place, what: str, remedy: str) -> None:
        super().__init__(what)
        self.place, self.what, self.remedy = place, what, remedy


def way(place: Place) -> str:
    """``inventory.compute.libraries[3]: ``; "" for the file itself and its own keys, which sentences name."""
    text = "".join([f"[{part}]" if isinstance(part, int) else f".{part}" for part in place])
    return f"{text[1:]}: " if len(place) > 1 else ""


def object_of(
    value: object, place: Place, keys: Collection[str] | None = None, wanted: str = "an object"
) -> dict[str, Any]:
    """An object with none but these keys; None: with any."""
    if not isinstance(value, dict):
        raise wrong_type(place, value, wanted)
    for key in value:
        if keys is not None and key not in keys:
            raise Wrong((*place, key), f"unknown key {quoted(key)}{meant(key, keys)}", f"known are {', '.join(keys)}")
    return value


def keys_of(
    value: object, place: Place, readers: Mapping[str, Reader], needed: tuple[str, ...] = (), wanted: str = "an object"
) -> dict[str, Any]:
    """What an object says, each key's value by its reader."""
    found = object_of(value, place, readers, wanted)
    for key in needed:
        if key not in found:
            raise Wrong(place, f"{_shown(place)} has no {key}", f"write the key {key}")
    return {key: readers[key](item, (*place, key)) for key, item in found.items()}


def object_reader(readers: Mapping[str, Reader]) -> Reader:
    """Reads an object, each key's value by its reader."""
    return lambda value, place: keys_of(value, place, readers)


def each(reader: Reader) -> Reader:
    """Reads a list, each item by `reader`."""
    return lambda value, place: tuple(
        [reader(item, (*place, number)) for number, item in enumerate(list_of(value, place))]
    )


def list_of(value: object, place: Place) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(place, value, "a list")
    return value


def text_of(value: object, place: Place, least: int = 1) -> str:
    """A string that people can read."""
    if not isinstance(value, str):
        raise wrong_type(place, value, "a string")
    if not value.isprintable():
        what = f"{_shown(place)} is {quoted(value)}, which has characters that cannot be printed"
        raise Wrong(place, what, "leave them out")
    if not least <= len(value) <= _LONGEST_TEXT:
        what = "is empty" if not value else f"is longer than {_LONGEST_TEXT} characters"
        raise Wrong(place, f"{_shown(place)} {what}", "write it, or leave the key out")
    return value


def name_of(letters: frozenset[str]) -> Reader:
    """Reads a name of these letters: of a module, a property, a type or a file."""

    def read(value: object, place: Place) -> str:
        text = text_of(value, place)
        if not letters.issuperset(text) or text in (".", ".."):
            signs = "".join(sorted(letters - LETTERS - DIGITS))
            what = f"{_shown(place)} is {quoted(text)}, which is no name"
            raise Wrong(place, what, f"names have letters, digits and {signs}")
        return text

    return read


def flag_of(value: object, place: Place) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(place, value, "true or false")
    return value


def refuse(place: Place, why: str, remedy: str) -> None:
    if why:
        raise Wrong(place, why, remedy)


def wrong_type(place: Place, value: object, wanted: str) -> Wrong:
    return Wrong(place, f"{_shown(place)} is {_TYPES.get(type(value), 'null')}, not {wanted}", f"write {wanted}")


_TYPES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


def _shown(place: Place) -> str:
    """A place for people: the last name, and which item of it."""
    names = [part for part in place if isinstance(part, str)]
    if not names:
        return "the file"
    name = names[-1] if WORD.issuperset(names[-1]) else quoted(names[-1])
    return f"an item of {name}" if isinstance(place[-1], int) else name


def meant(key: str, among: Iterable[str]) -> str:
    from oci_gpu_hook.request import settingsfile

    return settingsfile.meant(key, [name[:64] for name in list(among)[:_MOST_NAMES]])


def listed(names: Iterable[str]) -> str:
    return ", ".join([quoted(name) for name in list(names)[:_MOST_NAMES]])
