# SPDX-License-Identifier: Apache-2.0
"""The manuals as people read them: each formatter renders each page without a warning."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import manual

WORDS_OF_COMMANDS = 5000
FORMATTERS = {
    # man-db reads all of a page only where it formats it.
    "man": ["man", "--warnings", "-E", "UTF-8", "-l"],
    "groff": ["groff", "-ww", "-z", "-man", "-Tutf8"],
    # The rest of what it says is of style in roff, which docutils writes.
    "mandoc": ["mandoc", "-T", "lint", "-W", "warning"],
}


def run(*command: str | Path, width: int = 80) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": str(width)}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("page", manual.PAGES)
@pytest.mark.parametrize("formatter", FORMATTERS)
def test_a_page_renders_without_a_warning(formatter: str, page: str) -> None:
    if formatter == "mandoc" and shutil.which("mandoc") is None:
        pytest.skip("this distribution has no mandoc")
    for width in (60, 80):
        done = run(*FORMATTERS[formatter], manual.made() / page, width=width)
        said = done.stderr if formatter == "man" else done.stdout + done.stderr
        assert (done.returncode, said) == (0, ""), width


@pytest.mark.parametrize("page", manual.PAGES)
def test_a_page_has_its_sections_and_is_found_by_its_name_and_by_what_it_is_for(page: str) -> None:
    """apropos(1) searches the line below NAME."""
    name, _, number = page.rpartition(".")
    shown = run("man", "-E", "UTF-8", "-l", manual.made() / page).stdout.splitlines()
    needed = {"NAME", "EXAMPLES", "SEE ALSO"} if number == "7" else {"NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"}
    assert {line for line in shown if line[:1].isupper() and line.isupper()} >= needed
    assert shown[0].split()[0].lower() == f"{name}({number})"
    whatis = " ".join(shown[shown.index("NAME") + 1 :][:2]).strip()
    assert whatis.startswith(f"{name} - ") and "gpu" in whatis.partition(" - ")[2].lower()


def test_the_page_of_commands_is_short_enough_to_be_read() -> None:
    shown = run("man", "-E", "UTF-8", "-l", manual.made() / "oci-gpu-hook.8").stdout
    assert len(shown.split()) <= WORDS_OF_COMMANDS
