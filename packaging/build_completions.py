# SPDX-License-Identifier: Apache-2.0
"""Make the completions of bash, zsh and fish in packaging/completions from click's commands: `make generated`.

    build_completions.py FOLDER

click can complete by itself, but 7.1 and 8 do it in different ways, and each Tab starts the program.  These completions
contain the commands: they answer at once, with any version of click, and without click.  All three work alike: the
words before the cursor select a command, and each command has a list of what may follow.  Must not contain the name of
a command.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import commandline
from commandline import NAME, ROOT, Command, Option

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCES = ROOT / "packaging/completions"
_MADE = """\
# SPDX-License-Identifier: Apache-2.0
# Made by build_completions.py, from the program and packaging/completions.
"""


def bash(commands: tuple[Command, ...]) -> str:
    values = []
    follows = []
    for command in commands:
        for option in command.options:
            if option.value:
                patterns = " | ".join(_quoted(f"{command.name} {name}") for name in option.names)
                values.append(f"    {patterns}) {_bash_value(option)} ;;")
        names = [name for option in command.options for name in option.names]
        words = " ".join([name for name, _ in command.commands] + names)
        line = f"_oci_gpu_hook_words {_quoted(words)}"
        for argument in command.arguments:
            line += f"; {_bash_value(argument)}"
        follows.append(f"        {_quoted(command.name)}) {line} ;;")
    return _MADE + _filled("bash", commands, " | ", values, follows)


def _bash_value(option: Option) -> str:
    paths = {"file": "_oci_gpu_hook_paths -f", "folder": "_oci_gpu_hook_paths -d", "": ":"}
    return paths.get(option.kind) or f"_oci_gpu_hook_words {_quoted(' '.join(option.choices))}"


def zsh(commands: tuple[Command, ...]) -> str:
    follows = []
    for command in commands:
        specs = [spec for option in command.options for spec in _zsh_option(option)]
        for argument in command.arguments:
            optional = "" if argument.required else ":"
            specs.append(_quoted(f":{optional}{argument.value}:{_zsh_value(argument)}"))
        lines = [f"({_quoted(command.name)})"]
        if command.commands:
            below = [_quoted(f"{name}:{text}") for name, text in command.commands]
            lines.append(f"    below=({' '.join(below)})")
            specs.append(_quoted("1:command:{ _describe -t commands command below }"))
        lines += [f"    _arguments {' '.join(specs)}", "    ;;"]
        follows.append("\n".join(lines))
    return f"#compdef {NAME}\n" + _MADE + _filled("zsh", commands, " | ", [], follows)


def _zsh_option(option: Option) -> list[str]:
    help = "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in _short(option))
    value = f":{option.value}:{_zsh_value(option)}" if option.value else ""
    others = f"({' '.join(option.names)})" if len(option.names) > 1 else ""
    return [_quoted(f"{others}{name}{_equals(name, option)}[{help}]{value}") for name in option.names]


def _equals(name: str, option: Option) -> str:
    """Only long names take their value after an equals sign."""
    return "=" if option.value and name.startswith("--") else ""


def _zsh_value(option: Option) -> str:
    actions = {"file": "_files", "folder": "_files -/", "": " "}
    return actions.get(option.kind) or f"({' '.join(option.choices)})"


def fish(commands: tuple[Command, ...]) -> str:
    lines = []
    for command in commands:
        here = f"complete -c {NAME} -n {_fish_quoted(f'__oci_gpu_hook_at {command.name}'.strip())}"
        for name, text in command.commands:
            lines.append(f"{here} -a {name} -d {_fish_quoted(text)}")
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = _fish_value(option) if option.value else ""
            lines.append(f"{here} {names}{value} -d {_fish_quoted(_short(option))}")
        lines += [f"{here}{_fish_value(argument)[3:]}" for argument in command.arguments]
    return _MADE + _filled("fish", commands, " ", [], lines)


def _fish_value(option: Option) -> str:
    """fish's options for a value: that one is needed (-r), and how it is completed."""
    values = {"file": " -r -F", "folder": " -r -f -a '(__fish_complete_directories)'", "": " -r -f"}
    return values.get(option.kind) or f" -r -f -a '{' '.join(option.choices)}'"


def _filled(shell: str, commands: tuple[Command, ...], between: str, values: list[str], follows: list[str]) -> str:
    """The shell's template, filled in."""
    names = [_quoted(command.name) for command in commands if command.words]
    text = (SOURCES / f"{shell}.in").read_text()
    for mark, found in (
        ("@takers@", between.join(_takers(commands))),
        ("@commands@", between.join(names)),
        ("@values@", "\n".join(values)),
        ("@follows@", "\n".join(follows)),
    ):
        text = text.replace(mark, found)
    return text


def _takers(commands: Iterable[Command]) -> list[str]:
    """The options that take a value, in any command."""
    return sorted({n for c in commands for o in c.options if o.value for n in o.names})


def _short(option: Option) -> str:
    """An option's help as one line of a menu, without the default."""
    return commandline.sentence(option.help.partition("  [default")[0])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    commands = commandline.commands()
    for name, make in ((NAME, bash), (f"_{NAME}", zsh), (f"{NAME}.fish", fish)):
        commandline.write(folder / name, make(commands))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
