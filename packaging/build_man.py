# SPDX-License-Identifier: Apache-2.0
"""Make the manual pages from packaging/man/*.rst, by docutils: `make generated`.

    build_man.py FOLDER

What the program itself says is not written a second time.  The sources use these directives:

    .. commands:: [WORD]    every command (of the group WORD), with its options and its help
    .. shared-options::     the options that three commands or more have in common
    .. exit-codes::         the exit codes at the end of the program's help
    .. setting:: KEY        one setting: the text below describes it, its values and default come from the code

A setting without its description, or a description without its setting, is an error.  Must not need a terminal, root
or the network.
"""

from __future__ import annotations

import configparser
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import commandline
from commandline import NAME, ROOT, Command, Option, Text
from docutils import nodes
from docutils.core import publish_string
from docutils.parsers.rst import Directive, directives

from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCES = ROOT / "packaging/man"
_SHARED_BY = 3
_SETTINGS = {
    "halt_level": 2,
    "report_level": 2,
    "input_encoding": "utf-8",
    "output_encoding": "unicode",
    "file_insertion_enabled": False,
}


class Commands(Directive):
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        group = tuple(self.arguments[:1])
        shared = _shared()
        return [
            _command(command, shared)
            for command in commandline.commands()
            if command.words and not command.commands and command.words[: len(group)] == group
        ]


class SharedOptions(Directive):
    def run(self) -> list[nodes.Node]:
        return [_option_list((*_shared(), commandline.option_help(("-h", "--help"))))]


class ExitCodes(Directive):
    def run(self) -> list[nodes.Node]:
        lines = [line for text in commandline.commands()[0].epilog for line in text.text.splitlines()[1:]]
        found = nodes.definition_list()
        for line in lines:
            code, _, meaning = line.strip().partition("  ")
            found += _definition([nodes.strong(text=code)], [nodes.paragraph(text=meaning.strip())])
        return [found]


_LISTS = {
    "allowed-vendors": "a list of vendors' flags; or all",
    "swarm-resources": "a list of variables",
    "gpu-memory": "a size or share; or off",
}


class Setting(Directive):
    required_arguments = 1
    has_content = True
    described: ClassVar[list[str]] = []

    def run(self) -> list[nodes.Node]:
        key = self.arguments[0]
        if key not in settingsfile.KINDS:
            raise self.error(f"there is no setting {key}")
        self.described.append(key)
        body = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, body)
        facts = [f"Values: {values(key)}.", f"Default: {default(key)}."]
        if settingsfile.KINDS[key].strictest is None:
            facts.append("For the whole host.")
        content = [*body.children, nodes.paragraph(text="  ".join(facts))]
        return [nodes.definition_list("", _definition([nodes.strong(text=key)], content))]


def _shared() -> tuple[Option, ...]:
    """The options that several commands have in common, which are described once."""
    found = Counter(option for command in commandline.commands() for option in command.options)
    help_option = commandline.option_help(("-h", "--help"))
    return tuple(option for option, times in found.items() if times >= _SHARED_BY and option != help_option)


def _command(command: Command, shared: tuple[Option, ...]) -> nodes.section:
    """One command: its synopsis, its help, and the options that are not shared."""
    section = nodes.section("", nodes.title(text=command.name), names=[], ids=[])
    section += _synopsis(command)
    section += _paragraphs(command.help)
    own = [o for o in command.options if o not in shared and "--help" not in o.names]
    if own:
        section += _option_list(own)
    section += _paragraphs(command.epilog)
    return section


def _synopsis(command: Command) -> nodes.paragraph:
    line = nodes.paragraph("", "", nodes.strong(text=f"{NAME} {command.name}"))
    for option in command.options:
        if "--help" not in option.names:
            optional = ("", "") if option.required else ("[", "]")
            line += [nodes.Text(f" {optional[0]}"), *_called(option, option.names[-1:])]
            line += nodes.Text(optional[1])
    for argument in command.arguments:
        text = argument.value if argument.required else f"[{argument.value}]"
        line += [nodes.Text(" "), nodes.emphasis(text=text)]
    return line


def _option_list(options: Iterable[Option]) -> nodes.definition_list:
    found = nodes.definition_list()
    for option in options:
        term = _called(option, option.names)
        found += _definition(term, [nodes.paragraph(text=option.help)])
    return found


def _called(option: Option, names: tuple[str, ...]) -> list[nodes.Node]:
    found: list[nodes.Node] = [nodes.strong(text=", ".join(names))]
    if option.value:
        found += [nodes.Text(" "), nodes.emphasis(text=option.value)]
    return found


def _definition(term: list[nodes.Node], content: list[nodes.Node]) -> nodes.definition_list_item:
    return nodes.definition_list_item("", nodes.term("", "", *term), nodes.definition("", *content))


def _paragraphs(texts: Iterable[Text]) -> list[nodes.Node]:
    return [nodes.literal_block(text=text.text) if text.as_it_is else nodes.paragraph(text=text.text) for text in texts]


def values(key: str) -> str:
    kind = settingsfile.KINDS[key]
    if kind.words:
        return ", ".join(kind.words)
    if key == "allowed-capabilities":
        return f"a list of {', '.join(CAPABILITIES)}; or all"
    if "absolute path" in kind.why:
        return "an absolute path"
    return _LISTS.get(key, "a number")


def default(key: str) -> str:
    value = getattr(Settings(), key.replace("-", "_"))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "all" if value == CAPABILITIES else ", ".join(value) or "empty"
    return str(value) or "empty"


def page(source: Path) -> str:
    """One page in roff."""
    version = configparser.ConfigParser()
    version.read(ROOT / "setup.cfg")
    text = source.read_text()
    text += f"\n.. |version| replace:: {version['metadata']['version']}\n"
    Setting.described.clear()
    roff = str(publish_string(text, str(source), writer_name="manpage", settings_overrides=_SETTINGS))
    missing = sorted(set(settingsfile.KINDS).difference(Setting.described))
    if Setting.described and missing:
        sys.exit(f"{source}: nothing is said of the setting {', '.join(missing)}")
    # The first lines name the version of docutils: they are cut off.  apropos(1) needs NAME in capitals.  A heading has
    # its own space below it.
    body = roff[roff.index("\n.nr ") :].replace("\n.SH Name\n", "\n.SH NAME\n")
    body = re.sub(r"(\n\.S[HS] .*)\n\.sp(?=\n)", r"\1", body)
    # docutils before 0.20: a block in a font that today's formatters do not know, a name in capitals.
    body = re.sub(r"\n\.ft [CP](?=\n)", "", body)
    # Flush left, as words are long here: in a narrow terminal a line with two of them cannot be filled.
    name = source.stem.rpartition(".")[0]
    body = re.sub(r"\n\.TH \S+ (.*)", rf'\n.TH "{name}" \1\n.ad l', body, count=1)
    made = f'.\\" SPDX-License-Identifier: Apache-2.0\n.\\" Made from {source.name} by build_man.py.'
    return made + body


def main(folder: Path) -> None:
    for name, directive in (
        ("commands", Commands),
        ("shared-options", SharedOptions),
        ("exit-codes", ExitCodes),
        ("setting", Setting),
    ):
        directives.register_directive(name, directive)
    folder.mkdir(parents=True, exist_ok=True)
    for source in sorted(SOURCES.glob("*.rst")):
        commandline.write(folder / source.stem, page(source))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
