# SPDX-License-Identifier: Apache-2.0
"""Links of the image, at the places where a mount point, a node, a link or a file is made, and at their parents."""

from __future__ import annotations

from functools import partial

from tests.hostile.scene import EITHER, SERVES, Attack, Scene
from tests.integration import roots

MULTIARCH = f"usr/lib/{roots.MULTIARCH}"
UP = "../" * 30

STYLES = {"absolute": "/", "upwards": UP, "magic": "/proc/self/root/"}


def parent(path: str, style: str, scene: Scene) -> None:
    """A folder of the image leads to one of the host's."""
    folder = scene.hosts("taken")
    for name in ("lib64", "bin", "local", "nvidia-persistenced"):
        scene.hosts(f"taken/{name}")
    scene.link(path, f"{STYLES[style]}{str(folder)[1:]}")


def target(path: str, style: str, scene: Scene) -> None:
    """The very place of a mount point leads to a name that the host does not have yet."""
    scene.link(path, f"{STYLES[style]}{str(scene.hosts('taken'))[1:]}/planted")


def chain(scene: Scene) -> None:
    """A link to a link to a folder that is reached upwards."""
    scene.link("opt/one", f"{UP}{str(scene.hosts('taken'))[1:]}")
    scene.link("opt/two", "one")
    scene.link("usr/local", "../opt/two")


def a_node_that_is_a_link(scene: Scene) -> None:
    """A bind of a folder of the image as /dev: its nvidia0 leads to a file of the host's, for chmod to follow."""
    scene.bundle.without("/dev")
    scene.config["linux"]["devices"] = []
    (scene.root / "dev").mkdir(exist_ok=True)
    scene.link("dev/nvidia0", scene.host / "file")


def shared_memory(scene: Scene) -> None:
    """/dev/shm leads to a folder of the host's, for a label to follow."""
    scene.bundle.without("/dev/shm", "/dev/mqueue", "/dev")
    scene.link("dev/shm", scene.hosts("taken"))


PARENTS = ("usr", "usr/local", "usr/local/nvidia", "usr/lib64", "usr/bin", "lib", "lib/firmware", "run", "etc")
TARGETS = (("debian", f"{MULTIARCH}/libcuda.so.1"), ("busybox", "usr/bin/nvidia-smi"),
           ("debian", "etc/ld.so.cache"), ("busybox", "run/nvidia-persistenced/socket"))  # fmt: skip

ATTACKS = [
    *[
        Attack(f"{path}-leads-out-{style}", "CVE-2024-0133", partial(parent, path, style))
        for path in PARENTS
        for style in ("absolute", "upwards")
    ],
    *[
        # By its name nothing can be made where a folder's link leads nowhere.
        Attack(f"usr/local/nvidia-is-a-link-{style}", "CVE-2024-0133",
               partial(target, "usr/local/nvidia", style), root, bites=())
        for root in ("busybox", "debian")
        for style in STYLES
        if root == "busybox" or style == "absolute"
    ],
    Attack("usr-bin-leads-out-magic", "CVE-2024-0133", partial(parent, "usr/bin", "magic")),
    *[
        Attack(f"{path}-is-a-link-{style}", "CVE-2024-0133", partial(target, path, style), root)
        for root, path in TARGETS
        for style in STYLES
    ],
    Attack("a-chain-of-links", "CVE-2024-0133", chain),
    # The folder of a link that is made for the container.
    Attack("links-are-made-outside", "CVE-2024-0134", partial(parent, "usr/lib64/gbm", "absolute")),
    Attack("a-node-is-a-link", "CVE-2024-0133", a_node_that_is_a_link, codes=EITHER),
    Attack("shared-memory-is-a-link", "CVE-2024-0133", shared_memory, codes=SERVES),
    # Where ld.so.cache is written.
    Attack("the-cache-is-a-file-of-the-host", "CVE-2025-23267",
           lambda scene: scene.link("etc/ld.so.cache", scene.host / "file"), "debian"),
]  # fmt: skip
