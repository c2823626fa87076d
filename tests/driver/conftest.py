# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the integration tests: the same installation, roots and simulated kernel side; and images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.driver import images
from tests.integration.conftest import _as_root, bundle, driver, installed, patterns
from tests.integration.engines import REPOSITORY

__all__ = ["_as_root", "bundle", "driver", "installed", "patterns"]

PACKAGES = REPOSITORY / ".build/driver"


@pytest.fixture(scope="session")
def roots_of(tmp_path_factory: pytest.TempPathFactory, patterns: dict[str, Path]) -> dict[str, Path]:
    """An image of each kind; what `images.KINDS` does not have is musl's."""
    made = tmp_path_factory.mktemp("images")
    found = {kind: images.make(made / kind, kind, patterns["debian"], PACKAGES) for kind in images.KINDS}
    shutil.copytree(patterns["musl"], made / "musl", symlinks=True)
    images.compile_look("musl-gcc", made / "musl/app/look")
    return {**found, "musl": made / "musl"}
