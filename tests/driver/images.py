# SPDX-License-Identifier: Apache-2.0
"""Images for the real driver: a small Debian's root laid out as other distributions have it, with programs to look.

What such an image has beside its loader is what the driver's libraries and some programs need of a host.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.integration.roots import MULTIARCH

MULTIARCH_32 = "i386-linux-gnu"

# Opens libraries by their names; `call` calls one function of one, with nothing that it could use.
LOOK = r"""
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void end(int number) { _exit(number); }
int main(int count, char **names) {
    if (count == 4 && !strcmp(names[1], "call")) {
        char room[64] = {0};
        void *library = dlopen(names[2], RTLD_LAZY);
        long (*function)(long, long, void *, void *) = library ? dlsym(library, names[3]) : NULL;
        /* libgbm takes a character device. */
        dup2(open("/dev/null", O_RDWR), 0);
        signal(SIGSEGV, end);
        return function ? !function(0, 0, room, room) : 2;
    }
    for (int i = 1; i < count; i++) {
        printf("%s: %s\n", dlopen(names[i], RTLD_LAZY | RTLD_LOCAL) ? "opened" : dlerror(), names[i]);
        fflush(stdout);
    }
    /* Some crash at an ordinary exit, on the host too. */
    _exit(0);
}
"""


class Kind(NamedTuple):
    """How an image is laid out: where its loader finds libraries of 64 and of 32 bits, and its X server modules."""

    folder: str
    folder_32: str
    modules: str


KINDS = {
    "debian": Kind(f"usr/lib/{MULTIARCH}", f"usr/lib/{MULTIARCH_32}", "usr/lib/xorg/modules"),
    "rhel": Kind("usr/lib64", "usr/lib", "usr/lib64/xorg/modules"),
    # Its usr/lib64 is a link to lib.
    "arch": Kind("usr/lib", "usr/lib32", "usr/lib/xorg/modules"),
}


def make(root: Path, kind: str, debian: Path, packages: Path) -> Path:
    """The image; debian: what `roots.debian` makes; packages: those that fetch.sh has fetched."""
    shutil.copytree(debian, root, symlinks=True)
    its = KINDS[kind]
    if kind != "debian":
        (root / "etc/debian_version").unlink()
        (root / f"etc/ld.so.conf.d/{MULTIARCH}.conf").write_text(f"/{its.folder}\n/{its.folder_32}\n")
        for path in [*(root / "usr/lib64").iterdir(), *(root / "usr/lib" / MULTIARCH).iterdir()]:
            path.rename(root / its.folder / path.name)
        (root / "usr/lib" / MULTIARCH).rmdir()
    if kind == "arch":
        (root / "usr/lib64").rmdir()
        (root / "usr/lib64").symlink_to("lib")
    for pattern, made in (("programs/*.deb", root), ("libc-i386/*.deb", root / "i386")):
        for package in sorted(packages.glob(pattern)):
            subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, stdout=(root / "tar").open("wb"))
            made.mkdir(exist_ok=True)
            # As its own packages do, into folders that may be links.
            subprocess.run(["tar", "-C", made, "--keep-directory-symlink", "-xf", root / "tar"], check=True)
    _place(root / "usr/lib" / MULTIARCH, root / its.folder)
    _place(root / "usr/lib/xorg/modules", root / its.modules)
    if platform.machine() == "x86_64":
        _place(root / "i386/lib" / MULTIARCH_32, root / its.folder_32)
        if not (root / "lib/ld-linux.so.2").exists():
            (root / "lib/ld-linux.so.2").symlink_to(f"/{its.folder_32}/ld-linux.so.2")
    shutil.rmtree(root / "i386")
    (root / "tar").unlink()
    compile_look("cc", root / "app/look")
    return root


def compile_look(compiler: str, program: Path) -> None:
    """The program `LOOK`."""
    source = program.with_suffix(".c")
    source.write_text(LOOK)
    subprocess.run([compiler, "-o", program, source], check=True)


def _place(folder: Path, target: Path) -> None:
    """Move what is in a folder into another."""
    if folder == target or not folder.exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.rename(target / path.name)
    folder.rmdir()
