# SPDX-License-Identifier: Apache-2.0
"""What `make generated` makes, as people have it: completions in the shells that they are for, and manuals.

Completions are loaded as shells load them, and asked at the Tab key.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Callable

import click
import pytest

from oci_gpu_hook.cli.commands import program
from tests import manual

Ask = Callable[[str], str]


# With the words that lead to each, the program itself with none.
COMMANDS = {" ".join(words): command for words, command in manual.walk(program, groups=True)}
MAKER = "build_completions.py"


def options(command: click.Command) -> set[str]:
    shown = [it for it in command.params if not getattr(it, "hidden", False)]
    found = {name for option in shown for name in option.opts if name[:2] == "--"}
    return found | {"--help"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("folder")
    for name in ("denials.log", "bundle.log"):
        (made / name).touch()
    # Neither a file nor a folder is to be taken for a command.
    for name in ("bundle", "plan"):
        (made / name).mkdir()
    return made


PROMPT, ANSWER, ASK, KILL_LINE = "<ready>", "<done>", "\x14", "\x15"
# What the shells answer to a key of ours, once they have done with those before it.
ANSWER_BY_BASH = """bind -x '"\\C-t": printf "<do""ne>"'"""
ANSWER_BY_ZSH = "answer() { zle -R; print -rn -- '<do''ne>' }; zle -N answer; bindkey '^T' answer"
# What moves the cursor parts words, what colours them does not.
MOVES = re.compile(r"\x1b\[[0-9;?]*[A-KP-X@]|\r")
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07)|\x07")
SECONDS = 600


@contextmanager
def terminal(command: list[str], setup: list[str], folder: Path) -> Iterator[Ask]:
    """A shell on a terminal of its own, which is given these lines, one of ANSWER_BY_ among them; asks it.

    The answer is the line as completed, or the list.
    """
    ours, its = pty.openpty()
    # So wide that nothing is cut, so high that nothing waits for a key.
    ioctl(its, TIOCSWINSZ, struct.pack("HHHH", 200, 300, 0, 0))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm"}
    shell = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=folder, env=environment, start_new_session=True
    )
    os.close(its)

    def shown(keys: str, end: str) -> str:
        os.write(ours, keys.encode())
        found = b""
        while True:
            text = ESCAPES.sub("", MOVES.sub(" ", found.decode(errors="replace")))
            if end in text:
                return text.partition(end)[0]
            assert select.select([ours], [], [], SECONDS)[0], f"no {end!r} in {text!r}"
            found += os.read(ours, 65536)

    def offers(typed: str) -> str:
        # Behind a word that is not begun the first may add what all have in common, bash waits for a second, and then
        # lists.
        told = shown(typed + "\t" * (3 if typed[-1] in " -=" else 1) + ASK, ANSWER)
        # The line is drawn again: that is none of what comes next.
        shown(KILL_LINE + ASK, ANSWER)
        return told

    try:
        # The prompt is put together by the shell: the echo of this line is not taken for it.
        shown("".join(f"{line}\n" for line in (*setup, "PS1='<ready'; PS1+='> '")), PROMPT)
        yield offers
    finally:
        os.close(ours)
        shell.wait()


def bash(folder: Path) -> Iterator[Ask]:
    setup = [f". {manual.made(MAKER)}/oci-gpu-hook", ANSWER_BY_BASH, "bind 'set completion-query-items 0'"]
    with terminal(["bash", "--norc", "--noprofile", "-i"], setup, folder) as ask:
        yield ask


def zsh(folder: Path) -> Iterator[Ask]:
    setup = [f"fpath=({manual.made(MAKER)} $fpath)", "autoload -Uz compinit; compinit -u -D"]
    setup += ["bindkey -e; LISTMAX=0", ANSWER_BY_ZSH]
    with terminal(["zsh", "-f", "-i"], setup, folder) as ask:
        yield ask


def fish(folder: Path) -> Iterator[Ask]:
    def ask(typed: str) -> str:
        command = f"source {manual.made(MAKER)}/oci-gpu-hook.fish; complete -C {typed!r}"
        ran = subprocess.run(["fish", "--no-config", "-c", command], cwd=folder, capture_output=True, text=True)
        assert ran.stderr == ""
        return ran.stdout

    yield ask


@pytest.fixture(scope="module", params=[bash, zsh, fish], ids=["bash", "zsh", "fish"])
def ask(request: pytest.FixtureRequest, folder: Path) -> Iterator[Ask]:
    yield from request.param(folder)


def test_each_command_has_the_options_of_its_help(ask: Ask) -> None:
    for words, command in COMMANDS.items():
        offered = ask(f"oci-gpu-hook {words} --".replace("  ", " "))
        found, known = set(re.findall(r"--[a-z][a-z-]*", offered)), options(command)
        assert found >= known, words
        # What several have in common may stand on the line.
        assert all(any(name.startswith(one) for name in known) for one in found), words


def test_each_group_has_its_commands(ask: Ask) -> None:
    for words, group in COMMANDS.items():
        if isinstance(group, click.Group) and len(group.commands) > 1:
            offered = ask(f"oci-gpu-hook {words} ".replace("  ", " "))
            missing = [name for name in group.commands if not re.search(rf"\b{name}\b", offered)]
            assert not missing, (words, offered)


def test_words_and_values_are_completed(ask: Ask) -> None:
    # fish gives the words alone.
    assert re.search(r"inventory refresh|^refresh\t", ask("oci-gpu-hook inventory ref"))
    for between in (" ", "="):
        offered = ask(f"oci-gpu-hook cdi generate --kind{between}")
        assert "management" in offered and "imex" in offered


def test_files_and_folders_are_completed_where_they_belong(ask: Ask) -> None:
    assert "denials.log" in ask("oci-gpu-hook selinux explain den")
    assert "denials.log" in ask("oci-gpu-hook info --config den")
    assert "bundle/" in ask("oci-gpu-hook plan --bundle bun")
    assert "denials.log" not in ask("oci-gpu-hook info den")


def test_the_value_of_an_option_is_no_command(ask: Ask) -> None:
    offered = ask("oci-gpu-hook plan --bundle plan --config plan --")
    assert set(re.findall(r"--[a-z][a-z-]*", offered)) >= options(COMMANDS["plan"])
    assert "--pid" in ask("oci-gpu-hook plan --id info --p")


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
