# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the integration tests: the same installation, roots and simulated driver; and where Docker lies."""

from __future__ import annotations

import shutil

import pytest

from tests.docker.dockerd import FOLDER
from tests.integration.conftest import _as_root, bundle, driver, installed, patterns

__all__ = ["_as_root", "bundle", "driver", "installed", "patterns"]


@pytest.fixture(scope="session", autouse=True)
def _with_docker() -> None:
    if shutil.which("dockerd", path=f"{FOLDER}:/usr/sbin:/usr/bin") is None:
        pytest.skip("RHEL has no Docker")
