# SPDX-License-Identifier: Apache-2.0
"""``selinux install`` and ``remove``, by the real semodule, in a copy of Debian's policy."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.policy import debian, policies

MODULES = ["nvidia_container", "oci_gpu_hook"]


def command(root: Path, *words: str) -> str:
    line = ["/usr/bin/python3", "-B", "-m", "oci_gpu_hook", "selinux", *words, "--host-root", str(root)]
    done = subprocess.run(line, check=False, capture_output=True, text=True, cwd=policies.REPOSITORY)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(root: Path) -> list[str]:
    """Our modules in the store, with their priority."""
    folder = root / "var/lib/selinux/default/active/modules"
    return sorted(f"{path.parent.name}/{path.name}" for name in MODULES for path in folder.glob(f"*/{name}"))


def test_the_modules_are_installed_below_an_administrators_and_removed_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", policies.build().base, root], check=True)
    (root / "etc/selinux/config").write_text("SELINUX=enforcing\nSELINUXTYPE=default\n")
    assert stored(root) == []
    for _ in range(2):
        assert command(root, "install") == "installed nvidia_container, oci_gpu_hook\n"
        assert stored(root) == ["200/nvidia_container", "200/oci_gpu_hook"]
    assert "nvidia_container_t" in debian.run("seinfo", "-t", "--flat", debian.binary(str(root)))
    assert command(root, "remove") == "removed nvidia_container, oci_gpu_hook\n"
    assert stored(root) == []
