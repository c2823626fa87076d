# SPDX-License-Identifier: Apache-2.0
"""Debian packages built from this tree, and views of this machine that real apt and dpkg install them into.

A view is an overlay of the whole root in a mount namespace of its own: it has the machine's packages, so that
dependencies and maintainer scripts are real, and what changes lies in memory.  Must not touch the machine's own root.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.packaging.rpms import ROOT, Ended

if TYPE_CHECKING:
    from collections.abc import Iterator

# What changes whenever packages come and go: the database itself, logs, and what others make of the list of files.
KEPT_BY_DPKG = ("/var/lib/dpkg", "/var/lib/apt", "/var/log", "/var/cache")
VIEW = """
mount -t tmpfs -o mode=0755 none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work none /mnt/root
for folder in /proc /sys /dev /tmp {shared}; do mount --rbind $folder /mnt/root$folder; done
mount -t tmpfs -o mode=0755 none /mnt/root/run
# No program is kept from a service here: no systemd runs.
rm -f /mnt/root/usr/sbin/policy-rc.d
echo ready
exec cat
"""


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


class View:
    """A view of this machine, for as long as it is open; `shared`: mounts of the machine's that are to show, too."""

    def __init__(self, *shared: str) -> None:
        script = VIEW.format(shared=" ".join(shared))
        words = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc", script]
        self._holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout and self._holder.stdout.readline() == b"ready\n"
        self.path = Path(f"/proc/{self._holder.pid}/root/mnt/root")

    def close(self) -> None:
        self._holder.communicate()

    def __truediv__(self, path: str) -> Path:
        return self.path / path.lstrip("/")

    def sh(self, script: str) -> Ended:
        """Run a shell script there."""
        words = ["nsenter", "--target", str(self._holder.pid), "--mount", "--wdns=/", "--"]
        words += ["chroot", "/mnt/root", "/bin/sh", "-euc", script]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/",
            "LC_ALL": "C",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        return Ended(done.returncode, done.stdout)

    def dpkg(self, *words: str | Path) -> Ended:
        return self.sh(" ".join(["dpkg", *map(str, words)]))

    def apt(self, *words: str | Path) -> Ended:
        """apt-get without the lists of what could be downloaded; packages come from files."""
        options = "-q -y --no-install-recommends -o Dir::State::lists=/run/lists -o APT::Sandbox::User=root"
        return self.sh(f"mkdir -p /run/lists/partial; apt-get {options} {' '.join(map(str, words))}")

    def listing(self) -> dict[str, tuple[int, bytes]]:
        """Every path that is not as on the machine, with its mode and content; folders only where they are new."""
        upper = self.path.parent / "upper"
        found = {}
        for path in _below(upper):
            name = f"/{path.relative_to(upper)}"
            if f"{name}/".startswith(tuple(f"{kept}/" for kept in KEPT_BY_DPKG)):
                continue
            if path.is_symlink():
                found[name] = (path.lstat().st_mode, os.fsencode(os.readlink(path)))
            elif path.is_file():
                found[name] = (path.stat().st_mode, path.read_bytes())
            # Of what was removed the overlay keeps a device.
            elif not path.is_dir() or not Path(name).is_dir():
                found[name] = (path.stat().st_mode, b"")
        return found


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
