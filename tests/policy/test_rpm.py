# SPDX-License-Identifier: Apache-2.0
"""What the RPM's scriptlets do to a policy store, by real rpm and semodule, in a copy of Debian's policy.

The copy is called targeted, as RHEL's and Fedora's is.  This machine's own store is hidden behind it for as long as a
test runs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.packaging import rpms
from tests.policy import policies

OURS = ["200/nvidia_container", "200/oci_gpu_hook"]
# A view of this host whose folders are throw-away, but for the store below $1.
SCRIPT = """
mkdir -p /mnt && mount -t tmpfs none /mnt
for folder in usr etc var; do
    mkdir -p /mnt/$folder/upper /mnt/$folder/work
    mount -t overlay -o lowerdir=/$folder,upperdir=/mnt/$folder/upper,workdir=/mnt/$folder/work none /$folder
done
mkdir -p /etc/selinux /var/lib/selinux
mount --bind "$1/etc/selinux" /etc/selinux
mount --bind "$1/var/lib/selinux" /var/lib/selinux
database=$1/rpm
shift
exec rpm --define "_dbpath $database" --nodeps "$@"
"""


@pytest.fixture()
def store(tmp_path: Path) -> Path:
    """A root's policy and module store."""
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", policies.build().base, root], check=True)
    for folder in ("etc/selinux", "var/lib/selinux"):
        (root / folder / "default").rename(root / folder / "targeted")
    (root / "etc/selinux/config").write_text("SELINUX=permissive\nSELINUXTYPE=targeted\n")
    return root


def rpm(store: Path, *words: str | Path) -> None:
    line = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-eu", "-c", SCRIPT, "sh"]
    done = subprocess.run([*line, store, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "scriptlet failed" not in done.stderr, done.stderr


def stored(store: Path) -> list[str]:
    folder = store / "var/lib/selinux/targeted/active/modules"
    return sorted(
        f"{path.parent.name}/{path.name}"
        for name in policies.MODULES
        for path in folder.glob(f"*/{name}")
    )


def test_modules_come_with_the_package_and_go_with_it(store: Path, tmp_path: Path) -> None:
    previous = rpms.build(tmp_path / "previous", "0.0.1").selinux
    package = rpms.build(tmp_path / "rpm").selinux
    assert stored(store) == []
    for words in (("-i", previous), ("-U", package), ("-U", "--oldpackage", previous)):
        rpm(store, *words)
        assert stored(store) == OURS
    rpm(store, "-e", "oci-gpu-hook-selinux")
    assert stored(store) == []


def test_another_policy_is_left_alone(store: Path, tmp_path: Path) -> None:
    (store / "etc/selinux/config").write_text("SELINUX=permissive\nSELINUXTYPE=minimum\n")
    rpm(store, "-i", rpms.build(tmp_path / "rpm").selinux)
    assert stored(store) == []
