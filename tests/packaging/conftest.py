# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the integration tests, packages of both kinds and views of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from tests.integration.conftest import _as_root, driver, installed
from tests.packaging import others, packages
from tests.packaging.packages import Release
from tests.packaging.views import View

__all__ = ["_as_root", "driver", "installed"]

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
Built = Callable[[str], Release]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The packages of a kind: this tree's, or with "older " before it those of an older one; each made once."""
    made: dict[str, Release] = {}

    def build(which: str) -> Release:
        if which not in made:
            older, _, kind = which.rpartition(" ")
            folder = tmp_path_factory.mktemp(which.replace(" ", "-"))
            tree = packages.older_tree(folder / "tree") if older else packages.ROOT
            made[which] = packages.build(kind, folder / "packages", "0.0.1" if older else "", tree)
        return made[which]

    return build


@pytest.fixture(scope="module")
def release(built: Built, request: pytest.FixtureRequest) -> Release:
    """This tree's packages, of the module's kind."""
    return built(request.module.KIND)


@pytest.fixture(scope="module")
def previous(built: Built, request: pytest.FixtureRequest) -> Release:
    return built(f"older {request.module.KIND}")


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return others.build_base(tmp_path_factory.mktemp("base"))


@pytest.fixture()
def view(base: Path) -> Iterator[View]:
    """A view in which rpm knows the machine's packages, too."""
    opened = View(*([str(PYENV)] if PYENV.is_dir() else []))
    packages.does(opened.rpm("-i", base))
    yield opened
    opened.close()
