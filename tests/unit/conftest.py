# SPDX-License-Identifier: Apache-2.0
"""What all unit tests share: the command line; and how long an example of a property may take is not what they ask."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.unit.examples import examples
from tests.unit.manifests import GENERATE
from tests.unit.program import Program

settings.register_profile("unit", examples(deadline=None))
settings.load_profile("unit")


@pytest.fixture()
def program(capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(capsys)


@pytest.fixture(scope="session")
def machineconfigs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make openshift` fills: once for all of pytest-xdist's processes, as it takes seconds."""
    folder = tmp_path_factory.getbasetemp().parent / "machineconfigs"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            ran = subprocess.run((sys.executable, GENERATE, folder), capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
    return folder
