# SPDX-License-Identifier: Apache-2.0
"""The manual's pages as their sources have them, the blocks of a page that people paste, and the commands to tell of.

Must not know what a block is for: its test does.
"""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

FOLDER = Path(__file__).parents[1] / "packaging/man"
PAGES = tuple(sorted(source.stem for source in FOLDER.glob("*.rst")))


def source(page: str) -> str:
    """The source of a page, which is named as its file is: ``oci-gpu-hook-docker.7``."""
    return (FOLDER / f"{page}.rst").read_text()


def sections(page: str) -> dict[str, str]:
    """The text of each section, and of each part of one, by its heading."""
    parts = re.split(r"\n(?=.+\n(?:=+|-+)\n)", source(page))
    return dict(part.split("\n", 1) for part in parts)


def blocks(page: str, section: str = "") -> list[str]:
    """The literal blocks of a page, or of one section of it, in their order."""
    text = sections(page)[section] if section else source(page)
    found = re.findall(r"(?<!\.\. table)::\n\n((?:    .*\n|\n)+)", text)
    return [textwrap.dedent(it).strip("\n") + "\n" for it in found]


def start_script() -> str:
    """By which a container of Swarm's goes by its share."""
    return next(it for it in blocks("oci-gpu-hook-docker.7", "SWARM") if it.startswith("#!/bin/sh"))


@functools.cache
def made(script: str = "build_man.py") -> Path:
    """The pages, or what another script makes from the program, in a folder that goes with this process."""
    folder = tempfile.mkdtemp()
    # No TemporaryDirectory: multiprocessing's child drops what atexit holds (Python 3.14.8), and so would remove it.
    atexit.register(shutil.rmtree, folder)
    subprocess.run([sys.executable, FOLDER.parent / script, folder], check=True)
    return Path(folder)


def walk(command: click.Command, *words: str, groups: bool = False) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with the words that lead to it; groups: these too."""
    if isinstance(command, click.Group):
        if groups:
            yield words, command
        for name, below in command.commands.items():
            yield from walk(below, *words, name, groups=groups)
    else:
        yield words, command
