# SPDX-License-Identifier: Apache-2.0
"""What all unit tests share: the command line, the umask; and no limit of time for an example of a property."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.unit.examples import examples
from tests.unit.program import Program

settings.register_profile("unit", examples(deadline=None))
settings.load_profile("unit")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """What is planted is for all to read, as on a host; a test may set its own."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture()
def program(capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(capsys)
