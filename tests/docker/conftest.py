# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the integration tests: the same installation, roots and simulated driver; and where Docker lies."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator

import pytest

from tests.docker.dockerd import FOLDER
from tests.integration.conftest import _as_root, bundle, driver, installed, patterns

__all__ = ["_as_root", "bundle", "driver", "installed", "patterns"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes longest goes first, and the others run beside it."""
    items.sort(key=lambda item: item.path.name != "test_jupyterhub.py")


@pytest.fixture(scope="session", autouse=True)
def _with_docker() -> None:
    if shutil.which("dockerd", path=f"{FOLDER}:/usr/sbin:/usr/bin") is None:
        pytest.skip("RHEL has no Docker")


# Where daemons, networks and clients keep what they have, by default and by what they have compiled in.
PLACES = (
    *("/etc/cdi", "/etc/cni", "/etc/containerd/config.toml", "/etc/docker/daemon.json", "/opt/cni", "/opt/containerd"),
    *("/root/.docker", "/run/containerd", "/run/docker", "/run/docker.pid", "/run/docker.sock"),
    *("/var/lib/containerd", "/var/lib/docker"),
)


def on_the_machine() -> tuple[list[str], list[str]]:
    """What Docker leaves where it may: files, and bridges."""
    links = [name for _, name in socket.if_nameindex()]
    return [path for path in PLACES if os.path.exists(path)], sorted(links)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = on_the_machine()
    yield
    assert on_the_machine() == before
