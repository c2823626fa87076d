# SPDX-License-Identifier: Apache-2.0
"""Views of this machine that real apt, dpkg and rpm install packages into.

A view is an overlay of the whole root in a mount namespace of its own: it has the machine's packages, so that
dependencies and maintainer scripts are real, and what changes lies in memory.  Must not touch the machine's own root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import NamedTuple

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


class Ended(NamedTuple):
    status: int
    said: str


class View:
    """A view of this machine, for as long as it is open; `shared`: mounts of the machine's that are to show, too."""

    def __init__(self, *shared: str) -> None:
        script = VIEW.format(shared=" ".join(shared))
        words = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc", script]
        self._holder = subprocess.Popen(words, stdin=PIPE, stdout=PIPE)
        assert self._holder.stdout and self._holder.stdout.readline() == b"ready\n"
        self.path = Path(f"/proc/{self._holder.pid}/root/mnt/root")

    def close(self) -> None:
        self._holder.communicate()

    def __truediv__(self, path: str) -> Path:
        return self.path / path.lstrip("/")

    def sh(self, script: str) -> Ended:
        words = ["nsenter", "--target", str(self._holder.pid), "--mount", "--wdns=/", "--"]
        words += ["chroot", "/mnt/root", "/bin/sh", "-euc", script]
        # Debian's rpm would make its database in the home of a scriptlet that asks it.
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/run", "LC_ALL": "C"}
        environment["DEBIAN_FRONTEND"] = "noninteractive"
        done = subprocess.run(words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, env=environment)
        return Ended(done.returncode, done.stdout)

    def rpm(self, *words: str | Path) -> Ended:
        """rpm with a database of the view's own, in which `others.build_base` stands for the machine's packages."""
        return self.sh(" ".join(["rpm", "--define", "'_dbpath /run/rpm'", *map(str, words)]))

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
