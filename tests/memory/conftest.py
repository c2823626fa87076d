# SPDX-License-Identifier: Apache-2.0
"""Drivers' regions for each test, containers with a busybox in them, and a node where systemd is the machine's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.guest.places import MODULE
from tests.integration import roots
from tests.integration.conftest import installed
from tests.integration.engines import Bundle, Installed
from tests.memory import regions

__all__ = ["installed"]

Maker = Callable[..., Bundle]


@pytest.fixture(autouse=True)
def _drivers() -> Iterator[None]:
    """Loaded anew: no limit is left of the test before."""
    if not Path(f"/{MODULE}").exists():
        pytest.fail("these tests run in the virtual machine of `make test-memory`")
    regions.load()
    yield
    regions.end_containers()
    regions.unload()


@pytest.fixture(scope="session")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roots.busybox(tmp_path_factory.mktemp("pattern") / "root")


@pytest.fixture()
def bundle(tmp_path: Path, installed: Installed, pattern: Path) -> Maker:
    """Makes a bundle that asks for GPUs, with a limit in MiB if one is given."""

    def make(devices: str | None = "0", limit: str | int | None = None, **words: Any) -> Bundle:
        path = tmp_path / f"bundle-{len(list(tmp_path.iterdir()))}"
        made = Bundle(path, installed.hooks(), pattern)
        if limit is not None:
            words["NVIDIA_GPU_MEMORY_LIMIT"] = limit
        return made.asks(devices, "utility", **{name: str(value) for name, value in words.items()})

    return make
