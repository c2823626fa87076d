# SPDX-License-Identifier: Apache-2.0
"""The hook's own words: its stages, and the options after them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oci_gpu_hook import hook
from oci_gpu_hook.errors import UsageError

OPTIONS = ["--config", "--host-root", "--cdi", "--cdi-driver"]


def test_an_option_takes_the_next_word_or_what_stands_behind_its_equals_sign() -> None:
    words = ["--config", "/c", "--host-root=/h=", "--cdi", "utility,compute", "--cdi-driver=1.2"]
    assert vars(hook.Options(words)) == {
        "config": "/c",
        "host_root": "/h=",
        "cdi": "utility,compute",
        "cdi_driver": "1.2",
    }
    assert vars(hook.Options([])) == {
        "config": None,
        "host_root": "/",
        "cdi": None,
        "cdi_driver": "",
    }


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_without_its_value_is_wrong_usage(option: str) -> None:
    """At the end of the line most of all: a hook must not start with settings that nobody meant."""
    for words in ([option], [option, ""], [f"{option}="], ["--config", "/c", option]):
        with pytest.raises(UsageError, match=f"^{option} needs a value$"):
            hook.Options(words)


@pytest.mark.parametrize("names", ["utility,gpu", "utility,,compute"])
def test_a_spec_that_starts_the_hook_for_no_capability_is_wrong_usage(names: str) -> None:
    with pytest.raises(UsageError, match="which is no capability"):
        hook.Options(["--cdi", names])


def started(*words: str) -> tuple[int, str, str]:
    """The program in a process of its own, as a hook stage ends its process; and what it says."""
    command = [sys.executable, "-m", "oci_gpu_hook", *words]
    ended = subprocess.run(command, input="", text=True, capture_output=True, check=False)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["createContainer"], "createContainer"),
        (["createRuntime", "--nonsense"], "unknown option '--nonsense'"),
        (["createRuntime", "--config"], "--config needs a value"),
    ],
)
def test_a_start_that_cannot_be_served_is_wrong_usage(words: list[str], sentence: str) -> None:
    code, _, said = started(*words)
    assert (code, said.count("\n")) == (2, 1)
    assert sentence in said


@pytest.mark.parametrize("stage", ["poststart", "poststop"])
def test_stages_after_the_start_have_nothing_to_do(stage: str) -> None:
    assert started(stage) == (0, "", "")
