# SPDX-License-Identifier: Apache-2.0
"""What all tests share: options, and a folder for each session."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile

import pytest

_FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Give each session a folder of its own, which is taken away if nothing has failed.

    pytest's default lies in a folder of the user's, which each session closes to other users again when it begins:
    containers with users of their own could not reach their roots any more.
    """
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
