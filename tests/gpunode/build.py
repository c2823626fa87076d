# SPDX-License-Identifier: Apache-2.0
"""Compile the simulated driver of one version into a cache folder; done once, then only found.

Needs a C compiler and nothing else. A folder's name carries the hash of everything that made it,
so a changed source gets a new folder and a finished folder never changes.
Must not: write outside the cache folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from . import catalogue
from .vendors.additions import Additions

Commands = dict[str, list[str]]  # a file of the folder -> the compiler's call that makes it

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "src")
CACHE = os.path.join(os.path.dirname(os.path.dirname(HERE)), ".build", "gpunode")
MACHINE = os.uname().machine

# The driver's files may need nothing of the image they end up in, not even its C library.
FLAGS = (
    *("-Wall", "-Wextra", "-Werror", "-O2", "-ffreestanding", "-nostdlib", "-fno-stack-protector", "-s"),
    *("-fno-asynchronous-unwind-tables", "-fvisibility=hidden", "-Wl,-z,noseparate-code"),
)
PROGRAM = ("-static", "-fno-pie", "-no-pie")


def _compiler(machine: str) -> list[str]:
    """This machine's own, or the one that Debian names after the other architecture."""
    return [os.environ.get("CC", "cc") if machine == MACHINE else f"{machine}-linux-gnu-gcc", *FLAGS]


def _shared(soname: str) -> list[str]:
    return ["-fPIC", "-shared", "-Wl,--hash-style=both", f"-Wl,-soname,{soname}"]


def _drivers(driver: str, cuda_number: int, cache: str, machine: str) -> Commands:
    compiler = [*_compiler(machine), f'-DDRIVER_VERSION="{driver}"', f"-DCUDA_VERSION={cuda_number}"]
    found = {f"bin/{name}": [*compiler, *PROGRAM, f"{SOURCES}/nvidia-smi.c"] for name in catalogue.PROGRAMS}
    found["libexec/nomemlock.so"] = [*compiler, *_shared("nomemlock.so"), f"{SOURCES}/nomemlock.c"]
    for library in catalogue.libraries(driver):
        words = [*compiler, *_shared(library.soname_of(driver)), f"{SOURCES}/{library.source}.c"]
        found[f"lib/{library.file(driver)}"] = words
    if machine == "x86_64":
        # Those of i386 only have to be found: ldconfig knows by libc.so.6 that one is no library of Linux libc 5.
        empty = [*_compiler(machine), "-m32", "-Wl,--no-as-needed", "-x", "c", "/dev/null", "-x", "none"]
        libc = _built("i386", "", cache, lambda: {"libc.so.6": [*empty, *_shared("libc.so.6")]})
        for library in catalogue.twins(driver):
            words = [*empty, *_shared(library.soname_of(driver)), f"{libc}/libc.so.6"]
            found[f"lib32/{library.file(driver)}"] = words
    return found


def _mig_minors() -> str:
    """As nvidia-caps lists them: 32 GPUs of 15 GPU instances of 8 compute instances."""
    lines, minor = ["config 1", "monitor 2"], 3
    for gpu in range(32):
        for instance in range(15):
            lines.append(f"gpu{gpu}/gi{instance}/access {minor}")
            for compute in range(8):
                lines.append(f"gpu{gpu}/gi{instance}/ci{compute}/access {minor + 1 + compute}")
            minor += 9
    return "\n".join(lines) + "\n"


def _built(name: str, key: str, cache: str, commands: Callable[[], Commands], mig_minors: str = "") -> str:
    """The folder in which all of this has been made; key: what decides that beside the sources."""
    digest = hashlib.sha256(key.encode())
    files = [os.path.join(SOURCES, name) for name in sorted(os.listdir(SOURCES))]
    for path in [*files, os.path.abspath(__file__), catalogue.__file__]:
        with open(path, "rb") as file:
            digest.update(file.read())
    finished = os.path.join(cache, f"{name}-{digest.hexdigest()[:16]}")
    if os.path.isdir(finished):
        return finished
    # Imported here: the usual start of a node finds everything built and needs none of these.
    import shutil
    import subprocess
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    os.makedirs(cache, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f".{name}-", dir=cache)
    try:
        lines = [[*line, "-o", f"{temporary}/{path}"] for path, line in commands().items()]
        for line in lines:
            os.makedirs(os.path.dirname(line[-1]), exist_ok=True)
        with ThreadPoolExecutor(2) as pool:
            for line, status in zip(lines, pool.map(subprocess.call, lines)):
                if status:
                    raise OSError(f"failed: {' '.join(line)}")
        if mig_minors:
            with open(f"{temporary}/mig-minors", "w", encoding="ascii") as text:
                text.write(mig_minors)
        os.chmod(temporary, 0o755)
        os.rename(temporary, finished)
    except OSError:
        # Another process was first: rename does not replace a folder that has files.
        if not os.path.isdir(finished):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return finished


def build(driver: str, cuda_number: int, cache: str = CACHE, machine: str = MACHINE) -> str:
    """The folder with the driver's files: `lib/`, `lib32/`, `bin/`, `libexec/` and `mig-minors`."""
    key = f"{cuda_number} {machine}"
    return _built(driver, key, cache, lambda: _drivers(driver, cuda_number, cache, machine), _mig_minors())


def build_vendors(additions: Additions, cache: str = CACHE) -> dict[str, str]:
    """The built files of other vendors' drivers: path on the node -> file."""
    compiler = [*_compiler(MACHINE), '-DDRIVER_VERSION="simulated"']
    commands = {
        **{path: [*_shared(soname), f"{SOURCES}/library.c"] for path, soname in additions.libraries.items()},
        **{path: [*PROGRAM, f'-DNODES="{its}"', f"{SOURCES}/vendor.c"] for path, its in additions.programs.items()},
    }
    made = {path[1:]: [*compiler, *words] for path, words in commands.items()}
    folder = _built("vendors", f"{MACHINE} {additions.libraries} {additions.programs}", cache, lambda: made)
    return {path: folder + path for path in commands}
