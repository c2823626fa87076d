# SPDX-License-Identifier: Apache-2.0
"""RPMs, built from this tree and as stand-ins for others'.

Must not touch this machine's own RPM database.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# What an older version's tables lack (`older_tree`).
FORGOTTEN = "nvidia-debugdump"

# Of what the packages of both kinds hold.
ENTRY = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
REGISTRATION = "/usr/share/containers/oci/hooks.d/oci-gpu-hook.json"
SETTINGS = "/etc/oci-gpu-hook.conf"
LIBRARY = "/usr/lib/oci-gpu-hook"
PACKAGE = f"{LIBRARY}/oci_gpu_hook"
DOCKERS = "/usr/bin/nvidia-container-runtime-hook"
CLI = "/usr/bin/nvidia-container-cli"
TARGET = "../libexec/oci/hooks.d/oci-gpu-hook"
# An administrator's settings.
CHANGED = "device-cgroup = on\n"

# What a distribution's packages provide to ours.
PROVIDED = (
    "/bin/sh /bin/bash /usr/bin/python3 container-selinux libselinux-utils policycoreutils selinux-policy-targeted"
    " python(abi) = {abi} python3dist(click) = 8.1"
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


class Release(NamedTuple):
    """The packages of one version that every host has."""

    hook: Path
    selinux: Path

    @property
    def docker(self) -> Path:
        """The one beside them, for hosts with Docker."""
        return self.hook.with_name(self.hook.name.replace("hook-", "hook-docker-", 1))

    @property
    def cli(self) -> Path:
        """The one for callers of nvidia-container-cli."""
        return self.hook.with_name(self.hook.name.replace("hook-", "hook-cli-", 1))


def build(folder: Path, version: str = "", tree: Path = ROOT) -> Release:
    """The packages of a tree, by the script that `make rpm` starts."""
    words = [str(tree / "packaging/rpm.sh"), str(folder), *([version] if version else [])]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = [Path(line) for line in done.stdout.split()]
    [selinux] = [path for path in built if path.name.startswith("oci-gpu-hook-selinux")]
    [docker] = [path for path in built if path.name.startswith("oci-gpu-hook-docker")]
    packages = [path for path in built if path.parent.name == "noarch"]
    [cli] = [path for path in built if path.name.startswith("oci-gpu-hook-cli")]
    [hook] = [path for path in packages if path not in (selinux, docker, cli)]
    assert (Release(hook, selinux).docker, Release(hook, selinux).cli) == (docker, cli)
    return Release(hook, selinux)


def copy_of_tree(folder: Path) -> Path:
    """This tree without git, to be changed."""
    # What other tests write meanwhile is left out too.
    ignored = (".git", ".venv*", ".build", ".*_cache", "__pycache__", ".hypothesis")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*ignored))
    return folder


def older_tree(folder: Path) -> Path:
    """As an older version: a folder that is no more, a start's module that differs, other words in settings."""
    _forget(copy_of_tree(folder))
    (folder / "oci_gpu_hook/gone").mkdir()
    (folder / "oci_gpu_hook/gone/__init__.py").write_text('"""No more."""\n')
    for name, text in (("oci_gpu_hook/hook.py", "\n_BEFORE = 0\n"), ("packaging/oci-gpu-hook.conf", "# as before\n")):
        with (folder / name).open("a") as file:
            file.write(text)
    return folder


def _forget(tree: Path) -> None:
    """Take a program out of a tree's tables, as an older version that did not know it; its inventories differ then."""
    catalogue, inventory = tree / "oci_gpu_hook/driver/catalogue.py", tree / "oci_gpu_hook/driver/inventory.py"
    text = catalogue.read_text()
    assert f'"{FORGOTTEN}", ' in text
    catalogue.write_text(text.replace(f'"{FORGOTTEN}", ', ""))
    # As tests/unit/test_headings.py has it written.
    inventory.write_text(
        re.sub(r'(?m)^(HEADING = b"oci-gpu-hook inventory ).*', r'\g<1>00000000\\n"', inventory.read_text())
    )


def install_by_hand(root: Path) -> None:
    """As `make install` does, the halves that one that was stopped leaves, and what pip has put beside it."""
    words = ["make", "--silent", "-C", str(ROOT), "install", f"DESTDIR={root}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    for half in ("vendor/click", ".new/oci_gpu_hook", "oci_gpu_hook/__linked__"):
        (root / LIBRARY[1:] / half).mkdir(parents=True, exist_ok=True)
    (root / PACKAGE[1:] / "hook.py").write_text("half a modu")
    (root / PACKAGE[1:] / "__linked__/modules.other").write_text("another Python's")


def build_base(folder: Path) -> Path:
    """The package that stands for everything that is not ours."""
    words = ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    abi = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    return _built(folder, "base", f"Provides: {PROVIDED.format(abi=abi)}", FOLDERS)


def build_rival(folder: Path) -> Path:
    """A package with another's program under the name that dockerd looks for."""
    return _built(folder, "nvidia-container-toolkit", "", RIVAL)


def _built(folder: Path, name: str, lines: str, files: str) -> Path:
    """The one package of a spec."""
    spec = folder / "one.spec"
    spec.write_text(SPEC.format(name=name, lines=lines) + files)
    words = ["rpmbuild", "-bb", "--define", f"_topdir {folder}", str(spec)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [package] = (folder / "RPMS/noarch").glob("*.rpm")
    return package
