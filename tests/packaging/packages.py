# SPDX-License-Identifier: Apache-2.0
"""Our packages of both kinds, built from this tree or an older one, and what rpm, and dpkg and apt, do with them.

Must not touch this machine's own databases of packages: all is done in a view.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple, Union

from tests.integration.engines import printed
from tests.packaging.views import Ended, View

ROOT = Path(__file__).resolve().parents[2]
# What an older version's tables lack (`older_tree`).
FORGOTTEN = "nvidia-debugdump"

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


class Release(NamedTuple):
    hook: Path
    cli: Path
    docker: Path
    selinux: Path


NAMES = ("oci-gpu-hook", "oci-gpu-hook-cli", "oci-gpu-hook-docker", "oci-gpu-hook-selinux")


def build(kind: str, folder: Path, version: str = "", tree: Path = ROOT) -> Release:
    """The packages of a tree, by the script that `make rpm` or `make deb` starts."""
    out = printed(tree / f"packaging/{kind}.sh", folder, *([version] if version else []))
    found = [Path(line) for line in out.split() if not line.endswith(".src.rpm")]
    built = {re.split(r"[-_]\d", path.name)[0]: path for path in found}
    assert len(built) == len(found), found
    return Release(*[built[name] for name in NAMES])


def does(done: Ended) -> str:
    """What must succeed, without a word of complaint."""
    assert done.status == 0, done.said
    expected = r"dpkg: warning: (downgrading|while removing .*/systemd/.* not empty so not removed).*"
    said = re.sub(expected, "", done.said)
    assert not re.search("warning|error|cannot", said), said
    return said


class Rpm:
    """RPMs: where SELinux is, the policy comes with the hook."""

    name, everywhere = "rpm", "noarch"
    installed = ("oci-gpu-hook", "oci-gpu-hook-docker", "oci-gpu-hook-selinux")
    # What the new settings are called beside changed ones.
    beside = ".rpmnew"
    # Of the packages, beside what `make install` installs: folders and documents too.
    more = (
        *(SETTINGS, f"{SETTINGS}.d", "/etc/oci-gpu-hook", "/etc/oci-gpu-hook/vendors"),
        *("/run/oci-gpu-hook", "/run/oci-gpu-hook/refresh-wanted", "/usr/share/doc", "/usr/share/licenses"),
    )

    def hosts(self, release: Release) -> list[Path]:
        """What is installed on every host."""
        return [release.hook, release.selinux]

    def contents(self, package: Path) -> set[str]:
        return {*query(package, "-l").splitlines()}

    def version(self, package: Path) -> list[str]:
        """And the architecture."""
        return query(package, "--qf", "%{VERSION} %{ARCH}").split()

    def fingerprint(self, package: Path) -> object:
        return query(package, "--dump")

    def install(self, view: View, *packages: Path) -> Ended:
        """Over another version too, later or earlier."""
        return view.rpm("-U", "--oldpackage", "--replacepkgs", *packages)

    def purge(self, view: View) -> Ended:
        return view.rpm("-e", *self.installed)

    def verify(self, view: View) -> Ended:
        return view.rpm("-V", *self.installed)


class Deb:
    """Debian's."""

    name, everywhere = "deb", "all"
    installed = ("oci-gpu-hook", "oci-gpu-hook-docker")
    beside = ".dpkg-dist"
    more = (SETTINGS, "/usr/share/doc", "/usr/share/lintian")

    def hosts(self, release: Release) -> list[Path]:
        return [release.hook]

    def contents(self, package: Path) -> set[str]:
        """The paths of the files and links."""
        out = printed("sh", "-c", f"dpkg-deb --fsys-tarfile {package} | tar -t")
        found = {f"/{line[2:]}" for line in out.splitlines() if not line.endswith("/")}
        return {path.replace("/vendor-completions/", "/site-functions/") for path in found}

    def version(self, package: Path) -> list[str]:
        return [field(package, "Version").removesuffix("-1"), field(package, "Architecture")]

    def fingerprint(self, package: Path) -> object:
        return package.read_bytes()

    def install(self, view: View, *packages: Path) -> Ended:
        return view.dpkg("--force-confold", "-i", *packages)

    def purge(self, view: View) -> Ended:
        return view.apt("purge", *self.installed)

    def verify(self, view: View) -> Ended:
        return view.dpkg("--verify", *self.installed)


Kind = Union[Rpm, Deb]


def query(package: Path, *words: str) -> str:
    return printed("rpm", "-qp", *words, package, cwd="/")


def field(package: Path, name: str) -> str:
    """A field of a Debian package's control file."""
    return printed("dpkg-deb", "--field", package, name).strip()


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
    changed = {"oci_gpu_hook/hook.py": "\n_BEFORE = 0\n", f"packaging{SETTINGS}": "# as before\n"}
    for name, text in changed.items():
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
    printed("make", "--silent", "-C", ROOT, "install", f"DESTDIR={root}")
    for half in ("vendor/click", ".new/oci_gpu_hook", "oci_gpu_hook/__linked__"):
        (root / LIBRARY[1:] / half).mkdir(parents=True, exist_ok=True)
    (root / PACKAGE[1:] / "hook.py").write_text("half a modu")
    (root / PACKAGE[1:] / "__linked__/modules.other").write_text("another Python's")
