# SPDX-License-Identifier: Apache-2.0
"""One installation and one set of roots for all integration tests, and a fresh bundle for each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pynvml
import pytest

from tests.integration import engines, roots
from tests.integration.engines import INSTALLED, NODE, REPOSITORY, Bundle, Installed, printed

Maker = Callable[[str], Bundle]


@pytest.fixture(scope="session", autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.fail("integration tests run real containers: they need root")


@pytest.fixture(scope="session", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """``make install`` below a folder; where that would take minutes, it has been made elsewhere."""
    if INSTALLED in os.environ:
        return engines.installed()
    tree = tmp_path_factory.mktemp("installed")
    printed("make", "--silent", "-C", REPOSITORY, "install", f"DESTDIR={tree}")
    # What a distribution may lack, where pip's --target puts it.
    vendor = tree / "usr/lib/oci-gpu-hook/vendor"
    vendor.mkdir()
    shutil.copy(pynvml.__file__, vendor)
    os.environ[INSTALLED] = str(tree)
    return engines.installed()


@pytest.fixture(scope="session")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the newest runtimes that Debian has, and CRIU, which run with libraries of their own."""
    if not shutil.which("apt-get"):
        pytest.skip("the newest engines are Debian's packages")
    folder = tmp_path_factory.mktemp("newest")
    made = REPOSITORY / ".build/newest"
    subprocess.run([REPOSITORY / "tests/newest.sh", made], check=True)
    libraries = made / f"root/usr/lib/{roots.MULTIARCH}"
    loader = next(libraries.glob("ld-linux-*"))
    for name in ("sbin/runc", "bin/crun", "sbin/criu"):
        program = shutil.copy(made / "root/usr" / name, folder)
        own: list[str | Path] = ["--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries]
        subprocess.run(["patchelf", *own, program], check=True)
    return folder


@pytest.fixture(scope="session")
def driver() -> Path:
    subprocess.run([sys.executable, NODE, "--description", "h100x8", "--", "true"], check=True)
    return REPOSITORY / ".build" / "gpunode"


@pytest.fixture(scope="session")
def patterns(tmp_path_factory: pytest.TempPathFactory, driver: Path) -> dict[str, Path]:
    """The kinds of roots, made once and copied for each bundle."""
    folder = tmp_path_factory.mktemp("roots")
    makers = {"debian": roots.debian, "bare": roots.bare, "musl": roots.musl}
    made = {kind: make(folder / kind, driver) for kind, make in makers.items()}
    return {"busybox": roots.busybox(folder / "busybox"), **made}


@pytest.fixture()
def root(tmp_path: Path, patterns: dict[str, Path]) -> Path:
    """A root as Debian's, for an engine that takes a folder."""
    return Path(shutil.copytree(patterns["debian"], tmp_path / "root", symlinks=True))


@pytest.fixture()
def bundle(tmp_path: Path, installed: Installed, patterns: dict[str, Path]) -> Maker:
    """Makes a bundle whose root is a fresh copy of the named kind."""

    def make(kind: str) -> Bundle:
        path = tmp_path / f"bundle-{kind}-{len(list(tmp_path.iterdir()))}"
        return Bundle(path, installed.hooks(), patterns[kind])

    return make
