# SPDX-License-Identifier: Apache-2.0
"""Debian packages, built from this tree and as stand-ins for others'."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.packaging.rpms import ROOT


class Release(NamedTuple):
    """The packages of one version."""

    hook: Path
    cli: Path
    docker: Path
    selinux: Path


def build(folder: Path, version: str = "", tree: Path = ROOT) -> Release:
    """The packages of a tree, by the script that `make deb` starts."""
    words = [str(tree / "packaging/deb.sh"), str(folder), *([version] if version else [])]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = {Path(line).name.partition("_")[0]: Path(line) for line in done.stdout.split()}
    names = ("oci-gpu-hook", "oci-gpu-hook-cli", "oci-gpu-hook-docker", "oci-gpu-hook-selinux")
    assert built.keys() == {*names}
    return Release(*[built[name] for name in names])


def pack(folder: Path, control: dict[str, str], files: dict[str, str]) -> Path:
    """A stand-in for another's package: its fields, and its files or ("-> TARGET") links."""
    tree = folder / control["Package"]
    (tree / "DEBIAN").mkdir(parents=True)
    fields = {"Maintainer": "nobody <nobody@example.org>", "Description": "a stand-in", **control}
    lines = [f"{key}: {value}\n" for key, value in fields.items()]
    (tree / "DEBIAN/control").write_text("".join(lines))
    for name, content in files.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            path.symlink_to(content[3:])
        else:
            path.write_text(content)
            path.chmod(0o755)
    words = ["dpkg-deb", "--root-owner-group", "--build", str(tree), f"{tree}.deb"]
    subprocess.run(words, check=True, capture_output=True)
    return Path(f"{tree}.deb")


def contents(package: Path) -> set[str]:
    """The paths of the files and links in a package."""
    words = f"dpkg-deb --fsys-tarfile {package} | tar -t"
    done = subprocess.run(words, shell=True, check=True, capture_output=True, text=True)
    return {f"/{line[2:]}" for line in done.stdout.splitlines() if not line.endswith("/")}


def field(package: Path, name: str) -> str:
    """A field of the package's control file."""
    done = subprocess.run(["dpkg-deb", "--field", package, name], check=True, capture_output=True, text=True)
    return done.stdout.strip()
