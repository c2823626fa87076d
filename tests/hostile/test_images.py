# SPDX-License-Identifier: Apache-2.0
"""Odd rather than hostile: wrong kinds of file in an image, no /proc, a config.json with more than engines write."""

from __future__ import annotations

import os
import posix
import re
from pathlib import Path
from typing import Any, Callable

import pytest

from oci_gpu_hook.changes.tree import Tree, Undo
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import closing
from tests.hostile.scene import BOTH
from tests.integration.conftest import Maker
from tests.integration.engines import PROCDRIVER, Bundle, in_turn, run, start
from tests.unit.libcudas import R575, library, said


def large(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    os.truncate(path, 4 << 30)


OWN_LIBCUDA: dict[str, Callable[[Path], Any]] = {
    "a fifo": os.mkfifo,
    "a device": lambda path: os.mknod(path, 0o20666, os.makedev(1, 5)),
    "a folder": lambda path: path.mkdir(),
    "a link out": lambda path: path.symlink_to("/proc/self/root/etc/shadow"),
    "4 GiB": lambda path: large(path, library(said(R575))),
    "4 GiB of nothing": lambda path: large(path, b""),
    "a note of 1 GiB": lambda path: path.write_bytes(library(said(R575), size=1 << 30)),
    "10,000 drivers": lambda path: path.write_bytes(library(said({**R575, "driver": list(range(10_000))}))),
    "a table in itself": lambda path: path.write_bytes(library(said(R575))[:40] + bytes(8) + library(said(R575))[48:]),
}


def test_an_images_own_libcuda_costs_no_start(bundle: Maker) -> None:
    """Whatever has the name of CUDA's newer library: the container starts, with the host's, and at once."""
    scripts = {}
    for name, make in OWN_LIBCUDA.items():
        made = bundle("debian").asks("0").runs("/app/cuda")
        folder = made.rootfs / "usr/local/cuda/compat"
        folder.mkdir(parents=True)
        make(folder / "libcuda.so.999.1.1")
        scripts[name] = f"timeout 20 {start('runc', made)}"
    for name, lines in in_turn(scripts).items():
        assert lines[-1:] == ["cuInit 0, 1 devices"], (name, lines)


def test_a_container_without_proc_starts(bundle: Maker) -> None:
    made = bundle("bare").asks("0").without("/proc").runs("/app/cuda")
    done = run("crun", "v2", made)
    assert "exit status" not in done.err, done.err


def test_a_link_in_a_new_nodes_place_opens_nothing_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container could that shares its root with the one that starts."""
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    secret.chmod(0o600)
    (tmp_path / "rootfs/dev").mkdir(parents=True)
    node = tmp_path / "rootfs/dev/nvidia0"
    make = posix.mknod

    def made_and_swapped(name: str, *words: int, dir_fd: int) -> None:
        make(name, *words, dir_fd=dir_fd)
        made.append(node.stat().st_mode & 0o7777)
        node.unlink()
        node.symlink_to(secret)

    made: list[int] = []
    monkeypatch.setattr(posix, "mknod", made_and_swapped)
    umask = os.umask(0)  # as apply.run sets it
    with closing(os.open(tmp_path / "rootfs", os.O_PATH)) as root:
        tree = Tree(root, (syscalls.mount_of(root)[0],), Undo())
        tree.make_node("/dev/nvidia0", 195, 0, mode=0o666, uid=0, gid=0)
    os.umask(umask)
    assert made == [0o666]
    assert secret.stat().st_mode & 0o7777 == 0o600


MANY = {f"key{number}": "value" for number in range(200_000)}
LONG = {"long": "x" * (64 << 20)}
# An interpreter takes some 30 MiB of addresses; and 64 MiB more is what a start may take.
MOST = 128 << 10


def bounded(made: Bundle) -> Bundle:
    for hooks in made.config["hooks"].values():
        for hook in [it for it in hooks if it != PROCDRIVER]:
            words = ["sh", "-c", f'ulimit -v {MOST}; exec "$0" "$@"', hook["path"], *hook["args"][1:]]
            hook.update(path="/bin/sh", args=words)
    return made


@pytest.mark.parametrize("runtime", BOTH)
def test_a_container_without_a_sign_of_a_request_starts(bundle: Maker, runtime: str) -> None:
    """By annotations, which the state has as well, and by what the state has not; with a sign it is refused."""
    cases = {"many": MANY, "long": LONG, "asks": {}, "others": {}}
    scripts = {}
    for name, said_of_it in cases.items():
        made = bounded(bundle("busybox").asks("0" if name == "asks" else None))
        made.config["annotations"] = said_of_it
        if name in ("asks", "others"):
            made.config["unknown"] = [*range(300_000)]
        made.runs("/bin/sh", "-c", "echo started; ls /dev")
        scripts[name] = f"{start(runtime, made)} 2>&1 || echo stopped"
    seen = in_turn(scripts)
    *_, said, last = seen.pop("asks")
    assert last == "stopped" and re.search(r"exit (status|code:) 3\b", said), said[-500:]
    for name, lines in seen.items():
        assert "started" in lines[:2] and "nvidiactl" not in lines, (name, lines[:5])
