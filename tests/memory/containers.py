# SPDX-License-Identifier: Apache-2.0
"""Containers that take GPU memory from the kernel, started by each runtime with each manager of cgroups.

A container takes memory by writing a number of bytes to its GPU's node, and holds it for as long as that is open: see
module/regions.c.  Must not know what limits it.
"""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

import pytest
from _pytest.mark import ParameterSet

from tests.guest.places import NEWEST
from tests.integration.engines import Bundle, Outcome, on_node
from tests.integration.inside import node

HELD, REFUSED = "held", "Cannot allocate memory"
# In seconds, of a machine that is emulated.
PATIENCE = 100


class Engine(NamedTuple):
    """A runtime, and who makes its containers' cgroups.

    program: as the shell finds it; systemd: a scope of systemd's in a slice of a slice, else folders in a folder.
    """

    program: str
    systemd: bool

    @property
    def words(self) -> str:
        """What every command begins with."""
        return f"{self.program} --systemd-cgroup" if self.systemd else self.program

    def place(self, made: Bundle, name: str, parent: str) -> Bundle:
        """The bundle with a cgroup of this name, two below the root; parent: one word."""
        path = f"{parent}-a.slice:{parent}:{name}" if self.systemd else f"/{parent}/a/{name}"
        made.config["linux"]["cgroupsPath"] = path
        return made

    def run(self, made: Bundle, name: str, script: str, parent: str = "lane") -> str:
        """The shell command of a container that runs a script to its end."""
        self.place(made, name, parent).runs("/bin/sh", "-c", script)
        return f"{self.words} run --bundle {made.path} {name}"

    def stay(self, made: Bundle, name: str, parent: str = "lane") -> str:
        """Shell lines that start a container, which stays, and leave its cgroup in $NAME."""
        self.place(made, name, parent).runs("/bin/sh", "-c", "exec sleep 10000")
        pid = f"""$({self.words} state {name} | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')"""
        return f"""
{self.words} run --detach --bundle {made.path} {name} >/run/{name} 2>&1 </dev/null || {{ cat /run/{name} >&2; exit 1; }}
{name}=/sys/fs/cgroup$(cut -d : -f 3- /proc/{pid}/cgroup)
"""

    def inside(self, name: str, script: str) -> str:
        """The shell command that runs a script in a container that stays."""
        return f"{self.words} exec {name} /bin/sh -c {shlex.quote(script)}"

    def remove(self, *names: str) -> str:
        """Shell lines that end containers that stay."""
        return "".join(f"{self.words} delete --force {name}\n" for name in names)


_PROGRAMS = {name: name for name in ("runc", "crun")}
_NEWEST = {f"newest {name}": f"/{NEWEST}/bin/{name}" for name in ("runc", "crun")}


def _engines(*, systemd: bool) -> list[ParameterSet]:
    manager = "systemd" if systemd else "cgroupfs"
    programs = {**_PROGRAMS, **_NEWEST}
    return [pytest.param(Engine(path, systemd), id=f"{name}, {manager}") for name, path in programs.items()]


CGROUPFS, SYSTEMD = _engines(systemd=False), _engines(systemd=True)
ENGINES = CGROUPFS + SYSTEMD


def takes(index: int, *sizes: int) -> str:
    """A script that takes MiB of a GPU one after another, holds them, and prints a line for each; index: NVML's."""
    writes = [f"{{ echo {size << 20} >&3; }} 2>&1 && echo {HELD}" for size in sizes]
    # What is refused is no failure of the script.
    return "\n".join([f"exec 3>{node(index)}", *writes, "true"]) + "\n"


def said(text: str) -> list[str]:
    lines = text.splitlines()
    assert all(line == HELD or line.endswith(REFUSED) for line in lines), text
    return [HELD if line == HELD else REFUSED for line in lines]


def on_machine(script: str, **more: Any) -> Outcome:
    """A script on a simulated node, whose cgroups and systemd are the machine's."""
    return on_node(script, cgroup="host", timeout=PATIENCE, **more)
