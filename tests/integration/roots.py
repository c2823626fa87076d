# SPDX-License-Identifier: Apache-2.0
"""Container roots of the kinds that matter to a loader: Debian's glibc, musl, hardly anything, nothing.

Each holds a program linked to libcuda.so.1 as ``/app/cuda`` (where it has a loader) and, for the test's own steps, a
static busybox.  Made from files of this machine; nothing is downloaded.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

MULTIARCH = f"{platform.machine()}-linux-gnu"
APPLETS = ("sh", "cat", "ls", "mknod", "grep", "find", "touch", "mount", "sleep", "id", "stat", "head")  # fmt: skip

PROGRAM = """
#include <stdio.h>
int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int main(void) {
    int count = -1, result = cuInit(0);
    cuDeviceGetCount(&count);
    printf("cuInit %d, %d devices\\n", result, count);
    return 0;
}
"""


def busybox(root: Path) -> Path:
    (root / "bin").mkdir(parents=True)
    _add_busybox(root / "bin")
    return root


def debian(root: Path, driver: Path | None) -> Path:
    """A root laid out as Debian's: merged /usr, multiarch folders, ldconfig and its cache.

    driver: None leaves the program out.
    """
    library_folder = root / "usr/lib" / MULTIARCH
    library_folder.mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc").mkdir()
    (root / "etc/debian_version").write_text("12.0\n")
    (root / "etc/ld.so.conf.d").mkdir()
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (root / f"etc/ld.so.conf.d/{MULTIARCH}.conf").write_text(f"/usr/lib/{MULTIARCH}\n")
    _copy_loader(root, library_folder)
    shutil.copy("/sbin/ldconfig", root / "usr/sbin/ldconfig")
    _add_busybox(root / "usr/bin")
    if driver is not None:
        _compile("cc", root / "app/cuda", driver)
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)
    return root


def bare(root: Path, driver: Path) -> Path:
    """A root with one program, its loader and libc where only a cache or a default folder leads: no /etc, no /usr."""
    _copy_loader(root, root / "lib")
    _compile("cc", root / "app/cuda", driver)
    return root


def musl(root: Path, driver: Path) -> Path:
    """A root as Alpine's: musl's loader, which reads no cache."""
    busybox(root)
    (root / "lib").mkdir()
    loader = Path(f"/lib/ld-musl-{platform.machine()}.so.1")
    assert loader.exists(), "the tests need musl (package musl-tools)"
    shutil.copy(loader.resolve(), root / "lib" / loader.name)
    _compile("musl-gcc", root / "app/cuda", driver)
    return root


def listing(root: Path) -> dict[str, tuple[str, int]]:
    """Every name below a root with its type and size: what "as before" is compared by."""
    kinds = {}
    for path in sorted(root.rglob("*")):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file"
        size = path.stat().st_size if kind == "file" else 0
        kinds[str(path.relative_to(root))] = (kind, size)
    return kinds


def _add_busybox(folder: Path) -> None:
    binary = shutil.which("busybox")
    assert binary is not None, "the tests need a static busybox (package busybox-static)"
    shutil.copy(binary, folder / "busybox")
    for applet in APPLETS:
        (folder / applet).symlink_to("busybox")


def _copy_loader(root: Path, library_folder: Path) -> None:
    loader = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}[platform.machine()]
    (root / loader).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(f"/{loader}", root / loader)
    library_folder.mkdir(parents=True, exist_ok=True)
    for folder in (f"/lib/{MULTIARCH}", "/lib64"):
        if Path(folder, "libc.so.6").exists():
            shutil.copy(f"{folder}/libc.so.6", library_folder)
            return
    raise AssertionError("this machine has no libc.so.6 where the tests look for it")


def _compile(compiler: str, target: Path, driver: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = target.parent / "cuda.c"
    source.write_text(PROGRAM)
    # WSL's is another.
    library = next(path for path in driver.rglob("lib/libcuda.so.[0-9]*.*") if "wsl" not in path.parts)
    subprocess.run([compiler, "-o", target, source, library], check=True)
    source.unlink()
