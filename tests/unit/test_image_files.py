# SPDX-License-Identifier: Apache-2.0
"""Of an image only regular files are opened: a name where a file should be may be a device of the host's, or a fifo."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_gpu_hook.changes import loadercache
from oci_gpu_hook.changes.tree import Tree, Undo
from oci_gpu_hook.container import layout
from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.kernel import descriptors, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from tests.unit import hosts
from tests.unit.caches import parse

OURS = Entry(b"libcuda.so.1", b"/usr/lib64/libcuda.so.1", 0x303)
THEIRS = Entry(b"liba.so.1", b"/usr/lib64/liba.so.1", 0x303)
CACHE, CONFIGURATION, FOLDERS = "/etc/ld.so.cache", "/etc/ld.so.conf.d/0.conf", ("/usr/local/nvidia",)


class Attached(Tree):
    """A root whose mounts are only noted, as they need privileges; what is written there is."""

    data = b""

    def cover_with(self, target: str, file: str, data: bytes) -> None:
        self.data = data


def merged(root: Path) -> set[Entry]:
    """The entries of the cache that the container of this root gets."""
    with descriptors.closing(os.open(root, os.O_PATH)) as fd:
        tree = Attached(fd, (syscalls.mount_of(fd)[0],), Undo(), is_layer=True)
        loadercache.merge(tree, CACHE, CONFIGURATION, FOLDERS, (OURS,))
    return {Entry(*row[:3]) for row in parse(tree.data or (root / CACHE[1:]).read_bytes()).entries}


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def truncated(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


# A file of 2 GiB takes an image no room, and would take a start that much memory.
NO_CACHES: dict[str, Callable[[Path], object]] = {
    "a fifo": os.mkfifo,
    "a socket": bound_socket,
    "a folder": Path.mkdir,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "nothing": lambda path: None,
    "an empty file": Path.touch,
    "a large file": lambda path: truncated(path, ldcache.LARGEST + 1),
    "a file of 2 GiB": lambda path: truncated(path, 2 << 30),
}


@pytest.fixture()
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds of files that are opened by more than O_PATH."""
    kinds: list[int] = []

    def recorded(fd: int) -> int:
        kinds.append(os.fstat(fd).st_mode & 0o170000)
        return descriptors.reopened(fd)

    monkeypatch.setattr(loadercache, "reopened", recorded)
    return kinds


@pytest.mark.parametrize("make", NO_CACHES.values(), ids=[*NO_CACHES])
def test_only_a_caches_file_is_opened(tmp_path: Path, opened: list[int], make: Callable[[Path], object]) -> None:
    """Devices are tests/hostile/sources.py's."""
    (tmp_path / "etc").mkdir()
    make(tmp_path / CACHE[1:])
    assert merged(tmp_path) == {OURS}
    assert opened == []


def test_a_regular_file_is_opened_once_and_merged(tmp_path: Path, opened: list[int]) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/real").write_bytes(ldcache.merge(None, [THEIRS]))
    (tmp_path / CACHE[1:]).symlink_to("/etc/real")
    assert merged(tmp_path) == {OURS, THEIRS}
    assert opened == [0o100000] and (tmp_path / CACHE[1:]).is_symlink()
    (tmp_path / "etc/real").write_bytes(bytes(ldcache.LARGEST))
    assert merged(tmp_path) == {OURS}
    assert len(opened) == 2


# --- how an image is laid out: its loader's library folders, a driver that lies there, its X server's modules

FEDORAS, DEBIANS = "/usr/lib64/xorg/modules", "/usr/lib/xorg/modules"


def layout_of(root: Path, *, draws: bool = True) -> Layout:
    with closing(os.open(root, os.O_PATH)) as fd:
        return layout.layout_of(fd, None, user_namespace=False, makes_nodes=True, compat="", draws=draws)


@pytest.mark.parametrize(
    ("folders", "found"),
    [((DEBIANS,), DEBIANS), ((FEDORAS,), FEDORAS), ((DEBIANS, FEDORAS), FEDORAS), (("/usr/lib/xorg",), "")],
)
def test_an_x_servers_modules_are_looked_for_where_servers_are_built_to_look(
    tmp_path: Path, folders: tuple[str, ...], found: str
) -> None:
    for folder in folders:
        (tmp_path / folder[1:]).mkdir(parents=True)
    assert layout_of(tmp_path).xorg_folder == found
    assert layout_of(tmp_path, draws=False).xorg_folder == ""


@pytest.mark.parametrize(
    ("path", "has_driver"),
    [
        ("/usr/lib64/libcuda.so.1", True),
        ("/usr/lib64/libnvidia-ml.so.1", True),
        ("/usr/lib64/libcuda.so", False),
        ("/usr/local/cuda/lib64/stubs/libcuda.so.1", False),
    ],
)
def test_a_driver_in_the_library_folder_is_known_by_two_libraries(tmp_path: Path, path: str, has_driver: bool) -> None:
    hosts.plant(tmp_path, "/usr/lib64/libc.so.6", "")
    # What is left of an earlier start is empty.
    hosts.plant(tmp_path, path, "")
    assert layout_of(tmp_path).has_driver == has_driver


@pytest.mark.parametrize(("is_arch", "twins"), [(True, "/usr/lib32"), (False, "/usr/lib")])
def test_the_folder_of_32_bit_libraries_is_not_that_of_64_bit_ones(tmp_path: Path, is_arch: bool, twins: str) -> None:
    """In /usr/lib of Arch's images, to which lib64 is a link, a 32-bit file would lie over a 64-bit one."""
    hosts.plant(tmp_path, f"/usr/{'lib' if is_arch else 'lib64'}/libc.so.6", "")
    if is_arch:
        (tmp_path / "usr/lib64").symlink_to("lib")
    found = layout_of(tmp_path)
    assert found.library_folder == "/usr/lib64"
    assert found.library_folder_32 == (twins if platform.machine() == "x86_64" else "")
