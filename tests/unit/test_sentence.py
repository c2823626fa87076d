# SPDX-License-Identifier: Apache-2.0
"""What leaves is one short line that no terminal takes for a command, whatever an image or an engine has put in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.changes.tree import TargetError, Tree, Undo
from oci_gpu_hook.cli.options import show
from oci_gpu_hook.errors import LONGEST, LONGEST_LIST, ApplyError, BundleError, HookError, plain
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.syscalls import SyscallError
from oci_gpu_hook.report import sentence
from oci_gpu_hook.report.progress import Progress
from tests.unit.bounded import MIB, peak

ESCAPE = "\x1b[31mred\x1b[0m\x07\u202e"
HOSTILE = [ESCAPE, ESCAPE * 500, "a" * 3_400, "a b " * 900, "\n" * 10, "\udcff", "x" * 4 * MIB, "y " * MIB]


@given(st.text() | st.text(max_size=40).map(lambda text: text * 100), st.integers(30, 2000))
def test_any_text_becomes_plain_and_stays_so(text: str, most: int) -> None:
    assert plain(text, most).isprintable()
    assert len(plain(text, most)) <= 10 * max(most, 300)
    if text.isprintable() and len(text) <= min(most, 300):
        assert plain(text, most) == text


def test_what_is_just_short_enough_is_whole() -> None:
    """A word has 300 characters, and a sentence what its reader allows."""
    assert plain("x" * 300) == "x" * 300
    assert len(plain("x" * 301)) == 300
    words = "xy " * 133 + "z"
    assert plain(words, 400) == words and len(plain(words, 399)) == 399


def test_of_a_long_piece_its_ends_stay_and_what_is_said_of_it() -> None:
    path = f"/first{'/x' * 2000}/last"
    said = str(BundleError(f"the root {path} cannot be opened: {path}", "fix it"))
    assert said.count("/first/x/x/x") == said.count("/x/last") == said.count("...") == 2
    assert said.startswith("the root /first") and said.endswith("/last (fix it)") and len(said) < 700


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: f"{text[:4]!a} {len(text)}")
def test_every_error_is_plain(hostile: str) -> None:
    errors: tuple[Callable[[], Exception], ...] = (
        lambda: HookError(f"it is {hostile}, so"),
        lambda: ApplyError(f"cannot go: {TargetError(1, f'{hostile} is there')}"),
        lambda: TargetError(1, f"{hostile} is there"),
        lambda: SyscallError(2, "openat2", hostile),
    )
    for error in errors:
        said = str(error())
        assert said.isprintable() and len(said) <= 3 * LONGEST
        assert peak(error) < 40 * MIB


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: f"{text[:4]!a} {len(text)}")
def test_what_is_said_is_one_plain_line(hostile: str, capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.keep([f"the file {hostile} is left out"])
    progress.say()
    sentence.failure(ValueError(hostile))
    note, failure = capfd.readouterr().err.rstrip("\n").split("\n")
    assert all(line.isprintable() and len(line) <= 10 * LONGEST_LIST for line in (note, failure))
    assert note == f"oci-gpu-hook: {progress.notes[0]}"


def test_of_very_many_notes_the_first_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for _ in range(2):
        progress.keep([f"note {number}" for number in range(5_000)])
    progress.say()
    said = capfd.readouterr().err.rstrip("\n").split("\n")
    assert len(said) == len(progress.notes) == 129
    assert said[-1] == "oci-gpu-hook: more is left out than is listed here"


class AllVolumes(Tree):
    """A root in which only the top folder is the container's own."""

    def is_own(self, fd: int) -> bool:
        return os.fstat(fd).st_ino == os.fstat(self.root_fd).st_ino


@pytest.mark.parametrize("name", [ESCAPE, "a b " * 50, f"{'long' * 50}/" * 10])
def test_where_an_images_link_leads_is_said_plainly(tmp_path: Path, name: str) -> None:
    """A link's text may have any bytes, and 4,095 of them."""
    (tmp_path / "volume" / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(f"/volume/{name}/nothing")
    with closing(os.open(tmp_path, os.O_PATH)) as fd, pytest.raises(TargetError) as caught:
        AllVolumes(fd, (), Undo()).own_folder("/link")
    said = str(caught.value)
    assert said.startswith("/volume/") and said.endswith("one of its own, such as an overlay")
    assert said.isprintable() and len(said) < 400


def test_what_a_command_shows_is_plain_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, {}, [f"one {ESCAPE}", f"two\n{'x' * 5_000}", "  three"])
    first, second, *others = capsys.readouterr().out.split("\n")
    assert first.isprintable() and "red" in first and len(second) < 400
    assert others == ["  three", ""]
