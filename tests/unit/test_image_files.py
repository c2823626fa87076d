# SPDX-License-Identifier: Apache-2.0
"""Of an image only regular files are opened: a name where a file should be may be a device of the host's, or a fifo."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_gpu_hook.changes import contextset, loadercache
from oci_gpu_hook.changes.tree import Tree, Undo
from oci_gpu_hook.container import devicecgroup, layout
from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import descriptors, mountinfo, procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.mountinfo import MountLine
from tests.unit import hosts
from tests.unit.bounded import MIB, peak
from tests.unit.test_ldcache import parse

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
        return layout.layout_of(fd, None, user_namespace=False, compat="", draws=draws)


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


# --- what the kernel, the host and an image show is read some at a time, however much it is

LINE = "{} 1 0:1 / /a{} rw shared:7 - tmpfs none rw,context=x\n"
FIRST = "11 1 0:1 / /a rw,noexec shared:42 master:1 - ext4 /dev/sda1 rw,a - b\n"


def cut(file: Path, text: str | bytes, size: int) -> list[bytes]:
    """The text in pieces of whole lines, if read(2) gives so many bytes at a time."""
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(procfile, "_PIECE", size)
        return [*procfile.pieces(str(file))]


@pytest.mark.parametrize("size", [7, 4096, 1 << 20])
def test_a_mount_is_found_wherever_its_line_is(tmp_path: Path, size: int) -> None:
    lines = [LINE.format(number, "x" * (number % 300)) for number in range(100, 3_000)]
    file = tmp_path / "mountinfo"
    for place in (0, 1, 700, len(lines)):
        pieces = cut(file, "".join([*lines[:place], FIRST, *lines[place:]]), size)
        found = mountinfo.mount(pieces, 11)
        assert found == MountLine(11, "0:1", "/", "/a", ("shared:42", "master:1"), "ext4", "rw,a - b")
        assert mountinfo.mount(pieces, 1) is None
    assert mountinfo.mount(cut(file, FIRST.rstrip("\n"), size), 11) == found
    for short in (b"7 -", b"7", b""):
        assert mountinfo.mount(cut(file, short, size), 7) is None


@pytest.mark.parametrize("size", [1, 5, 4096])
def test_a_device_is_found_by_its_own_field_alone(tmp_path: Path, size: int) -> None:
    text = b"1 0 0:5 / / rw - fuse 0:7 rw\n2 1 0:6 / /a rw - tmpfs none rw\n7 -\n"
    pieces = cut(tmp_path / "mountinfo", text, size)
    assert mountinfo.mounted(pieces, ("0:5", "0:6", "0:7", "0:8")) == {"0:5", "0:6"}
    assert mountinfo.mounted(pieces, ()) == set()


def test_a_hundred_thousand_mounts_are_never_held(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text("".join([LINE.format(number, "") for number in range(100, 100_100)]))
    assert file.stat().st_size > 4 * MIB
    assert peak(lambda: mountinfo.mounted(procfile.pieces(str(file)), ["0:1", "0:2"])) < MIB // 8
    assert peak(lambda: mountinfo.mount(procfile.pieces(str(file)), 99)) < MIB // 8
    data = procfile.read_whole(str(file))
    assert peak(lambda: procfile.read_whole(str(file))) < 3 * len(data)
    assert peak(lambda: sum([1 for _ in devicecgroup.lines(data)])) < 5 * len(data)
    with file.open("ab") as larger:
        larger.truncate(25 * MIB)
    with pytest.raises(OSError, match="File too large"):
        procfile.read_whole(str(file))


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_only_a_newline_ends_a_line(size: int) -> None:
    text = f"{'x' * size}\na\x0c\u2028b\r\n\né\n"
    assert list(devicecgroup.lines(text.encode() + b"no end")) == text.split("\n")[:-1]


def test_of_a_folder_with_too_many_names_not_all_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image's folder of newer CUDA libraries, and a pod's /dev/shm."""
    for number in range(2_000):
        (tmp_path / f"name-{number}").touch()
    monkeypatch.setattr(layout, "_MAX_NAMES", 20)
    monkeypatch.setattr(contextset, "_MAX_FILES", 20)
    with closing(os.open(tmp_path, os.O_PATH)) as fd:
        assert layout.names(fd, "/") == ()
        assert len(contextset._names(fd)) == 21
        for act in (lambda: layout.names(fd, "/"), lambda: contextset._names(fd)):
            assert peak(act) < 30_000


def test_a_file_of_the_host_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    root = HostRoot(str(tmp_path))
    for size, there in ((8 * MIB, True), (8 * MIB + 1, False)):
        with (tmp_path / "file").open("wb") as written:
            written.truncate(size)
        assert (root.read("/file") is not None) is there
    assert peak(lambda: root.read("/file")) < 20 * MIB
