# SPDX-License-Identifier: Apache-2.0
"""Compile the simulated driver of one version into a cache folder; done once, then only found.

    python3 tests/gpunode/build.py [--cache FOLDER] [--machine NAME] DRIVER_VERSION CUDA_VERSION

Needs a C compiler and nothing else. A folder's name carries the hash of everything that made it,
so a changed source gets a new folder and a finished folder never changes.
Must not: write outside the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .vendors.additions import Additions

if not __package__:
    # Started by its path: become a member of the package (PEP 366).
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    __package__ = "gpunode"

from . import catalogue, elf32

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "src")
CACHE = os.path.join(os.path.dirname(os.path.dirname(HERE)), ".build", "gpunode")

# The driver's files may need nothing of the image they end up in, not even its C library.
FLAGS = (
    "-Wall",
    "-Wextra",
    "-Werror",
    "-O2",
    "-ffreestanding",
    "-nostdlib",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden",
    "-s",
    "-Wl,-z,noseparate-code",
)
SHARED = ("-fPIC", "-shared", "-Wl,--hash-style=both")
PROGRAM = ("-static", "-fno-pie", "-no-pie")


MACHINE = os.uname().machine


def _compiler(machine: str) -> str:
    """This machine's own, or the one that Debian names after the other architecture."""
    return os.environ.get("CC", "cc") if machine == MACHINE else f"{machine}-linux-gnu-gcc"


def _hash(driver: str, cuda_number: int, machine: str) -> str:
    """Of all that decides what the folder holds."""
    digest = hashlib.sha256(f"{driver} {cuda_number} {machine}".encode())
    files = [os.path.join(SOURCES, name) for name in sorted(os.listdir(SOURCES))]
    for path in [*files, os.path.abspath(__file__), catalogue.__file__, elf32.__file__]:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def _commands(folder: str, driver: str, cuda_number: int, machine: str) -> list[list[str]]:
    """Every compiler call after the common object; they do not depend on one another."""
    compiler = [_compiler(machine), *FLAGS]
    compiler += [f'-DDRIVER_VERSION="{driver}"', f"-DCUDA_VERSION={cuda_number}"]
    commands = [
        [*compiler, *PROGRAM, "-o", f"{folder}/bin/nvidia-smi", f"{SOURCES}/nvidia-smi.c"],
        [*compiler, *PROGRAM, "-o", f"{folder}/libexec/procdriver", f"{SOURCES}/procdriver.c"],
        [*compiler, *SHARED, "-o", f"{folder}/libexec/nomemlock.so", f"{SOURCES}/nomemlock.c"],
    ]
    for library in catalogue.libraries(driver):
        body = f"{SOURCES}/{library.source}.c"
        if library.source == "library":
            body = f"{folder}/library.o"
        output = f"{folder}/lib/{library.file(driver)}"
        soname = f"-Wl,-soname,{library.soname_of(driver)}"
        commands.append([*compiler, *SHARED, soname, "-o", output, body])
    return commands


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


def _fill(folder: str, driver: str, cuda_number: int, machine: str) -> None:
    # Imported here: the usual start of a node finds everything built and needs none of these.
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    folders = {f"lib/{library.folder}" for library in catalogue.libraries(driver)}
    folders |= {f"lib32/{library.folder}" for library in catalogue.twins(driver)}
    for name in ("bin", "libexec", *folders):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    compiler = [_compiler(machine), *FLAGS, "-fPIC", f'-DDRIVER_VERSION="{driver}"']
    common = [*compiler, "-c", "-o", f"{folder}/library.o", f"{SOURCES}/library.c"]
    if subprocess.call(common):
        raise OSError(f"{common[0]} failed on library.c")
    commands = _commands(folder, driver, cuda_number, machine)
    with ThreadPoolExecutor(max_workers=2) as pool:
        for command, status in zip(commands, pool.map(subprocess.call, commands)):
            if status:
                raise OSError(f"{command[0]} failed on {command[-1]}")
    os.unlink(f"{folder}/library.o")
    for name in catalogue.PROGRAMS[1:]:
        os.link(f"{folder}/bin/nvidia-smi", f"{folder}/bin/{name}")
    for library in catalogue.twins(driver):
        with open(f"{folder}/lib32/{library.file(driver)}", "wb") as twin:
            twin.write(elf32.shared_object(library.soname_of(driver)))
    with open(f"{folder}/mig-minors", "w", encoding="ascii") as file:
        file.write(_mig_minors())


def build(driver: str, cuda_number: int, cache: str = CACHE, machine: str = MACHINE) -> str:
    """The folder with the driver's files: `lib/`, `lib32/`, `bin/`, `libexec/` and `mig-minors`."""
    finished = os.path.join(cache, f"{driver}-{_hash(driver, cuda_number, machine)}")
    if os.path.isdir(finished):
        return finished
    import shutil
    import tempfile

    os.makedirs(cache, exist_ok=True)
    with open(os.path.join(cache, ".gitignore"), "w", encoding="ascii") as file:
        file.write("*\n")
    temporary = tempfile.mkdtemp(prefix=f".{driver}-", dir=cache)
    try:
        _fill(temporary, driver, cuda_number, machine)
        os.chmod(temporary, 0o755)
        os.rename(temporary, finished)
    except OSError:
        # Another process was first: rename does not replace a folder that has files.
        if not os.path.isdir(finished):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return finished


def build_vendors(additions: Additions, cache: str = CACHE) -> dict[str, str]:
    """The built files of other vendors' drivers: path on the node -> file."""
    digest = hashlib.sha256(os.uname().machine.encode())
    for path in (f"{SOURCES}/library.c", f"{SOURCES}/vendor.c", f"{SOURCES}/sys.h", __file__):
        with open(path, "rb") as file:
            digest.update(file.read())
    folder = os.path.join(cache, f"vendors-{digest.hexdigest()[:16]}")
    compiler = [os.environ.get("CC", "cc"), *FLAGS, '-DDRIVER_VERSION="simulated"']
    found, commands = {}, {}
    for path, soname in additions.libraries.items():
        found[path] = f"{folder}/{soname}"
        line = [*compiler, *SHARED, f"-Wl,-soname,{soname}", f"{SOURCES}/library.c"]
        commands[found[path]] = line
    for path, nodes in additions.programs.items():
        found[path] = f"{folder}/{hashlib.sha256(nodes.encode()).hexdigest()[:16]}"
        line = [*compiler, *PROGRAM, f'-DNODES="{nodes}"', f"{SOURCES}/vendor.c"]
        commands[found[path]] = line
    missing = {output: line for output, line in commands.items() if not os.path.exists(output)}
    if missing:
        _compile(folder, missing)
    return found


def _compile(folder: str, commands: dict[str, list[str]]) -> None:
    """Make each file, whole from the moment that it has its name."""
    import subprocess
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary, ThreadPoolExecutor(2) as pool:
        made = {output: f"{temporary}/{os.path.basename(output)}" for output in commands}
        lines = [[*line, "-o", made[output]] for output, line in commands.items()]
        for line, status in zip(lines, pool.map(subprocess.call, lines)):
            if status:
                raise OSError(f"{line[0]} failed on {line[-1]}")
        for output, file in made.items():
            os.rename(file, output)


def main() -> int:
    import argparse

    parser = argparse.ArgumentParser(description="Compile the simulated driver of one version.")
    parser.add_argument("--cache", default=CACHE)
    parser.add_argument("--machine", default=MACHINE, help="x86_64 or aarch64, as uname -m has it")
    parser.add_argument("driver")
    parser.add_argument("cuda", help="for example 13.0")
    options = parser.parse_args()
    major, minor = options.cuda.split(".")
    number = int(major) * 1000 + int(minor) * 10
    print(build(options.driver, number, options.cache, options.machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
