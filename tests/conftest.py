# SPDX-License-Identifier: Apache-2.0
"""What all tests share: options, a folder for each session, and a limit of time for each test."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from types import FrameType

import pytest

_FOLDER = pytest.StashKey[str]()
# For a test and what it sets up: far above what any takes beside others.  What is real is built, loaded and attacked.
_MINUTES, _MINUTES_OF_REAL = 10, 60


def pytest_configure(config: pytest.Config) -> None:
    """Give each session a folder of its own, which is taken away if nothing has failed.

    pytest's default lies in a folder of the user's, which each session closes to other users again when it begins:
    containers with users of their own could not reach their roots any more.
    """
    # The lanes run side by side by one make that sorts their output.  One that a test starts would take part in that,
    # and wait for whatever holds a lock on its output, /dev/null.
    os.environ.pop("MAKEFLAGS", None)
    if config.option.basetemp is None:
        # podman names an image by its folder, and takes no name with an underscore beside a dash, which mkdtemp makes.
        folder = f"{tempfile.gettempdir()}/oci-gpu-hook-tests-{secrets.token_hex(8)}"
        os.mkdir(folder, 0o700)
        config.option.basetemp = f"{folder}/session"
        config.stash[_FOLDER] = folder


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    folder = session.config.stash.get(_FOLDER, None)
    if folder and exitstatus != pytest.ExitCode.TESTS_FAILED:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the goldens again, for review")


def _minutes(item: pytest.Item) -> int:
    return _MINUTES if item.path.parent.name == "unit" else _MINUTES_OF_REAL


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a test that hangs; by a signal and no thread, as a process with threads enters no user namespace."""

    def ended(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"{item.nodeid} took more than {_minutes(item)} minutes")

    signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, 60 * _minutes(item))
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
