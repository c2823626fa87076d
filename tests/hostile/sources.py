# SPDX-License-Identifier: Apache-2.0
"""What a local user puts where the driver's things are expected on the host, and files of the image that are read."""

from __future__ import annotations

import os
import shutil
import stat
from functools import partial
from pathlib import Path

from tests.hostile.scene import OWN_LIBRARIES, SERVES, USER, Attack, Scene
from tests.selinux.files import write

PIPES = "/tmp/nvidia-mps"
# A setuid program in a folder that a user of the host can reach.
PLANT = f"echo run-me >{PIPES}/planted; chmod 4755 {PIPES}/planted"
CACHE = "etc/ld.so.cache"


def pipes(scene: Scene, *, owner: int = 0, mode: int = 0o1777) -> None:
    restore()
    os.chmod(PIPES, mode)
    os.chown(PIPES, owner, owner)
    scene.later(restore)


def clear() -> None:
    if os.path.islink(PIPES):
        os.unlink(PIPES)
    else:
        shutil.rmtree(PIPES, ignore_errors=True)


def restore() -> None:
    clear()
    os.mkdir(PIPES)
    os.chmod(PIPES, 0o1777)


def of_a_user(mode: int, scene: Scene) -> None:
    """Row 1: a user's folder, in which the container's root leaves a setuid file."""
    pipes(scene, owner=USER, mode=mode)
    scene.probe = PLANT


def link_of_a_user(scene: Scene) -> None:
    """Row 1: a user's link to what only root may see."""
    clear()
    os.symlink(scene.host / "private", PIPES)
    os.chown(PIPES, USER, USER, follow_symlinks=False)
    scene.later(restore)
    scene.probe = f"cat {PIPES}/secret"


def writable_by_the_container(scene: Scene) -> None:
    """Row 1: root's own folder serves, and the container writes nothing into it."""
    pipes(scene)
    Path(PIPES, "control").write_text("the daemon's")
    scene.probe = f"cat {PIPES}/control; {PLANT}"


def files_of_the_host(scene: Scene) -> None:
    """CVE-2024-0135: the host's own programs and libraries are written to."""
    look = "for file in /usr/bin/nvidia-* /usr/local/nvidia/*/*; do test ! -e $file"
    scene.probe = f"{look} || echo tampered >>$file; done"
    before = {path: path.stat().st_ctime_ns for path in Path("/usr/bin").glob("nvidia-*")}
    scene.escaped = lambda out: [f"written: {path}" for path, it in before.items() if path.stat().st_ctime_ns != it]


def no_file_for_cache(kind: int, device: int, scene: Scene) -> None:
    """Row 6: to open it does something, to read it may never end, or somebody waits at the other end."""
    path = scene.root / CACHE
    path.unlink()
    os.mknod(path, kind | 0o666, device)
    scene.watch.add(str(path))


def compat(content: str, scene: Scene) -> None:
    """CVE-2024-0132: the image's newer libraries lead to the host."""
    text = {"root": "/", "folder": str(scene.host / "private"),
            "file": str(scene.host / "private/secret")}[content]  # fmt: skip
    scene.link("usr/local/cuda/compat/libcuda.so.999.1", text)
    places = [f"{folder}/libcuda.so.999.1" for folder in (f"/{scene.libraries}", OWN_LIBRARIES)]
    scene.probe = "cat " + " ".join([f"{it}{scene.host}/private/secret {it}/secret {it}" for it in places])


def loader_of_the_image(scene: Scene) -> None:
    """CVE-2024-0136, -0137: an ldconfig that the image brings, run by the hook with the host's rights."""
    write(scene.root / "sbin/ldconfig", "#!/bin/sh\n: >/ran\n", 0o755)
    scene.escaped = lambda out: ["ran: the image's ldconfig"] * (scene.root / "ran").exists()


ATTACKS = [
    Attack("a-users-folder", "row 1", partial(of_a_user, 0o755), codes=SERVES, says=PIPES),
    Attack("a-users-open-folder", "row 1", partial(of_a_user, 0o1777), codes=SERVES, says=PIPES),
    Attack("a-users-link", "row 1", link_of_a_user, codes=SERVES, says=PIPES),
    Attack("roots-own-folder-is-written", "row 1", writable_by_the_container, codes=SERVES),
    Attack("programs-of-the-host-are-written", "CVE-2024-0135", files_of_the_host, codes=SERVES),
    *[
        Attack(f"a-{name}-for-the-cache", "row 6", partial(no_file_for_cache, kind, device), "debian")
        for name, kind, device in (
            *[(f"device-1-{minor}", stat.S_IFCHR, os.makedev(1, minor)) for minor in (5, 8, 11)],
            ("fifo", stat.S_IFIFO, 0),
        )
    ],
    *[
        Attack(f"compat-leads-to-a-{content}", "CVE-2024-0132", partial(compat, content), root,
               codes=SERVES)
        for content, root in (("root", "busybox"), ("folder", "busybox"), ("file", "debian"))
    ],
    Attack("ldconfig-of-the-image", "CVE-2024-0136, CVE-2024-0137", loader_of_the_image,
           codes=SERVES),
]  # fmt: skip
