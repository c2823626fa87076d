# SPDX-License-Identifier: Apache-2.0
"""Each block of the manual is what it looks like: commands with their options, settings, JSON, YAML, Python or units.

Whether what a block says works is other tests', which run it.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
from typing import Any, Callable

import click
import pytest
import yaml

from oci_gpu_hook.cli.commands import program
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.request import settingsfile
from tests import manual
from tests.unit.manifests import judge

BLOCKS = [(page, block) for page in manual.PAGES for block in manual.blocks(page)]
# Programs of others whose words stand in blocks.
OTHERS = "podman|docker|systemctl|ctr|lxc|apptainer|ch-fromhost|ch-run|nvidia-smi|ln|eval"


def shell(block: str) -> None:
    """Right for a shell; our own commands take these words, and a request names devices as requests do."""
    subprocess.run(["sh", "-n"], input=block, text=True, check=True)
    for line in block.splitlines():
        for words in re.findall(r"(?:^|\(|&& )oci-gpu-hook ([^&)]+)", line):
            ours(shlex.split(words))
        for devices in re.findall(r"NVIDIA_VISIBLE_DEVICES=(\S+)", line):
            assert re.fullmatch(r"all|any|\d+(,\d+)*", devices), devices


def ours(words: list[str]) -> None:
    command: click.Command = program
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    command.make_context("", words).close()


def of_yaml(block: str) -> None:
    """A pod is Kubernetes's; for the others see test_manuals.py and tests/docker/test_compose.py."""
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
    r"lxc\.": lines_of(r"lxc\.[a-z.]+ = \S.*"),
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
