# SPDX-License-Identifier: Apache-2.0
"""What a start costs in system calls, which no busy machine can blur: of a file more, of a GPU more, of none.

Counted by strace on the installed hook in real starts.  Times are the bench's business (tests/bench).
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.growth import describe
from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, on_node, start
from tests.integration.inside import REFRESH
from tests.integration.test_invariants import HOOK, traced

# System calls of a container without a GPU, beside those of bash that runs an empty script.  Half of them are those of
# its `read`, which is twice there: once with a time limit.
NO_GPU = 48

_CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\(")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FAILED = re.compile(r"\) += -1 E")


def count(lines: Iterable[str]) -> dict[str, Any]:
    """The figures of one trace.  A call that strace shows in two parts counts where it began."""
    names: Counter[str] = Counter()
    files = []
    for line in lines:
        call, path = _CALL.match(line), _PATH.search(line)
        if call:
            names[call[1]] += 1
            if call[1] in ("open", "openat", "openat2", "open_tree") and path and not _FAILED.search(line):
                files.append(path[1])
    return {"calls": sum(names.values()), "programs": names["execve"], "files": files, "names": names.most_common()}


def counted(made: Bundle, before: str = "", **node: Any) -> dict[str, Any]:
    log = made.path / "trace"
    traced(made, log).runs("/bin/sh", "-c", "true")
    on_node(f"{before}{start('runc', made)}", **node).printed()
    return count(log.read_text().splitlines())


def each_more(few: dict[str, Any], many: dict[str, Any], more: int) -> dict[str, float]:
    """By how much each call grew, for one more; but for memory, which the interpreter asks for by the page."""
    names = Counter(dict(many["names"]))
    names.subtract(dict(few["names"]))
    return {name: number / more for name, number in names.items() if number and name not in ("brk", "mmap", "munmap")}


def at_most(grown: dict[str, float], most: dict[str, float]) -> None:
    """No call more often than it was; and enough of them to show that the right thing was counted."""
    assert {name: number for name, number in grown.items() if number > most.get(name, 0)} == {}
    assert sum(grown.values()) > sum(most.values()) / 2, grown


# A file: its tree is cloned, gets its attributes, and is moved onto a mount point, which is made and opened.
CLONED = {"open_tree": 1, "mount_setattr": 1}
# What is read is mountinfo and the like, which grow too.
A_FILE = {**CLONED, "mknodat": 1, "openat": 1, "move_mount": 1, "close": 1, "read": 0.1}
# A GPU: its node is looked at, mounted like a file or made, allowed in the cgroup; and it has a folder in /proc.
A_GPU = {"openat2": 1, "newfstatat": 2, "statx": 4, **CLONED, "move_mount": 1, "mkdirat": 2, "mknodat": 1, "close": 2}
# One write to devices.allow each; on cgroup v2 all GPUs are in one program.
A_GPU_V1 = {**A_GPU, "openat": 1, "write": 1, "close": 3}


def firmware(files: int) -> str:
    folder = "/lib/firmware/nvidia/580.65.06"
    return f"for i in $(seq {files}); do echo x >{folder}/gsp_more$i.bin; done\n{REFRESH}"


def test_a_mounted_file_more_takes_seven_calls(bundle: Maker) -> None:
    made = [bundle("debian").asks("0") for _ in range(2)]
    few, many = (counted(it, firmware(n)) for it, n in zip(made, (10, 50)))
    at_most(each_more(few, many, 40), A_FILE)


def with_gpus(bundle: Maker, gpus: int, devices: str, **node: str) -> dict[str, Any]:
    """The system calls of a start on a node that has so many."""
    made = bundle("busybox").asks(devices)
    description = made.path / "node.json"
    description.write_text(json.dumps(describe(gpus)))
    return counted(made, REFRESH, description=str(description), **node)


@pytest.mark.parametrize(("cgroup", "most"), [("v1", A_GPU_V1), ("v2", A_GPU)], ids=["v1", "v2"])
def test_a_gpu_more_takes_two_dozen_calls(bundle: Maker, cgroup: str, most: dict[str, float]) -> None:
    one, two, sixteen = (with_gpus(bundle, gpus, "all", cgroup=cgroup) for gpus in (1, 2, 16))
    at_most(each_more(one, two, 1), most)
    at_most(each_more(two, sixteen, 14), {**most, "read": 0.5})


def test_gpus_that_are_not_asked_for_take_nothing(bundle: Maker) -> None:
    """But that lists of them are longer to read."""
    one, sixteen = (with_gpus(bundle, gpus, "0") for gpus in (1, 16))
    assert one["calls"] > 100
    more = each_more(one, sixteen, 15)
    assert {name: number for name, number in more.items() if number > 0 and name != "read"} == {}
    assert more.get("read", 0) <= 0.2


# The kernel takes microseconds to write each of its lines.
MOUNTS = "/proc/self/mountinfo"
MORE = "mkdir /run/more; for i in $(seq 400); do mkdir /run/more/$i; mount -t tmpfs none /run/more/$i; done\n"


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_the_nodes_mounts_are_read_once(installed: Installed, bundle: Maker, cgroup: str) -> None:
    """In a root in which nothing has been started, in its old root, and beside four hundred mounts more."""
    made = bundle("debian").asks("0")
    found = []
    for before in ("", "", MORE):
        made.config["hooks"] = installed.hooks()
        found.append(counted(made, before, cgroup=cgroup))
    assert [one["files"].count(MOUNTS) for one in found] == [1, 1, 1]
    _, old, many = found
    grown = {name: it for name, it in each_more(old, many, 400).items() if it > 0}
    assert grown.keys() == {"read"} and grown["read"] < 0.1, grown


def test_what_is_there_already_takes_no_look_at_the_mounts(bundle: Maker) -> None:
    """The engine has mounted some of the driver's files; of a volume that holds others is asked once."""
    made = bundle("debian").asks("0")
    for name in ("libcuda.so.580.65.06", "libnvidia-ml.so.580.65.06"):
        library = f"/usr/lib/{roots.MULTIARCH}/{name}"
        made.mounts(library, library, "ro")
    assert counted(made)["files"].count(MOUNTS) == 1
    made = bundle("debian").asks("0")
    programs = made.path / "programs"
    shutil.copytree(made.rootfs / "usr/bin", programs, symlinks=True)
    for name in ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control"):
        (programs / name).write_text("the volume's own")
    made.mounts(programs, "/usr/bin")
    assert counted(made)["files"].count(MOUNTS) == 2


def test_without_a_gpu_nothing_but_config_json_is_opened(bundle: Maker, tmp_path: Path) -> None:
    """Beside what bash opens to run any script: its libraries, and that."""
    script = tmp_path / "script"
    script.write_text("#!/bin/bash -p\nexit 0\n")
    script.chmod(0o755)
    log = tmp_path / "script.trace"
    shell = f"env -i SHELL=/bin/bash strace -f -o {log} {script}\n"
    made = bundle("debian")
    ours = counted(made, shell)
    any_script = count(log.read_text().splitlines())
    own = [file for file in ours["files"] if file not in any_script["files"]]
    assert own == [HOOK, f"{made.path}/config.json"]
    assert ours["programs"] == 1
    names = dict(ours["names"])
    assert {"socket", "connect", "execveat", "clone", "clone3", "fork", "vfork"} & set(names) == set()
    assert ours["calls"] - any_script["calls"] <= NO_GPU, ours["calls"]
    text = (made.path / "trace").read_text()
    for path in ("/proc/driver", "/dev/nvidia", "_ctypes", "/run/oci-gpu-hook", "rootfs"):
        assert path not in text, path
    # Whether the administrator has settings at all is asked, and no more: they may name variables of their own.
    about_settings = [line for line in text.splitlines() if "/etc/oci-gpu-hook.conf" in line]
    assert len(about_settings) == 2
    assert all("stat" in line and "ENOENT" in line for line in about_settings)
