# SPDX-License-Identifier: Apache-2.0
"""`volume`: copies of the driver in a folder that is ours, exchanged whole, and removed only where it has our mark."""

from __future__ import annotations

import errno
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.setup import drivervolume
from tests.unit import hosts
from tests.unit.hosts import LIBRARY_FOLDER, VERSION
from tests.unit.program import Program

NEWER = "590.10.01"


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    hosts.host(tmp_path)
    (tmp_path / "var/lib").mkdir()
    (tmp_path / "usr/bin/nvidia-smi").write_text("smi")
    (tmp_path / "usr/bin/nvidia-smi").chmod(0o4755)
    return tmp_path


def command(tree: Path, word: str) -> list[object]:
    (tree / "hook.conf").touch()
    config = ["--config", tree / "hook.conf"] if word == "create" else []
    return ["volume", word, "--host-root", tree, *config]


def volume(tree: Path) -> Path:
    return tree / "var/lib/oci-gpu-hook/volume"


def whole(folder: Path) -> dict[str, object]:
    """All that lies below a folder: contents, texts of links, modes."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
    return found


def changes(folder: Path) -> list[tuple[object, ...]]:
    """What is another for each thing below a folder once it has been written to."""
    found = [(path, os.lstat(path)) for path in sorted(folder.rglob("*"))]
    return [(path, status.st_ino, status.st_mtime_ns, status.st_ctime_ns) for path, status in found]


def upgrade(tree: Path, version: str = NEWER) -> None:
    """Another driver in the place of the one that is there."""
    for path in (tree / LIBRARY_FOLDER).glob(f"*.{VERSION}"):
        path.unlink()
    hosts.host(tree, version=version)
    for name, soname in hosts.SONAMES.items():
        hosts.plant(tree, f"{LIBRARY_FOLDER}/{name}.so.{version}", hosts.elf(soname))


def test_each_file_lies_where_old_images_look_for_it(program: Program, tree: Path) -> None:
    hosts.plant_library(tree, f"usr/lib/i386-linux-gnu/libcuda.so.{VERSION}", "libcuda.so.1", "i386")
    old = os.umask(0o077)
    try:
        printed = program(*command(tree, "create"))
    finally:
        os.umask(old)
    assert shlex.split(printed)[-2:] == ["device=/var/lib/oci-gpu-hook/volume", f"nvidia_driver_{VERSION}"]
    top = volume(tree)
    source = tree / LIBRARY_FOLDER / f"libcuda.so.{VERSION}"
    assert (top / "lib64/libcuda.so.1").read_bytes() == source.read_bytes()
    assert os.readlink(top / "lib64/libcuda.so") == f"libcuda.so.{VERSION}"
    assert sorted(os.listdir(top / "bin")) == ["nvidia-cuda-mps-control", "nvidia-persistenced", "nvidia-smi"]
    if os.uname().machine == "x86_64":
        assert sorted(os.listdir(top / "lib")) == ["libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"]
    # All may read them, whatever the umask was, and no set-user-id bit was copied.
    assert {path.stat().st_mode & 0o7777 for path in top.rglob("*") if path.is_dir()} == {0o755}
    assert (top / "bin/nvidia-smi").stat().st_mode & 0o7777 == 0o755
    assert {path.stat().st_mode & 0o7777 for path in (top / "lib64").iterdir()} == {0o644}
    assert top.stat().st_mode & 0o7777 == top.parent.stat().st_mode & 0o7777 == 0o755


def test_nothing_of_the_host_can_be_reached_through_it(program: Program, tree: Path) -> None:
    program(*command(tree, "create"))
    hosts_own = {
        (path.stat().st_dev, path.stat().st_ino)
        for path in tree.rglob("*")
        if path.is_file() and volume(tree) not in path.parents
    }
    for path in volume(tree).rglob("*"):
        if path.is_symlink():
            assert not os.readlink(path).startswith(("/", ".."))
        elif path.is_file():
            assert path.stat().st_nlink == 1
            assert (path.stat().st_dev, path.stat().st_ino) not in hosts_own


def test_a_second_time_nothing_changes(program: Program, tree: Path) -> None:
    program(*command(tree, "create"))
    before = changes(volume(tree))
    program(*command(tree, "create"))
    assert "has already the files of" in program.err
    assert changes(volume(tree)) == before


def test_refresh_exchanges_the_copies_and_keeps_the_folder(program: Program, tree: Path) -> None:
    """A container has the folder itself mounted: it must see the new driver."""
    program(*command(tree, "create"))
    mounted = os.open(volume(tree), os.O_PATH)
    upgrade(tree)
    (tree / "run").mkdir(exist_ok=True)
    refresh = ["inventory", "refresh", "--host-root", tree, "--config", tree / "hook.conf"]
    program(*refresh, "--nvml-timeout", 0)
    assert "brought /var/lib/oci-gpu-hook/volume up to date" in program.err
    seen = Path(f"/proc/self/fd/{mounted}")
    assert os.readlink(seen / "lib64/libcuda.so.1") == f"libcuda.so.{NEWER}"
    assert not (seen / f"lib64/libcuda.so.{VERSION}").exists()
    hidden = [name for name in os.listdir(seen) if name.startswith(".")]
    assert sorted(hidden) == [f".{NEWER}-2"]
    program(*refresh, "--nvml-timeout", 0)
    assert program.err == ""
    os.close(mounted)


def test_refresh_makes_no_volume_and_minds_no_others(program: Program, tree: Path) -> None:
    (tree / "run").mkdir(exist_ok=True)
    refresh = ["inventory", "refresh", "--host-root", tree, "--nvml-timeout", 0]
    program(*refresh)
    assert not (tree / "var/lib/oci-gpu-hook").exists()
    volume(tree).mkdir(parents=True)
    program(*refresh)
    assert program.err == "" and os.listdir(volume(tree)) == []


def test_half_a_driver_changes_nothing(program: Program, tree: Path) -> None:
    """In the middle of an upgrade the module still is the old one: so must the copies be."""
    program(*command(tree, "create"))
    before = whole(volume(tree))
    (tree / LIBRARY_FOLDER / f"libcuda.so.{VERSION}").unlink()
    assert "lacks libcuda" in program.mistake(6, *command(tree, "create"))
    assert whole(volume(tree)) == before


def test_a_copy_that_is_gone_or_half_made_is_made_again(program: Program, tree: Path) -> None:
    program(*command(tree, "create"))
    top = volume(tree)
    (top / ".590.1-7").mkdir()
    (top / "current").unlink()
    hosts.plant(top.parent, ".volume.7/lib/x", "")
    program(*command(tree, "create"))
    assert (top / "bin/nvidia-smi").read_text() == "smi"
    assert sorted(os.listdir(top)) == [
        f".{VERSION}-2", "bin", "current", "lib", "lib64",
    ]  # fmt: skip
    assert sorted(os.listdir(top.parent)) == ["volume", "volume.mark"]


def test_copies_are_made_where_no_container_sees_them(
    program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that could write to the volume could lead whoever makes a folder there, and files in it, elsewhere."""
    program(*command(tree, "create"))
    upgrade(tree)
    before = whole(volume(tree))
    real, seen = drivervolume._copy, []

    def copy(*given: Any) -> None:
        seen.append(whole(volume(tree)) == before)
        real(*given)

    monkeypatch.setattr(drivervolume, "_copy", copy)
    program(*command(tree, "create"))
    assert seen and all(seen)


@pytest.mark.parametrize("text", ["..", ".", "/etc", ".580.65.06-1/bin", ".nothing-1"])
def test_a_link_that_a_container_has_made_leads_nobody_elsewhere(program: Program, tree: Path, text: str) -> None:
    program(*command(tree, "create"))
    expected = {name.replace("-1", "-2", 1) for name in whole(volume(tree))}
    (volume(tree) / "current").unlink()
    (volume(tree) / "current").symlink_to(text)
    (volume(tree) / ".link").symlink_to("/etc")
    hosts.plant(tree, "etc/precious", "x")
    program(*command(tree, "create"))
    assert (volume(tree) / "bin/nvidia-smi").read_text() == "smi"
    assert set(whole(volume(tree))) == expected
    assert (tree / "etc/precious").exists()


def test_what_a_container_says_of_the_driver_is_no_word_of_a_command(program: Program, tree: Path) -> None:
    """It may write to the volume: to a mark in it, as old ones had it, and into what is root's."""
    program(*command(tree, "create"))
    mark = json.loads((volume(tree).parent / "volume.mark").read_text())
    lies = {**mark, "named": "1 --privileged -v /:/host"}
    hosts.plant(volume(tree), ".oci-gpu-hook", json.dumps(lies))
    hosts.plant(volume(tree), "volume.mark", json.dumps(lies))
    root = HostRoot(str(tree))
    newer = hosts.surveyed(root)._replace(driver_version=NEWER)
    assert drivervolume.name(root, newer) == f"nvidia_driver_{VERSION}"
    hosts.plant(volume(tree).parent, "volume.mark", json.dumps(lies))
    assert drivervolume.name(root, newer) == f"nvidia_driver_{NEWER}"


def test_a_folder_of_3000_folders_is_removed(program: Program, tree: Path) -> None:
    """Made by a container; what it has hidden below is not followed, and goes with it."""
    program(*command(tree, "create"))
    hosts.plant(tree, "etc/precious", "x")
    deep = os.open(volume(tree), os.O_RDONLY)
    for _ in range(3000):
        os.mkdir(".deep", dir_fd=deep)
        os.symlink(tree / "etc", "link", dir_fd=deep) if "link" not in os.listdir(deep) else None
        below = os.open(".deep", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    upgrade(tree)
    program(*command(tree, "create"))
    assert ".deep" not in os.listdir(volume(tree))
    assert sorted(os.listdir(volume(tree).parent)) == ["volume", "volume.mark"]
    assert (tree / "etc/precious").exists()


def test_too_many_names_are_a_sentence(program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(*command(tree, "create"))
    monkeypatch.setattr(drivervolume, "_MOST_NAMES", 100)
    for number in range(100):
        hosts.plant(volume(tree), f".x/{number}", "")
    upgrade(tree)
    assert "more than 100 names are in it" in program.mistake(7, *command(tree, "create"))


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling", "mark", "open"])
@pytest.mark.parametrize("word", ["create", "remove"])
def test_what_is_not_ours_is_never_touched(program: Program, tree: Path, word: str, kind: str) -> None:
    top = volume(tree)
    if kind == "open":
        program(*command(tree, "create"))
        top.chmod(0o777)
    elif kind in ("link", "dangling"):
        top.parent.mkdir()
        if kind == "link":
            program(*command(tree, "create"))
            top.rename(top.parent / "other")
        top.symlink_to("other")
    elif kind == "file":
        hosts.plant(top.parent, "volume", "x")
    else:
        hosts.plant(top, "precious", "x")
        if kind == "mark":
            mark = {"format": "driver volume of oci-gpu-hook 1", "folder": 1}
            hosts.plant(top.parent, "volume.mark", json.dumps(mark))
    before = whole(top.parent)
    assert "is there and is not ours: " in program.mistake(4, *command(tree, word))
    assert whole(top.parent) == before


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("call", ["copy_file_range", "mkdir", "symlink", "rename", "fsync", "fchmod", "open"])
def test_a_full_disk_leaves_all_as_it_was(
    program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch, call: str, there: bool
) -> None:
    (tree / "var/lib/oci-gpu-hook").mkdir()
    (tree / "var/lib/oci-gpu-hook").chmod(0o755)
    if there:
        program(*command(tree, "create"))
        upgrade(tree)
    before = whole(tree / "var/lib")
    found = hosts.surveyed(HostRoot(str(tree)))
    real, calls = getattr(os, call), []

    def full(*given: Any, **options: Any) -> Any:
        # A file that is made, and not one that is read.
        if call != "open" or (len(given) > 1 and given[1] & os.O_CREAT):
            calls.append(given)
            # Not the first: then something is there to be left.
            if len(calls) == 2 or (call == "mkdir" and calls):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(ApplyError, match=r"No space left on device \(make room on the file system of /var/lib"):
            drivervolume.make(HostRoot(str(tree)), found)
    after = whole(tree / "var/lib")
    # The mark may say already what the copies will be of: they are made at the next run then.
    for state in (before, after):
        state.pop("oci-gpu-hook/volume.mark", None)
    assert after == before
    program(*command(tree, "create"))
    newest = NEWER if there else VERSION
    assert os.readlink(volume(tree) / "lib64/libcuda.so") == f"libcuda.so.{newest}"


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_the_kernel_does_not_copy_python_does(
    program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def cannot(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    program(*command(tree, "create"))
    expected = (volume(tree) / f"lib64/libcuda.so.{VERSION}").read_bytes()
    program(*command(tree, "remove"))
    monkeypatch.setattr(os, "copy_file_range", cannot)
    program(*command(tree, "create"))
    assert (volume(tree) / f"lib64/libcuda.so.{VERSION}").read_bytes() == expected


def test_a_driver_that_others_could_write_to_is_not_copied(program: Program, tree: Path) -> None:
    (tree / "usr/bin").chmod(0o777)
    sentence = program.mistake(4, *command(tree, "create"))
    assert "others than root may write to" in sentence
    assert not (tree / "var/lib/oci-gpu-hook").exists()


def test_remove_takes_all_of_it(program: Program, tree: Path) -> None:
    program(*command(tree, "create"))
    assert program(*command(tree, "remove")) == "removed /var/lib/oci-gpu-hook/volume\n"
    assert not (tree / "var/lib/oci-gpu-hook").exists()
    assert program(*command(tree, "remove")) == "there is no /var/lib/oci-gpu-hook/volume\n"


def test_containers_may_read_the_copies_under_selinux(
    program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.plant(tree, "sys/fs/selinux/enforce", "1")
    labelled: list[bytes] = []
    volumes_own = b"system_u:object_r:container_ro_file_t:s0\0"

    def setxattr(path: str, name: str, value: bytes, **_: Any) -> None:
        labelled.append(value)
        if "libcuda" in os.path.realpath(path):
            raise OSError(errno.ENOTSUP, "no labels here")

    monkeypatch.setattr(os, "setxattr", setxattr)
    monkeypatch.setattr(os, "getxattr", lambda *_: volumes_own)
    program(*command(tree, "create"))
    assert {*labelled} == {volumes_own}
    # Each name in it, and the folder itself.
    assert len(labelled) == len(whole(volume(tree))) + 1
    labelled.clear()
    program(*command(tree, "create"))
    assert labelled == []
    # As restorecon leaves it, where the file contexts do not name it.
    monkeypatch.setattr(os, "getxattr", lambda *_: b"system_u:object_r:var_lib_t:s0\0")
    program(*command(tree, "create"))
    assert len(labelled) == len(whole(volume(tree))) + 1


def test_the_name_of_dockers_volume_outlives_an_upgrade(program: Program, tree: Path) -> None:
    """Docker makes an empty volume of a name that it does not know."""
    named = f"nvidia_driver_{VERSION}"
    assert program(*command(tree, "create")).rstrip().endswith(named)
    upgrade(tree)
    assert program(*command(tree, "create")).rstrip().endswith(named)
    said = program("flags", "docker", "--way", "driver-volume", "--host-root", str(tree))
    assert said.startswith(f"--volume={named}:")
    program(*command(tree, "remove"))
    assert program(*command(tree, "create")).rstrip().endswith(f"nvidia_driver_{NEWER}")


@pytest.mark.parametrize("name", ["bin", "lib", "lib64"])
def test_a_link_that_is_gone_is_made_again(program: Program, tree: Path, name: str) -> None:
    program(*command(tree, "create"))
    before = whole(volume(tree))
    (volume(tree) / name).unlink()
    program(*command(tree, "create"))
    assert os.readlink(volume(tree) / name) == f"current/{name}"
    assert len(whole(volume(tree))) == len(before)
