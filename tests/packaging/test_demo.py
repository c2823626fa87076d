# SPDX-License-Identifier: Apache-2.0
"""`make demo` in a tree that nothing was made in: on this machine as it is, and then with the RPMs installed.

The RPMs are installed in a private view of /usr, /etc and /run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engines import UNSHARED, printed
from tests.packaging import packages

DEMO = "make --silent --no-print-directory -C {tree} demo"
VERDICT = "ok: with the hook the container's nvidia-smi lists GPU 1 "
LEFT = "/usr /etc /run /var/lib /tmp /sys/fs/cgroup -maxdepth 4 -name '*oci-gpu-hook-demo*'"
# Throw-away layers, and a database of rpm's own.
INSTALLED = """
mount -t tmpfs none /mnt
for folder in usr etc run; do
    mkdir -p /mnt/$folder/upper /mnt/$folder/work
    mount -t overlay -o lowerdir=/$folder,upperdir=/mnt/$folder/upper,workdir=/mnt/$folder/work none /$folder
done
rpm --define '_dbpath /run/rpm' --nodeps -i {packages} 2>/dev/null
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages.copy_of_tree(tmp_path_factory.mktemp("demo") / "tree")


def said(script: str) -> str:
    """What a script prints that succeeds in a mount namespace of its own."""
    return printed(*UNSHARED, "/bin/sh", "-euc", script, cwd="/")


def test_it_shows_this_trees_hook_and_leaves_nothing(tree: Path, tmp_path: Path) -> None:
    stamp = tmp_path / "stamp"
    stamp.touch()
    shown = said(DEMO.format(tree=tree))
    assert VERDICT in shown
    assert "Installed, in a throw-away layer" in shown
    assert said(f"find {LEFT} 2>/dev/null || :") == ""
    assert said(f"find /usr /etc -xdev -newercm {stamp}") == ""
    made = {path.name for path in tree.iterdir()} - {path.name for path in packages.ROOT.iterdir()}
    assert made <= {".build"}


def test_it_shows_the_installed_packages_hook(tree: Path, tmp_path: Path) -> None:
    release = packages.build("rpm", tmp_path / "rpm")
    shown = said(INSTALLED.format(packages=f"{release.hook} {release.selinux}") + DEMO.format(tree=tree))
    assert VERDICT in shown
    assert "Installed already, by a package" in shown
