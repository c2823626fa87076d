# SPDX-License-Identifier: Apache-2.0
"""Who finds libcuda, whatever cache the image has, and after an ldconfig in the container: apt-get runs one.

The roots are overlays, as engines make them, unless a test says otherwise.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Outcome, on_node, run, start

CACHE = "etc/ld.so.cache"
FOUND = ["cuInit 0, 1 devices", "/usr/local/nvidia/lib64/libcuda.so.1"]
LISTED = "ldconfig -p | grep -o '[^ ]*/libcuda.so.1$'"
SHOW = ("/bin/sh", "-c", f"/app/cuda; {LISTED}; ldconfig && echo done; /app/cuda; {LISTED}; ls -A /etc")


def kept(root: Path) -> dict[str, bytes]:
    """Each file of /etc with its content, links by their text."""
    return {
        str(path.relative_to(root)): os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        for path in sorted((root / "etc").rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def layered(made: Bundle, folder: Path) -> str:
    """The shell line that mounts the bundle's root as an overlay, whose upper layer is `folder`."""
    image = made.rootfs.rename(made.path / "image")
    made.rootfs.mkdir()
    for name in ("", "work"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "upper").mkdir(exist_ok=True)
    return f"mount -t overlay -o lowerdir={image},upperdir={folder}/upper,workdir={folder}/work none {made.rootfs}\n"


def start_layered(made: Bundle, folder: Path, runtime: str = "runc") -> Outcome:
    return on_node(layered(made, folder) + start(runtime, made))


# What the image has, made in its /etc.
CACHES = {"ldconfig's": ":", "empty": ": >ld.so.cache", "missing": "rm ld.so.cache"}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_ldconfig_keeps_the_driver(bundle: Maker, tmp_path: Path, runtime: str, cache: str) -> None:
    made = bundle("debian").asks("0").runs(*SHOW).changed(CACHES[cache], "etc")
    done = start_layered(made, tmp_path, runtime)
    assert done.out.splitlines()[:5] == [*FOUND, "done", *FOUND], done.out + done.err
    # What ldconfig and we have for a moment is gone.
    assert {name for name in done.out.split() if name.endswith("~") or name.startswith(".")} == set()


def test_another_driver_replaces_its_names_alone(bundle: Maker, tmp_path: Path) -> None:
    made = bundle("debian").asks("0", "all").runs("/app/cuda")
    image, seen = kept(made.rootfs), []
    mount = layered(made, tmp_path)
    for description in ("h100x8", "h100x8", "v100", "h100x8"):
        assert on_node(mount + start("runc", made), description=description).code == 0
        seen.append(kept(tmp_path / "upper"))
    first, second, older, again = seen
    assert first == second
    assert b"/usr/local/nvidia/" in first[CACHE] and b"/usr/local/nvidia/" not in image[CACHE]
    made.runs("/bin/sh", "-c", "ldconfig -p")
    made.config["process"]["env"] = [it for it in made.config["process"]["env"] if not it.startswith("NVIDIA_VIS")]
    last = on_node(mount + start("runc", made))
    names = [line.split()[0] for line in last.out.splitlines() if "/usr/local/nvidia/" in line]
    assert len(names) > 20 and "535" not in " ".join(names)
    assert older != first == again
    changed = {name for name, data in first.items() if image.get(name) != data}
    links = {name for name, data in first.items() if data.startswith(b"/usr/local/nvidia/")}
    assert changed - links == {CACHE, "etc/ld.so.conf.d/000-oci-gpu-hook.conf"}
    assert first["etc/ld.so.conf.d/000-oci-gpu-hook.conf"] == b""


UNWRITTEN = {
    "garbage": "head -c 5000 /dev/zero | tr '\\0' x >ld.so.cache",
    "cut off": "truncate -s 100 ld.so.cache",
    "a link": "mv ld.so.cache real; ln -s real ld.so.cache",
    "a fifo": "rm ld.so.cache; mkfifo ld.so.cache",
    **dict.fromkeys(("rw volume", "ro volume", "tmpfs"), ":"),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_is_no_own_file_is_mounted_over(bundle: Maker, tmp_path: Path, case: str) -> None:
    made = bundle("debian").asks("0", "utility").changed(UNWRITTEN[case], "etc")
    if "volume" in case:
        made.mounts(shutil.copytree(made.rootfs / "etc", tmp_path / "etc", symlinks=True), "/etc", case[:2])
    elif case == "tmpfs":
        made.config["mounts"].append({"type": "tmpfs", "source": "tmpfs", "destination": "/etc"})
    before = kept(made.rootfs), kept(tmp_path)
    (tmp_path / "layer").mkdir()
    show = f"nvidia-smi -L; {LISTED.replace('cuda', 'nvidia-ml')}"
    done = start_layered(made.runs("/bin/sh", "-c", show), tmp_path / "layer", "crun")
    assert done.out.splitlines()[1:] == ["/usr/local/nvidia/lib64/libnvidia-ml.so.1"], done.out + done.err
    assert (kept(made.path / "image"), kept(tmp_path)) == before
    assert {*kept(tmp_path / "layer/upper")} <= {"etc/ld.so.conf.d/000-oci-gpu-hook.conf"}


@pytest.mark.parametrize("options", [("rw",), ("ro",)])
def test_usr_local_is_left_alone(bundle: Maker, tmp_path: Path, options: tuple[str, ...]) -> None:
    local = tmp_path / "local"
    (local / "bin").mkdir(parents=True)
    made = bundle("debian").asks("0", "compute,utility").mounts(local, "/usr/local", *options)
    done = run("runc", "v2", made.runs("/bin/sh", "-c", f"/app/cuda; nvidia-smi -L; {LISTED}"))
    first, _, last = done.out.splitlines()
    assert (first, last) == (FOUND[0], "/usr/lib/oci-gpu-hook/nvidia/lib64/libcuda.so.1"), done.out + done.err
    assert [path.name for path in local.rglob("*")] == ["bin"]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_root_that_others_may_have_is_left_alone(bundle: Maker, runtime: str) -> None:
    """A folder of the host's: both find the driver, each what it asked for, and the image's cache is as it was."""
    made = bundle("debian").asks("0").runs("/bin/sh", "-c", f"/app/cuda; {LISTED}")
    image = kept(made.rootfs)
    done = run(runtime, "v2", made)
    assert done.out.splitlines() == FOUND, done.out + done.err
    assert kept(made.rootfs)[CACHE] == image[CACHE]


def test_a_loader_that_reads_no_cache_finds_it_by_the_folder_that_it_names(bundle: Maker) -> None:
    """As the images of Nix: libc is in no usual place, and LD_LIBRARY_PATH names /usr/lib64."""
    made = bundle("debian").asks("0")
    libraries = made.rootfs / "usr/lib" / roots.MULTIARCH
    libraries.rename(made.rootfs / "nix")
    (made.rootfs / "etc/debian_version").unlink()
    (made.rootfs / CACHE).unlink()
    for name in ("usr/lib64", "lib64"):
        place = made.rootfs / name
        place.unlink() if place.is_symlink() else shutil.copytree(place, made.rootfs / "nix", dirs_exist_ok=True)
    shutil.rmtree(made.rootfs / "usr/lib64")
    loader = next((made.rootfs / "nix").glob("ld-linux-*"))
    line = f"LD_LIBRARY_PATH=/nix:/usr/lib64 /nix/{loader.name} --inhibit-cache /app/cuda"
    done = run("runc", "v2", made.runs("/bin/sh", "-c", line))
    assert done.out.splitlines() == FOUND[:1], done.out + done.err
    assert os.readlink(made.rootfs / "usr/lib64") == "/usr/local/nvidia/lib64"
