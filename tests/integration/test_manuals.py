# SPDX-License-Identifier: Apache-2.0
"""The manuals as people read them: each formatter renders each page without a warning."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAN = Path(__file__).resolve().parents[2] / "packaging/man"
PAGES = sorted([*MAN.glob("*.5"), *MAN.glob("*.8")])
NEEDED = {"NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"}
FORMATTERS = {
    # man-db reads all of a page only where it formats it.
    "man": ["man", "--warnings", "-E", "UTF-8", "-l"],
    "groff": ["groff", "-ww", "-z", "-man", "-Tutf8"],
    # The rest of what it says is of style in roff, which docutils writes.
    "mandoc": ["mandoc", "-T", "lint", "-W", "warning"],
}


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.name))
@pytest.mark.parametrize("formatter", FORMATTERS)
def test_a_page_renders_without_a_warning(formatter: str, page: Path) -> None:
    if formatter == "mandoc" and shutil.which("mandoc") is None:
        pytest.skip("this distribution has no mandoc")
    done = run(*FORMATTERS[formatter], page)
    said = done.stderr if formatter == "man" else done.stdout + done.stderr
    assert (done.returncode, said) == (0, "")


def test_each_page_has_its_sections_and_is_found_by_its_name() -> None:
    for page in PAGES:
        shown = run("man", "-E", "UTF-8", "-l", page).stdout.splitlines()
        assert {line for line in shown if line[:1].isupper() and line.isupper()} >= NEEDED
        assert shown[0].split()[0].lower() == f"{page.stem}({page.suffix[1:]})"
        whatis = shown[shown.index("NAME") + 1].strip()
        assert whatis.startswith(f"{page.stem} - ")
    assert len(PAGES) == 5
