# SPDX-License-Identifier: Apache-2.0
"""What names a page of the manual, or a section of one, names one that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import manual

ROOT = Path(__file__).resolve().parents[2]
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
