# SPDX-License-Identifier: Apache-2.0
"""What all unit tests share: the command line; and how long an example of a property may take is not what they ask."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.unit.examples import examples
from tests.unit.program import Program

settings.register_profile("unit", examples(deadline=None))
settings.load_profile("unit")


@pytest.fixture()
def program(capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(capsys)
