# SPDX-License-Identifier: Apache-2.0
"""click's commands as plain values, from which the manuals and the completions are made.

Uses only what both click 7.1 and 8 have.  Must not know roff or any shell.
"""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402  the package beside us goes before an installed one

from oci_gpu_hook.cli.commands import program  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "oci-gpu-hook"
# click's mark of a paragraph that is not wrapped.
_AS_IT_IS = "\b\n"
_FILES = ("FILE", "PATH")


class Text(NamedTuple):
    """A paragraph, or lines that stay as they are."""

    text: str
    as_it_is: bool


class Option(NamedTuple):
    """An option or an argument.

    names: `-h`, `--help`, none for an argument; value: its metavariable, "" for a flag; kind: the kind of the value,
    `file`, `folder`, `word` for one of `choices`, or "".
    """

    names: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    kind: str
    required: bool
    help: str


class Command(NamedTuple):
    """A command or a group.

    words: those after the program's name that select it; commands: the words that may follow, with their help.
    """

    words: tuple[str, ...]
    help: tuple[Text, ...]
    epilog: tuple[Text, ...]
    options: tuple[Option, ...]
    arguments: tuple[Option, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """As it is typed: ``inventory refresh``."""
        return " ".join(self.words)


def commands() -> tuple[Command, ...]:
    """Every command and group, the program itself first, in the order in which they were added."""
    return tuple(_walk(program, ()))


def option_help(names: tuple[str, ...]) -> Option:
    """``--help``, which click adds by itself."""
    return Option(names, "", (), "", False, "Show help and exit.")


def _walk(command: click.Command, words: tuple[str, ...]) -> Iterator[Command]:
    below = command.commands if isinstance(command, click.Group) else {}
    shown = {name: found for name, found in below.items() if not found.hidden}
    yield Command(
        words,
        _texts(command.help),
        _texts(command.epilog),
        (*_options(command), option_help(("-h", "--help"))),
        tuple(_argument(found) for found in command.params if isinstance(found, click.Argument)),
        tuple((name, sentence(_plain(found.help))) for name, found in shown.items()),
    )
    for name, found in shown.items():
        yield from _walk(found, (*words, name))


def _options(command: click.Command) -> Iterator[Option]:
    for found in command.params:
        if isinstance(found, click.Option) and not found.hidden:
            choices, value = _choices(found), _value(found)
            text = " ".join((found.help or "").split())
            if found.show_default and found.default is not None:
                text = f"{text}  [default: {_number(found.default)}]"
            names = (*found.opts, *found.secondary_opts)
            required = bool(found.required)
            yield Option(names, value, choices, _kind(value, choices), required, text)


def _argument(found: click.Argument) -> Option:
    # click wants the brackets in the word, the manuals and the completions set their own.
    value = (found.metavar or str(found.name).upper()).replace("[", "").replace("]", "")
    choices = _choices(found)
    return Option((), value, choices, _kind(value, choices), bool(found.required), "")


def _choices(found: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, found.type.choices)) if isinstance(found.type, click.Choice) else ()


def _value(found: click.Option) -> str:
    if found.is_flag or found.count:
        return ""
    return found.metavar or "|".join(_choices(found)) or found.type.name.upper()


def _kind(value: str, choices: tuple[str, ...]) -> str:
    if value in _FILES:
        return "file"
    if value == "DIR":
        return "folder"
    return "word" if choices else ""


def _number(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def _plain(text: str | None) -> str:
    found = _texts(text)
    return found[0].text if found else ""


def sentence(text: str) -> str:
    """The first sentence of a text, without its full stop."""
    return text.partition(". ")[0].rstrip(".")


def _texts(text: str | None) -> tuple[Text, ...]:
    """The paragraphs of one of click's help texts."""
    found = []
    # click before 8 keeps a docstring's indentation.
    for part in inspect.cleandoc(text or "").split("\n\n"):
        as_it_is = part.startswith(_AS_IT_IS)
        if part.strip():
            lines = part[len(_AS_IT_IS) :].rstrip() if as_it_is else " ".join(part.split())
            found.append(Text(lines, as_it_is))
    return tuple(found)


def write(file: Path, text: str) -> None:
    """Whole or not at all: another `make` may read it, or make it, at the same time."""
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(file)
