# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for others' packages, of both kinds."""

from __future__ import annotations

from pathlib import Path

from tests.integration.engines import printed
from tests.selinux.files import write

# What a distribution's packages provide to ours.
PROVIDED = (
    "/bin/sh /bin/bash /usr/bin/python3 container-selinux libselinux-utils policycoreutils selinux-policy-targeted"
    " python3 = {version} python(abi) = {abi} python3dist(click) = 8.1"
)
# Folders of its package filesystem, as far as Debian has none of them.
FOLDERS = """
%install
mkdir -p %{buildroot}/usr/share/licenses %{buildroot}/usr/share/zsh/site-functions
%files
/usr/share/licenses
/usr/share/zsh
"""
SPEC = """
%define _binaries_in_noarch_packages_terminate_build 0
Name: {name}
Version: 1.20
Release: 1
Summary: A package for tests
License: Apache-2.0
BuildArch: noarch
AutoReqProv: no
{lines}
%description
A package for tests.
"""
# NVIDIA's package, as far as it is in our way: it owns the name that dockerd looks for.
RIVAL = """
%install
install -D /bin/true %{buildroot}/usr/bin/nvidia-container-runtime-hook
%files
/usr/bin/nvidia-container-runtime-hook
"""


def build_base(folder: Path, python: str = "") -> Path:
    """The package that stands for everything that is not ours; python: as if /usr/bin/python3 were of this version."""
    version = printed("/usr/bin/python3", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])").strip()
    provided = PROVIDED.format(version=python or version, abi=version.rpartition(".")[0])
    return _built(folder, "base", f"Provides: {provided}", FOLDERS)


def build_rival(folder: Path) -> Path:
    """A package with another's program under the name that dockerd looks for."""
    return _built(folder, "nvidia-container-toolkit", "", RIVAL)


def build_successor(folder: Path) -> Path:
    """A package that takes the rival away in the transaction that installs it, as a swap does."""
    return _built(folder, "successor", "Obsoletes: nvidia-container-toolkit", "%files\n")


def _built(folder: Path, name: str, lines: str, files: str) -> Path:
    spec = folder / "one.spec"
    spec.write_text(SPEC.format(name=name, lines=lines) + files)
    printed("rpmbuild", "-bb", "--define", f"_topdir {folder}", spec)
    [package] = (folder / "RPMS/noarch").glob(f"{name}-1.20*.rpm")
    return package


def pack(folder: Path, control: dict[str, str], files: dict[str, str]) -> Path:
    """A stand-in for another's package: its fields, and its files or ("-> TARGET") links."""
    tree = folder / control["Package"]
    fields = {"Maintainer": "nobody <nobody@example.org>", "Description": "a stand-in", **control}
    write(tree / "DEBIAN/control", "".join([f"{key}: {value}\n" for key, value in fields.items()]))
    for name, content in files.items():
        path = tree / name.lstrip("/")
        write(path, content, 0o755)
        if content.startswith("-> "):
            path.unlink()
            path.symlink_to(content[3:])
    printed("dpkg-deb", "--root-owner-group", "--build", tree, f"{tree}.deb")
    return Path(f"{tree}.deb")
