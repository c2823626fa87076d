# SPDX-License-Identifier: Apache-2.0
"""The manuals tell what the program is: they are made from it, their examples are true, and what they name is there."""

from __future__ import annotations

import configparser
import functools
import inspect
import json
import re
import shlex
import subprocess
from typing import Any, Callable

import click
import pytest
import yaml

from oci_gpu_hook import cli
from oci_gpu_hook.cli.commands import program
from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings
from tests import manual
from tests.unit.manifests import judge
from tests.unit.starts import ROOT

CONF, COMMANDS_PAGE = "oci-gpu-hook.conf.5", "oci-gpu-hook.8"
COMMANDS = dict(manual.walk(program))


@functools.cache
def text(page: str) -> str:
    """A page as it is made, without what is roff's alone."""
    return re.sub(r"\\f[BIRP]|\\&", "", (manual.made() / page).read_text()).replace("\\-", "-").replace("\\(aq", "'")


def taken(words: list[str]) -> tuple[str, ...]:
    """The command of these words, which takes the rest of them."""
    (found,) = [it for it in COMMANDS if tuple(words[: len(it)]) == it]
    COMMANDS[found].make_context("", words[len(found) :]).close()
    return found


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
        assert taken(shlex.split(line)[1:]) == words
        assert " ".join(line.split()) in text(COMMANDS_PAGE)


# Its name, values and default, as the page has them.
SETTING = r"^\.B ([a-z-]+)\n(?:(?!^\.UNINDENT)[^\n]*\n)*?Values: (.*?)\.  Default: (.*?)\.(?:\n|  )"


def test_the_manual_has_every_setting_with_its_default() -> None:
    page = re.findall(SETTING, text(CONF), re.M)
    assert {key.replace("-", "_") for key, _, _ in page} | {"unmatched"} == set(Settings._fields)
    for key, listed, default in page:
        values = listed.split(", ")
        line = settingsfile.parse_text(f"{key} = {'' if default == 'empty' else default}", "page")[0]
        assert line.value == getattr(Settings(), line.field), key
        for value in values if default in values else ():
            settingsfile.parse_text(f"{key} = {value}", "page")
        told = re.findall(rf"^\.B {key}\n.*?Default: [^\n]*", text(CONF), re.M | re.S)[0]
        is_hosts = settingsfile.KINDS[key].strictest is None
        assert ("For the whole host" in told) == is_hosts
        assert is_hosts or f"**{key}" in manual.sections(CONF)["SECTIONS"]


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
    readme = (ROOT / "README.md").read_text()
    manuals = "".join(text(page) for page in manual.PAGES)
    names = set(re.findall(r"(?:^    |`)oci-gpu-hook ([a-z][a-z ]*[a-z])", readme, re.M))
    assert {"doctor", "plan", "log"} <= names
    arguments = [(words, it.type) for words, c in COMMANDS.items() for it in c.params if isinstance(it, click.Argument)]
    chosen = {(*words, one) for words, type in arguments if isinstance(type, click.Choice) for one in type.choices}
    assert {tuple(name.split()) for name in names} <= {*COMMANDS, *chosen}
    assert not re.search("flags nspawn(?! --directory)", readme), "it ends without"
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
    assert all((ROOT / "packaging/systemd" / unit).exists() for unit in units)
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


# --- each block is what it looks like: commands with their options, settings, JSON, YAML, Python or units

BLOCKS = [(page, block) for page in manual.PAGES for block in manual.blocks(page)]
# Programs of others whose words stand in blocks.
OTHERS = "podman|docker|systemctl|ctr|lxc|incus|apptainer|singularity|ch-fromhost|ch-run|nvidia-smi|ln|eval|srun"


def shell(block: str) -> None:
    """Right for a shell; our own commands take these words, and a request names devices as requests do."""
    subprocess.run(["sh", "-n"], input=block, text=True, check=True)
    for line in block.splitlines():
        for words in re.findall(r"(?:^|\(|&& )oci-gpu-hook ([^&)]+)", line):
            taken(shlex.split(words))
        for devices in re.findall(r"NVIDIA_VISIBLE_DEVICES=([^\s']+)", line):
            assert re.fullmatch(r"all|any|none|\d+(,\d+)*|\$\{.+}", devices), devices


def of_yaml(block: str) -> None:
    """A pod is Kubernetes's; for the others see tests/docker/test_compose.py."""
    content: Any = yaml.safe_load(block)
    assert isinstance(content, dict)
    if content.get("kind") == "Pod":
        judge("Pod").validate(content)


def unit(block: str) -> None:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(block)
    assert [dict(parser[section]) for section in parser.sections()] != [{}]


def lines_of(form: str) -> Callable[[str], None]:
    def check(block: str) -> None:
        assert all(re.fullmatch(form, line) for line in block.splitlines())

    return check


# By how a block begins: what fails if it is not what it looks like.
KINDS: dict[str, Callable[[str], object]] = {
    rf"#!/bin/sh\n|(oci-gpu-hook|{OTHERS}) ": shell,
    r"apiVersion:|services:|version:|initContainers:": of_yaml,
    r"\[(Service|Container)\]\n": unit,
    r"\[plugins\.|version = \d\n\[plugins\.": lambda block: installed.parse_toml(block.encode()),
    r"\[containers\]\n": lambda block: installed.parse_toml(block.encode()),
    r"EnvExclude=|AutoDetect=": lines_of(r"[A-Z]\w+=\S.*"),
    r"lxc\.": lines_of(r"lxc\.[a-z.]+ = \S.*"),
    r"[a-z-]+ path = ": lines_of(r"[a-z-]+ path = /\S+"),
    r"ENV ": lines_of(r"ENV NVIDIA_[A-Z_]+=\S+"),
    # tests/integration/test_restore.py restores with it.
    r"external ": lines_of(r"external mnt\[\]:ms"),
    r"\{\n": json.loads,
    '"': lambda block: json.loads(f"{{{block.rstrip().rstrip(',')}}}"),
    r"c\.|from ": lambda block: compile(block, "block", "exec"),
    r"(?!version)[a-z-]+ = ": lambda block: settingsfile.parse_text(block, "block")[0],
}


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page} {block[:30]!r}" for page, block in BLOCKS])
def test_a_block_is_what_it_looks_like(page: str, block: str) -> None:
    found = [check for begins, check in KINDS.items() if re.match(begins, block)]
    assert len(found) == 1, f"{page}: what is this?\n{block}"
    found[0](block)


# --- what names a page of the manual, or a section of one, names one that is there

# A page as people write it, "oci-gpu-hook(8)", and as sources have it, "*oci-gpu-hook*\ (8)".
PAGE = r"\*{0,2}(oci[-_]gpu[\w.-]+)\*{0,2}(?:\\ )?\((\d)\)"
HEADING = r"[A-Z][A-Z0-9'-]+(?: [A-Z0-9][A-Z0-9'-]*)*"
FOLDERS = ("oci_gpu_hook", "hooks.d", "packaging", "policy")


def headings(page: str) -> set[str]:
    return {heading.upper() for heading in manual.sections(page)}


def test_each_page_that_is_named_is_there_and_has_the_section() -> None:
    found = 0
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for name in [path for path in files if not re.search(r"\.(?:pyc|[578])$", path.name)]:
        text = " ".join(name.read_text().split())
        for match in re.finditer(rf"(?:see ({HEADING}) in )?{PAGE}(?:, ({HEADING}))?", text):
            before, page, number, after = match.groups()
            assert f"{page}.{number}" in manual.PAGES, (name, match[0])
            section = before or after
            assert not section or section in headings(f"{page}.{number}"), (name, match[0])
            found += bool(section)
    assert found > 20


@pytest.mark.parametrize("page", manual.PAGES)
def test_each_section_that_a_page_names_of_its_own_is_there(page: str) -> None:
    named = re.findall(rf"\b[Ss]ee ({HEADING})(?! in \*)(?=[.,;:)])", " ".join(manual.source(page).split()))
    assert {*named} - {"SECURITY"} <= headings(page)


@pytest.mark.parametrize("page", [page for page in manual.PAGES if page.endswith(".7")])
def test_a_page_for_one_goal_begins_with_what_to_type(page: str) -> None:
    first, *_, last = re.findall(r"^(.+)\n=+$", manual.source(page).partition("\n:Date:")[2], re.MULTILINE)
    assert (first, last) == ("EXAMPLES", "SEE ALSO")
