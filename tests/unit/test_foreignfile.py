# SPDX-License-Identifier: Apache-2.0
"""What users, containers and images have made is read by descriptor, only regular files, within bounds."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.mountinfo import MountLine
from oci_gpu_hook.node.machine import foreignfile
from oci_gpu_hook.node.machine.foreignfile import ContainerRoot, Files, Mounts, read_file
from tests.unit import hosts
from tests.unit.containers import USER, owned
from tests.unit.test_contracts import SOURCES, name

FOLDER = f"/run/user/{USER}"


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    (tmp_path / FOLDER[1:]).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("make", "content"),
    [
        (lambda it: it.write_text("said"), b"said"),
        (lambda it: it.symlink_to("/etc/passwd"), None),
        (lambda it: os.mknod(it, 0o020666, os.makedev(1, 5)), None),
        (os.mkfifo, None),
        (lambda it: it.mkdir(), None),
        (lambda it: it.write_text("s" * 1001), None),
    ],
    ids=["regular", "outside", "device", "fifo", "folder", "large"],
)
def test_only_a_regular_file_is_read(tree: Path, make: Callable[[Path], object], content: bytes | None) -> None:
    make(tree / FOLDER[1:] / "x")
    owned(tree, FOLDER)
    began = time.monotonic()
    assert foreignfile.read_file(HostRoot(str(tree)), f"{FOLDER}/x", 1000) == content
    assert time.monotonic() - began < 5


def test_what_root_reads_of_engines_is_roots_and_on_no_fuse(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may mount FUSE on a folder of his; a user's own command reads what that user may."""
    hosts.plant(tree, f"{FOLDER[1:]}/x", "{}")
    root, ours = HostRoot(str(tree)), foreignfile.our_mounts()
    fuse = Mounts(f"7 1 0:7 / {tree} rw - fuse.evil none rw\n".encode())
    for user, mounts, mode, found in (
        (0, ours, 0o600, {}),
        (0, fuse, 0o600, None),
        (0, ours, 0o666, None),
        (USER, fuse, 0o666, {}),
    ):
        monkeypatch.setattr("posix.geteuid", lambda user=user: user)
        (tree / FOLDER[1:] / "x").chmod(mode)
        assert Files(root, mounts).parsed(f"{FOLDER}/x") == found


def test_mount_points_with_odd_names() -> None:
    text = b"7 1 0:7 /a\\134b /mnt/a\\040b\\012c rw shared:1 - tmpfs none rw\nnonsense\n\n"
    found = Mounts(text)
    assert found.points == {"/mnt/a b\nc": MountLine(7, "0:7", "/a\\b", "/mnt/a b\nc", ("shared:1",), "tmpfs", "rw")}
    assert found.way("/mnt/a b\nc/d") == ["/mnt/a b\nc"]


@contextmanager
def inside(tree: Path | None = None) -> Iterator[ContainerRoot]:
    """A container whose root is this tree, else ours: no process has it, so its descriptor is exchanged."""
    found = ContainerRoot(HostRoot(), os.getpid())
    if tree:
        os.close(found.fd)
        found.fd = os.open(tree, os.O_PATH)
    yield found
    os.close(found.fd)


def test_in_a_container_links_are_followed_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/x").write_text("said")
    (tmp_path / "x").symlink_to("/etc/x")
    (tmp_path / "out").symlink_to("../../../../../../../../etc/passwd")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    with inside(tmp_path) as found:
        assert read_file(found, "/x") == b"said" and read_file(found, "/x", 3) is None
        assert [read_file(found, f"/{name}") for name in ("out", "loop", "fifo", "etc")] == [None] * 4
        assert found.status("/x", with_links=False) is None
        assert found.names("/etc") == ["x"] and found.names("/x") == []


def test_a_file_of_procfs_is_no_file_of_a_containers() -> None:
    """Its read can wait, or take away what root is to read, as that of /proc/kmsg."""
    with inside() as found:
        assert found.status("/proc/self/status") is not None
        assert read_file(found, "/proc/self/status") is read_file(found, "/sys/kernel/notes") is None


def test_names_without_an_end_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreignfile, "MAX_NAMES", 50)
    for number in range(60):
        (tmp_path / str(number)).touch()
    with inside(tmp_path) as found:
        assert len(found.names("/")) == 50
        assert found.nodes("/", time.monotonic() + 60) == found.nodes("/", 0) == ([], False)


def test_nodes_are_looked_for_where_no_link_leads(tmp_path: Path) -> None:
    (tmp_path / "dev").symlink_to("/dev")
    with inside() as found:
        until = time.monotonic() + 60
        assert ("null", (1, 3)) in found.nodes("/dev", until)[0]
        assert found.nodes(f"{tmp_path}/dev", until) == ([], True)


def test_a_node_is_opened_only_if_it_is_the_one() -> None:
    """Between the look and the open a container may have put another there."""
    with inside() as found:
        assert found.numbers("/dev/null") == (1, 3) and found.numbers("/etc/passwd") is None
        found.try_node("/dev/null", (1, 3))
        for path in ("/dev/zero", "/etc/passwd"):
            with pytest.raises(OSError, match="another device by now"):
                found.try_node(path, (1, 3))


# What users and containers fill, and where the package may name it.
THEIRS = {
    "/run/user": {"node/engines/containers.py"},
    "/cmdline": {"node/machine/processes.py", "report/crun.py"},
    "/environ": {"node/machine/processes.py"},
    "/root": {"node/machine/foreignfile.py", "node/engines/containerdevices.py"},
    "/cwd": {"node/engines/containers.py"},
}


def test_nothing_else_opens_a_path_that_others_fill() -> None:
    """`foreignfile` opens them; root's commands read a command line only of root's own processes."""
    found: dict[str, set[str]] = {part: set() for part in THEIRS}
    for path in SOURCES.values():
        for node in ast.walk(ast.parse(path.read_bytes())):
            text = str(node.value) if isinstance(node, ast.Constant) else ""
            for part in [it for it in THEIRS if text.endswith(it) and "\n" not in text]:
                found[part].add(name(path)[len("oci_gpu_hook/") :])
    assert found == THEIRS
