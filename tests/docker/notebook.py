# SPDX-License-Identifier: Apache-2.0
"""A notebook's image, of this machine's files: Python, JupyterHub's single-user server, and a shell.

Python and the virtual environment are not copied but go from where they are straight into Docker, each to the same
path.  Nothing is downloaded but by ``make``, which makes the virtual environment once.  Must not import its packages.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.integration.engines import REPOSITORY
from tests.integration.roots import MULTIARCH

VENV = REPOSITORY / ".build/jupyterhub"
HOME = "/notebooks"
# As images of nvidia-docker 1's time say that they expect a driver, and where.
OF_THAT_TIME = """\
FROM notebook
LABEL com.nvidia.volumes.needed="nvidia_driver"
ENV PATH=/usr/local/nvidia/bin:{path}
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64
"""
# As CUDA's images have it.
THAT_ASKS = """\
FROM notebook
ENV NVIDIA_VISIBLE_DEVICES=all
"""
PATH = f"{VENV}/bin:/usr/bin:/bin"
_LIBRARY = "import sysconfig; print(sysconfig.get_path('stdlib'))"
# What no notebook imports, and pip.
_LEFT_OUT = ("test", "idlelib", "lib2to3", "ensurepip", "tkinter", "config-*", "pip", "setuptools")


class Notebook(NamedTuple):
    """An image's parts: a folder that is its root, and paths of this machine that are at the same places there."""

    root: Path
    paths: list[str]

    def load(self) -> str:
        """The shell lines that make the images ``notebook``, ``old-notebook`` and ``asks`` if a daemon is."""
        excluded = " ".join([f"--exclude={shlex.quote(f'*/{name}')}" for name in _LEFT_OUT])
        config = [f"ENV PATH={PATH}", f"ENV HOME={HOME}", f"WORKDIR {HOME}"]
        config.append('CMD ["jupyterhub-singleuser"]')
        changes = " ".join([f"--change {shlex.quote(line)}" for line in config])
        paths = " ".join([shlex.quote(path.lstrip("/")) for path in self.paths])
        old = shlex.quote(OF_THAT_TIME.format(path=PATH))
        return f"""
tar {excluded} -c -C {self.root} . -C / {paths} | docker import {changes} - notebook >/dev/null
printf %s {old} | docker build --quiet --tag old-notebook - >/dev/null
printf %s {shlex.quote(THAT_ASKS)} | docker build --quiet --tag asks - >/dev/null
"""


def environment() -> None:
    """The virtual environment of the hub and of the notebooks, made again if setup.cfg has changed."""
    target = str((VENV / "up-to-date").relative_to(REPOSITORY))
    subprocess.run(["make", "--silent", "-C", REPOSITORY, target], check=True)


def notebook(root: Path, debian: Path) -> Notebook:
    """The image's parts: a root like that one, with the libraries that Python and its packages are linked to."""
    python = chain(f"{VENV}/bin/python")
    line = [python[0], "-c", _LIBRARY]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    folders = [done.stdout.strip(), str(VENV)]
    shutil.copytree(debian, root, symlinks=True)
    for path in linked(python[-1], *folders):
        shutil.copy(path, root / "usr/lib" / MULTIARCH)
    for folder in (root / "tmp", root / HOME[1:]):
        folder.mkdir()
        folder.chmod(0o1777)
    (root / "etc/passwd").write_text(f"root:x:0:0::/root:/bin/sh\njovyan:x:1000:100::{HOME}:/bin/sh\n")
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)
    return Notebook(root, [*[path for path in python if VENV not in Path(path).parents], *folders])


def chain(path: str) -> list[str]:
    """A path, and what it leads to where it is a link."""
    if not os.path.islink(path):
        return [path]
    return [path, *chain(os.path.join(os.path.dirname(path), os.readlink(path)))]


def linked(program: str, *folders: str) -> set[str]:
    """The libraries of this machine that a program and the shared objects below some folders are linked to."""
    objects = [str(path) for folder in folders for path in Path(folder).rglob("*.so*")]
    # Each complaint is of an object that is not for this machine's loader.
    listed = subprocess.run(["ldd", program, *objects], check=False, capture_output=True, text=True).stdout
    found = [line.split(" => ")[1].split()[0] for line in listed.splitlines() if " => /" in line]
    return {path for path in found if not path.startswith(tuple(folders)) and os.path.exists(path)}
