# SPDX-License-Identifier: Apache-2.0
"""Volumes of the host, mounts below them, clones of the host's folders, the root itself: what is not its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.hostile.scene import BAD_STATE, BOTH, FUSE, Attack, Scene
from tests.hostile.sources import PIPES, pipes
from tests.integration import roots

IN_VOLUME = "lies in a volume of the host"
IMAGES_DRIVER = "mkdir -p usr/local/nvidia/lib64; echo no library >usr/local/nvidia/lib64/libcuda.so.1"
HIDDEN = "/usr/local/nvidia: what the container has there is hidden"


def volume(destination: str, options: tuple[str, ...], scene: Scene) -> None:
    scene.bundle.mounts(scene.volume, destination, *options)


def over_own(destination: str, scene: Scene) -> None:
    """A volume over a tmpfs that the runtime made: whose path is the container's own no longer."""
    tmpfs = {"type": "tmpfs", "source": "tmpfs", "destination": "/usr"}
    scene.config["mounts"].append(tmpfs)
    scene.bundle.mounts(scene.volume, destination, "rw")
    if destination == "/data":
        scene.link("data", "/usr")
        (scene.root / "usr").mkdir(parents=True, exist_ok=True)


def below_own(scene: Scene) -> None:
    """A tmpfs of the container's own over a volume is its own, and things are made there."""
    for name in ("local", "lib"):
        (scene.volume / name).mkdir()
    scene.bundle.mounts(scene.volume, "/usr")
    scene.config["mounts"].append({"type": "tmpfs", "source": "tmpfs", "destination": "/usr/lib"})
    scene.probe = "find /usr/lib -name 'libcuda.so*' | grep -q . || echo no driver"
    scene.escaped = lambda out: ["the container has no driver"] * ("no driver" in out)


def below_a_volume(option: str, read_only: bool, scene: Scene) -> None:
    """Row 3: the tmpfs of /scratch was made where the volume hides it, and its path leads to a mount of the host's."""
    inner = scene.volume / "sub"
    inner.mkdir()
    scene.mount("-t", "tmpfs", "none", inner)
    (inner / "usr").mkdir()
    tmpfs = {"type": "tmpfs", "source": "tmpfs", "destination": "/scratch"}
    scene.config["mounts"].append(tmpfs)
    scene.bundle.mounts(scene.volume, "/srv/data", option)
    scene.config["root"]["readonly"] = read_only
    # What the image has there is hidden once the volume is mounted.
    (scene.root / "srv/data/sub").mkdir(parents=True)
    scene.link("scratch", "srv/data/sub")
    scene.link("usr", "scratch/usr")


def shared(scene: Scene) -> None:
    """A volume that shares its mounts with the host: what is mounted in it shows there."""
    scene.mount("--bind", scene.volume, scene.volume)
    subprocess.run(["mount", "--make-shared", str(scene.volume)], check=True)
    (scene.volume / "nvidia-smi").write_text("the volume's own")
    scene.bundle.mounts(scene.volume, "/usr/bin", "rshared")
    scene.config["linux"]["rootfsPropagation"] = "rshared"


def hosts_dev(scene: Scene) -> None:
    """The host's own /dev, which lacks a node that the container needs."""
    scene.bundle.without("/dev").mounts("/dev", "/dev")
    for path in (Path("/dev/nvidia-uvm"), Path("/dev/nvidia-uvm-tools")):
        status = path.stat()
        path.unlink()
        scene.later(os.mknod, path, status.st_mode, status.st_rdev)
        scene.later(path.unlink, True)


def clone(path: str, scene: Scene) -> None:
    """Row 2: a path of the image leads below a folder of the host's that is mounted for the container."""
    pipes(scene)
    # One that the image does not have is made, and the descriptor of what was made leads below the clone.
    (scene.root / PIPES[1:]).mkdir(parents=True)
    scene.link(path, f"{PIPES}/planted" if path == "etc/ld.so.cache" else PIPES)


def firmware(scene: Scene) -> None:
    """The same with the firmware's folder."""
    version = next(Path("/lib/firmware/nvidia").iterdir()).name
    scene.link("etc/ld.so.cache", f"/lib/firmware/nvidia/{version}/planted")


def over_the_root(scene: Scene) -> None:
    """Row 4: the destination of a volume is the root."""
    for name in ("dev", "proc", "sys", "etc", "usr"):
        (scene.volume / name).mkdir()
    scene.bundle.mounts(scene.volume, "/data")
    scene.link("data", "/")


def queues(scene: Scene) -> None:
    """Row 9: with the host's IPC namespace the filesystem that the runtime mounts is the host's queues."""
    namespaces = scene.config["linux"]["namespaces"]
    namespaces.remove({"type": "ipc"})
    scene.link("usr/bin", "/dev/mqueue")


def moved_parent(scene: Scene) -> None:
    """Row 5: who owns the folder above the root leads its path elsewhere, behind the runtime's back."""
    above, aside = scene.owned(), scene.path / "aside"
    scene.before_hook.append(f"mv {above} {aside} && ln -s {scene.host} {above}")
    scene.after_hook.append(f"rm -f {above}; mv {aside} {above}")
    scene.later(_back, above, aside)


def _back(above: Path, aside: Path) -> None:
    if aside.exists():
        above.unlink()
        aside.rename(above)


def hung(path: str, hangs: str, scene: Scene, *, name: str = "") -> None:
    """Where the hook looks at a file or mounts one: a server that does not answer.  name: of the file in a folder."""
    point, place = scene.path / "hung", scene.root / path.format(libraries=scene.libraries)[1:]
    point.mkdir()
    place.parent.mkdir(parents=True, exist_ok=True)
    if name:
        place.mkdir(exist_ok=True)
    elif not place.exists():
        place.touch()
    line = [sys.executable, FUSE, str(point), "allow_other", f"hangs={hangs}", f"only={name}"]
    server = subprocess.Popen(line, stdout=subprocess.PIPE)
    scene.processes.add(server.pid)
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    scene.later(server.wait)
    scene.later(server.kill)
    scene.later(subprocess.run, ["umount", "-l", str(point)])
    scene.bundle.mounts(point if name else point / "file", f"/{place.relative_to(scene.root)}", "rw")


def hung_behind_a_link(hangs: str, scene: Scene) -> None:
    """The image's own folder for CUDA's newer libraries, whose libcuda is a link into such a volume."""
    newer = "libcuda.so.999.1.1"
    hung("/hung", hangs, scene, name=newer)
    scene.link(f"usr/local/cuda/compat/{newer}", f"/hung/{newer}")


def in_the_way(make: Callable[[Path], object], path: str, scene: Scene) -> None:
    """What is no folder, where the driver's folder or one above it belongs."""
    place = scene.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        place.rename(place.with_name("aside"))
    make(place)


def socket_at(place: Path) -> None:
    """Its own path may be too long for a socket."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{os.open(place.parent, os.O_PATH)}/{place.name}")


ATTACKS = [
    *[
        Attack(f"a-hung-volume-{hangs}-at-{path.rpartition('/')[2]}", "row 14",
               partial(hung, path, hangs, name=name), root, codes=(code,), says=says, bites=())
        for hangs in ("opening", "asked")
        for path, name, root, code, says in (
            ("/etc/ld.so.cache", "", "debian", 0, ""),
            ("/{libraries}/libcuda.so.1", "", "debian", 0, ""),
            ("/usr/bin/nvidia-smi", "", "busybox", 0, ""),
            ("/run/nvidia-persistenced/socket", "", "busybox", 0, ""),
            ("/dev/nvidiactl", "", "busybox", 7, "is not a character device"),
            ("/usr/local/nvidia", "lib64", "debian", 0, ""),
        )
    ],
    Attack("a-hung-volume-with-the-cache", "row 14",
           partial(hung, "/etc", "opening", name="ld.so.cache"), "debian", codes=(0,),
           says="lies in a volume or in procfs, and what it lists is left out", bites=()),
    Attack("a-hung-volume-with-cudas-libraries", "row 14",
           partial(hung, "/usr/local/cuda", "asked", name="compat"), "debian", codes=(0,), bites=()),
    *[
        Attack(f"a-hung-volume-{hangs}-behind-cudas-library", "row 14",
               partial(hung_behind_a_link, hangs), "debian", codes=(0,),
               says="libcuda.so.999.1.1 cannot be used: it cannot be read", bites=())
        for hangs in ("opening", "asked")
    ],
    *[
        Attack(f"a-volume-{'-'.join(options)}-at-{destination[1:].replace('/', '-')}",
               "CVE-2024-0133", partial(volume, destination, options), codes=codes, says=says,
               # runc has made it read-only by then.
               bites=("crun",) if "ro" in options else BOTH)
        for destination, options, codes, says in (
            # What lies there by a fixed name is optional.
            ("/usr/lib64", ("rw",), (0,), IN_VOLUME),
            ("/usr/lib64", ("rw", "rshared"), (0,), IN_VOLUME),
            # The driver lies elsewhere then.
            ("/usr/local", ("rw",), (0,), ""),
            ("/usr/local", ("rw", "rshared"), (0,), ""),
            ("/usr/local", ("ro",), (0,), ""),
            # Over a volume's own mount point nothing is made in it.
            ("/usr/local/nvidia", ("rw",), (0,), HIDDEN),
            ("/usr/local/nvidia", ("ro",), (0,), HIDDEN),
            ("/usr/local/nvidia", ("rw", "rslave"), (0,), HIDDEN),
            ("/usr", ("rw",), (7,), IN_VOLUME),
            ("/usr/bin", ("rw",), (0,), ""),
            ("/run", ("rw",), (0,), ""),
            ("/etc", ("rw",), (7,), ""),
        )
    ],
    *[
        Attack(f"a-{make.__name__.partition('_')[0]}-at-{path.replace('/', '-')}", "CVE-2024-0133",
               partial(in_the_way, make, path), codes=(7,), says=says, bites=())
        for make in (Path.touch, os.mkfifo, socket_at)
        for path, says in (("usr/local/nvidia", "is there and is not a folder"), ("usr/local", "Not a directory"))
    ],
    *[
        Attack(f"a-{make.__name__}-at-{path.replace('/', '-')}", "CVE-2024-0133", partial(in_the_way, make, path),
               "debian", bites=())
        for make, path in ((Path.mkdir, f"usr/lib/{roots.MULTIARCH}/libcuda.so.1"), (Path.touch, "usr/lib/firmware"))
    ],
    # It is hidden, and its container runs.
    Attack("the-images-own-driver-in-its-place", "CVE-2024-0133",
           lambda scene: scene.bundle.changed(IMAGES_DRIVER), codes=(0,), says=HIDDEN, bites=()),
    *[
        Attack(f"a-volume-over-a-tmpfs-{number}", "CVE-2024-0133", partial(over_own, destination),
               codes=(7,), says=IN_VOLUME)
        for number, destination in enumerate(("/usr", "//usr/./", "/data"))
    ],
    Attack("own-over-a-volume", "CVE-2024-0133", below_own, codes=(0,), bites=()),
    Attack("a-shared-volume", "CVE-2024-0133", shared, codes=(0,)),
    Attack("the-hosts-own-dev", "CVE-2024-0136", hosts_dev, codes=(0, 7)),
    Attack("below-a-clone-the-cache", "row 2", partial(clone, "etc/ld.so.cache"), codes=(0, 7)),
    Attack("below-a-clone-the-programs", "row 2", partial(clone, "usr/bin"), codes=(0, 7)),
    Attack("below-a-clone-the-firmware", "row 2", firmware, codes=(0, 7)),
    *[
        Attack(f"a-mount-below-a-volume-{name}", "row 3", partial(below_a_volume, option, read_only), codes=(7,),
               says=IN_VOLUME)
        for name, option, read_only in (("rw", "rw", False), ("ro", "ro", False), ("read-only-root", "rw", True))
    ],
    Attack("a-volume-over-the-root", "row 4", over_the_root, codes=BAD_STATE, says="is not the container's root",
           bites=("crun",), runtimes=("crun",)),
    Attack("the-parent-of-the-root-is-moved", "row 5", moved_parent, codes=BAD_STATE),
    Attack("queues-of-the-host", "row 9", queues, codes=(0, 7)),
]  # fmt: skip
