# SPDX-License-Identifier: Apache-2.0
"""What root pastes is made of words, and a text that a container or a user has chosen is one only as a name."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.node.diagnosis import remedy
from oci_gpu_hook.node.diagnosis.remedy import as_root, command, in_words, install, is_name, then
from oci_gpu_hook.node.engines.containers import ContainerNames, Running

ROOT = Path(__file__).parents[2]
EVIL = "x;echo Y3VybA==|base64 -d>/etc/cron.d/x"


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_words_stay_words(words: list[str]) -> None:
    assert shlex.split(command(*words)) == words


LOOK = then(command("rm", "a && b"), command("ls", note="and look"))


def test_several_commands_and_a_note() -> None:
    assert LOOK == "rm 'a && b' && ls  # and look"
    assert shlex.split(LOOK, comments=True) == ["rm", "a && b", "&&", "ls"]
    # No note hides a command behind it.
    both = then(command("vi", "/f", note="a line"), in_words("ask"), command("systemctl", "reboot"))
    assert both == "vi /f && systemctl reboot  # a line; ask"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("web", True), ("a" * 64, True), ("k8s_a.b-c", True), ("-f", False), ("", False)]
    + [(text, False) for text in (EVIL, "a b", "a\n", "$(id)", "é", "../x", "a" * 257)],
)
def test_what_is_a_name(text: str, expected: bool) -> None:
    assert is_name(text) == expected


ID = "ab" * 32
ADVISE = (remedy.restart, remedy.start, remedy.resume, remedy.ask, remedy.accepted)


@pytest.mark.parametrize("engine", ["", "podman", "CRI-O", "Docker", "containerd"])
@pytest.mark.parametrize("is_pods", [False, True])
@pytest.mark.parametrize("advise", ADVISE)
def test_no_name_that_a_user_chose_is_a_word(engine: str, is_pods: bool, advise: object) -> None:
    """Neither the container's, nor its id, nor the folder above its bundle."""
    for word, id, bundle in ((EVIL, ID, f"/run/{EVIL}/{ID}"), ("--evil", "--all", "/b"), (EVIL, EVIL, f"/b/{EVIL}")):
        called = ContainerNames(engine, word, pod="pod" if is_pods else "")
        who = Running(id, 7, "" if id != ID else bundle, "runc", called, os.geteuid())
        said = advise(who)  # type: ignore[operator]
        assert "echo" not in said.replace(f"/run/{EVIL}", ""), said
        words = shlex.split(said.rpartition(": ")[2], comments=True)
        assert not {"--evil", "--all"} & {word for word in words if word in (called.name, who.id)}


@pytest.mark.parametrize("advise", ADVISE)
def test_a_users_container_is_that_users_to_start_again(advise: object) -> None:
    """Root would start what the user's bundle says."""
    who = Running("web", 7, "/users/ann/bundle", "runc", ContainerNames("", "web"), 1000 + os.geteuid())
    said = advise(who)  # type: ignore[operator]
    assert "/users/ann" not in said
    assert "runc" not in said or str(who.owner) in said


def test_who_is_not_root_gets_sudo_before_each_command_and_root_before_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert as_root(LOOK) == "sudo rm 'a && b' && sudo ls  # and look"
    assert as_root(in_words("ask the administrator")) == "ask the administrator"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert as_root(LOOK) == LOOK


@pytest.mark.parametrize(("tool", "make"), [("apt", "make deb"), ("dnf", "make rpm")])
def test_no_repository_has_our_packages(tool: str, make: str) -> None:
    """As README says they are made and installed; the second needs the first."""
    said = install(tool, "oci-gpu-hook-docker")
    assert said.commands[0] == make and make in (ROOT / "README.md").read_text()
    names = [word.rpartition("/")[2] for word in said.commands[1].split() if "/" in word]
    assert [re.split("[_-][^a-z]", name)[0] for name in names] == ["oci-gpu-hook", "oci-gpu-hook-docker"]
