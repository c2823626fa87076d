# SPDX-License-Identifier: Apache-2.0
"""Each input of a start, some examples of it: `make fuzz` takes ten minutes for the same.

What it has found stays here, as a case of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given

from tests.fuzz import commands, targets
from tests.fuzz.targets import check
from tests.unit.examples import examples

TARGETS = {**targets.TARGETS, **commands.COMMANDS}


@pytest.mark.parametrize("name", TARGETS)
def test_an_input_of_any_form_is_a_value_or_a_sentence_within_bounds(name: str) -> None:
    @examples(8, suppress_health_check=list(HealthCheck))
    @given(TARGETS[name].values)
    def some(value: Any) -> None:
        check(TARGETS[name], value)

    some()


# Name of the target, and what was found.
FOUND: list[tuple[str, Any]] = [
    # isdigit() of a letter that int() does not read, and numbers of which Python makes none
    ("proc-files", ("Device Minor: \u00b2", ["0000:07:00.0"])),
    ("proc-files", ("Device Minor: " + "9" * 5000, ["0000:07:00.0"])),
    ("proc-files", ("NVRM version: 5." + "9" * 5000, ["gpu0"])),
    # lines that end too early
    ("proc-files", ("7 -", [])),
    ("proc-files", ("7 1 - cgroup x devices\n4", [])),
    # a list, where an object is meant
    ("daemons", b'{"runtimes": [1]}'),
]


@pytest.mark.parametrize(("name", "value"), FOUND, ids=[name for name, _ in FOUND])
def test_what_was_found_once_is_found_no_more(name: str, value: Any) -> None:
    check(TARGETS[name], value)
