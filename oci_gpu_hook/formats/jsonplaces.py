# SPDX-License-Identifier: Apache-2.0
"""On which line of a JSON text something stands, for a sentence about it.

A good text is not looked at: this module is imported once there is something to say.  Pure.
"""

from __future__ import annotations

from oci_gpu_hook.formats import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DEEPEST = 32


def line_of(text: str, place: Sequence[str | int]) -> int:
    """The line of what stands at `place` in a valid text: names and numbers of items, from the outermost on.

    Of a member it is the line of its name; of what is not there, the line of what should have it.
    """
    wanted = list(place)
    depth, found = 0, 0
    for stack, _, at in _places(text):
        if len(stack) > depth and stack == wanted[: len(stack)]:
            depth, found = len(stack), at
            if depth == len(wanted):
                break
    return _line(text, found)


def fault(data: bytes) -> tuple[int, str]:
    """Why `data` is refused by `jsontext.loads` with `jsontext.unique`, and on which line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as err:
        return data[: err.start].count(b"\n") + 1, "it is no UTF-8 text"
    # How deep a Python's parser goes differs: what is this deep is said in the same way by all.
    try:
        deep = next((at for stack, _, at in _places(text) if len(stack) > _DEEPEST), None)
    except (ValueError, IndexError):
        deep = None
    if deep is not None:
        return _line(text, deep), "it is nested too deeply"
    # What json says of the rest has a line.
    import json

    words = [""]
    try:
        json.loads(
            text,
            parse_int=lambda word: int(words.append(word) or word),  # type: ignore[func-returns-value]
            parse_constant=lambda word: words.append(word) or int(word),  # type: ignore[func-returns-value]
        )
    except json.JSONDecodeError as err:
        return err.lineno, f"{err.msg[:1].lower()}{err.msg[1:]}"
    except ValueError:
        return _line(text, _bare(text, words[-1])), "it has a number that JSON has not"
    for stack, is_repeated, at in _places(text):
        if is_repeated:
            return _line(text, at), f"{stack[-1]!a} is there twice"
    return 1, "it cannot be read"


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _places(text: str) -> Iterator[tuple[list[str | int], bool, int]]:
    """Each member's name and each item of a list: where it stands, whether that name was there before, its offset.

    The list is the same each time, and changes from one to the next.  A text that is not valid as far as it
    is read is a ValueError or an IndexError.
    """
    scan = jsontext.scanner()
    stack: list[str | int] = []
    # Of an object the names in it, of a list None.
    within: list[set[str] | None] = []
    begins = False
    at = 0
    while at < len(text):
        letter, end = text[at], at + 1
        if letter in "]}":
            stack.pop()
            within.pop()
            begins = False
        elif letter == ",":
            begins = True
        elif letter not in " \t\n\r":
            name = ""
            if letter == '"':
                name, end = scan(text, at)
            if begins:
                names = within[-1]
                stack[-1] = int(stack[-1]) + 1 if names is None else name
                yield stack, names is not None and name in names, at
                if names is not None:
                    names.add(name)
            begins = letter in "{["
            if begins:
                within.append(set() if letter == "{" else None)
                stack.append("" if letter == "{" else -1)
        at = end


def _bare(text: str, word: str) -> int:
    """Where `word` stands outside of all strings."""
    scan = jsontext.scanner()
    at, found = 0, text.find(word)
    while True:
        string = text.find('"', at)
        if string < 0 or found < string:
            return max(found, 0)
        _, at = scan(text, string)
        # Looked for anew only where it stood in that string.
        found = found if found >= at else text.find(word, at)
