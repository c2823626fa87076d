# SPDX-License-Identifier: Apache-2.0
"""The manuals tell what the program is: they are made from it, and their examples are true."""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
import yaml

from oci_gpu_hook import cli
from oci_gpu_hook.cli.commands import program
from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings
from tests import manual
from tests.unit.manifests import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
CONF, COMMANDS_PAGE = "oci-gpu-hook.conf.5", "oci-gpu-hook.8"
README = PACKAGING.parent / "README.md"


def walk(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with the words that lead to it."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from walk(below, *words, name)
    else:
        yield words, command


COMMANDS = dict(walk(program))


@functools.cache
def text(page: str) -> str:
    """A page as it is made, without what is roff's alone."""
    return re.sub(r"\\f[BIRP]|\\&", "", (manual.made() / page).read_text()).replace("\\-", "-").replace("\\(aq", "'")


def options(command: click.Command) -> set[str]:
    """But for --format, which --json has replaced."""
    shown = [it for it in command.params if not (isinstance(it, click.Option) and it.hidden)]
    return {name for it in shown for name in it.opts if name[0] == "-"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_manual_and_click_have_the_same_options(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    known = options(COMMANDS[words])
    assert cli.main([*words, "--help"]) == 0
    shown = re.findall(r"^  (-[^ ,]+(?:, --[^ ]+)?)", capfd.readouterr().out, re.MULTILINE)
    in_help = {name for line in shown for name in line.split(", ")}
    assert in_help - {"-h", "--help"} == known
    called = re.search(rf"^\.SS {' '.join(words)}\noci-gpu-hook .*\n", text(COMMANDS_PAGE), re.MULTILINE)
    assert called is not None
    assert set(re.findall(r"--[a-z-]+", called[0])) == {name for name in known if name[1] == "-"}


def test_each_option_is_described() -> None:
    """Where its command is, or once for all that share it."""
    described = re.findall(r"^\.B (?:(-.), )?(--[a-z-]+)", text(COMMANDS_PAGE), re.M)
    assert set().union(*map(options, COMMANDS.values())) <= {name for names in described for name in names}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_has_two_examples_in_its_help_and_its_page(words: tuple[str, ...]) -> None:
    """The command takes their words; what it does with them is other tests'."""
    title, *lines = inspect.cleandoc(COMMANDS[words].epilog or "").removeprefix("\b\n").splitlines()
    assert (title, len(lines)) == ("Examples:", 2)
    for line in lines:
        _, *given = shlex.split(line)
        assert tuple(given[: len(words)]) == words
        COMMANDS[words].make_context("", given[len(words) :]).close()
        assert " ".join(line.split()) in text(COMMANDS_PAGE)


# Its name, values and default, as the page has them.
SETTING = r"^\.B ([a-z-]+)\n(?:(?!^\.UNINDENT)[^\n]*\n)*?Values: (.*?)\.  Default: (.*?)\.(?:\n|  )"


def test_the_manual_has_every_setting_with_its_default() -> None:
    page = re.findall(SETTING, text(CONF), re.M)
    assert {key.replace("-", "_") for key, _, _ in page} | {"unmatched"} == set(Settings._fields)
    for key, listed, default in page:
        values = listed.split(", ")
        said = "" if default == "empty" else default
        line = settingsfile.parse_text(f"{key} = {said}", "page")[0]
        assert line.value == getattr(Settings(), line.field), key
        for value in values if default in values else ():
            settingsfile.parse_text(f"{key} = {value}", "page")
        host_wide = re.search(rf"^\.B {key}\n.*?Default: [^\n]*", text(CONF), re.M | re.S)
        assert host_wide is not None
        assert ("For the whole host" in host_wide[0]) == (settingsfile.KINDS[key].strictest is None)


def test_the_pods_that_wait_for_a_validation_are_pods() -> None:
    """Each volume that an init container mounts is there."""
    blocks = manual.blocks("oci-gpu-hook-kubernetes.7", "VALIDATION")
    assert len(blocks) == 2
    for block in blocks:
        spec = {**yaml.safe_load(block), "containers": [{"name": "main", "image": "IMAGE"}]}
        judge("Pod").validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})
        mounted = {it["name"] for container in spec["initContainers"] for it in container["volumeMounts"]}
        assert mounted == {it["name"] for it in spec["volumes"]}


def test_what_the_readme_names_is_there_and_stands_in_a_manual() -> None:
    """A setting, command, variable, unit or file of ours that the README names is what the manuals say it is."""
    readme = README.read_text()
    manuals = "".join(text(page) for page in manual.PAGES)
    names = set(re.findall(r"(?:^    |`)oci-gpu-hook ([a-z][a-z ]*[a-z])", readme, re.M))
    assert {"doctor", "plan", "log"} <= names
    arguments = [(words, it.type) for words, c in COMMANDS.items() for it in c.params if isinstance(it, click.Argument)]
    chosen = {(*words, one) for words, type in arguments if isinstance(type, click.Choice) for one in type.choices}
    assert {tuple(name.split()) for name in names} <= {*COMMANDS, *chosen}
    options = set(re.findall(r"oci-gpu-hook [a-z]+ (--[a-z-]+)", readme))
    assert all(f".B {option}" in manuals for option in options) and options
    for line in re.findall(r"^    ([a-z-]+ = .*)$", readme, re.M):
        (setting,) = settingsfile.parse_text(line, "README")
        assert setting.value != getattr(Settings(), setting.field), "an example that changes nothing"
    files = re.findall(r"(?<![\w.=])/(?:etc|run|usr)/[\w./-]*\w", readme)
    variables = re.findall(r"NVIDIA_[A-Z_]+", readme)
    units = re.findall(r"oci-gpu-hook-[a-z]+\.(?:service|path|timer)", readme)
    assert files and variables and units
    assert [name for name in (*files, *variables, *units) if name not in manuals] == []
    assert all((PACKAGING / "systemd" / unit).exists() for unit in units)
    # ``-docker(7)`` is short for the page of its name.
    pages = re.findall(r"`((?:oci[\w.]*)?[\w.-]+)\((\d)\)`", readme)
    full = [(f"oci-gpu-hook{name}" if name[0] == "-" else name, section) for name, section in pages]
    assert {f"{name}.{section}" for name, section in full} == {*manual.PAGES}


def test_the_messages_about_settings_are_those_of_the_program() -> None:
    source = manual.source(CONF)
    for line, number in (("device-cgoup = on", 3), ("accept-environment = never", 7)):
        with pytest.raises(ConfigError) as raised:
            settingsfile.parse_text("\n" * (number - 1) + line, "/etc/oci-gpu-hook.conf")
        where, _, sentence = raised.value.message.partition(": ")
        assert f"| *{where}*: {sentence}\n" in source


@pytest.mark.parametrize("page", manual.PAGES)
def test_the_commands_that_are_named_exist(page: str) -> None:
    named = re.findall(r"(?:\*\*|^    )oci-gpu-hook ([a-z][a-z -]*)", manual.source(page), re.M)
    groups = {words[0] for words in COMMANDS if len(words) > 1}
    for line in named:
        words = tuple(line.split()[: 2 if line.split()[0] in groups else 1])
        assert words in COMMANDS or words == ("selinux",), line
