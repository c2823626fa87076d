# SPDX-License-Identifier: Apache-2.0
"""Rows 3 and 4 as podman's users have them: by --tmpfs, --volume and --read-only, under both runtimes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.engines import PODMAN_RUN, Installed, on_node, podman, remove_podmans_parents

BELOW = "--tmpfs /scratch --volume {}:/srv/data"
CASES = {
    "below a volume": (BELOW, 7),
    "below a read-only volume": (f"{BELOW}:ro", 7),
    "below a volume of a read-only container": (f"--read-only {BELOW}", 7),
    "over the root": ("--volume {}:/top", 3),
}
# What the hook says with each of its exit codes.
SENTENCES = {7: "cannot cover .* lies in a volume of the host", 3: "what lies at .* is not the container's root"}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_made_in_a_volume(installed: Installed, tmp_path: Path, runtime: str, case: str) -> None:
    """The volume has a mount inside it, and the image's links lead there, or to its own root."""
    options, code = CASES[case]
    root, volume = roots.busybox(tmp_path / "root"), tmp_path / "volume"
    for folder in (root / "srv/data/sub", root / "usr", volume / "sub", volume / "dev"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "scratch").symlink_to("srv/data/sub")
    (root / "top").symlink_to("/")
    if case != "over the root":
        (root / "usr").rmdir()
        (root / "usr").symlink_to("scratch/usr")
    run = f"{PODMAN_RUN} --rm --env NVIDIA_VISIBLE_DEVICES=0 {options.format(volume)}"
    words = podman(f"{run} --rootfs {root} true", runtime=runtime, folder=tmp_path)
    script = f"""
mount -t tmpfs none {volume}/sub && mkdir {volume}/sub/usr
find {volume} >/run/before
{words} 2>&1 || :
find {volume} | diff /run/before - && echo unchanged
"""
    try:
        done = on_node(installed, script)
    finally:
        remove_podmans_parents()
    assert done.code == 0, done.err
    assert done.out.endswith("unchanged\n"), done.out
    # crun's log ends with the hook's sentence, and podman shows that.
    stopped = re.search(rf"exit status {code}\b|crun: oci-gpu-hook: {SENTENCES[code]}", done.out)
    # runc does not mount there by itself.
    assert stopped or (case, runtime) == ("over the root", "runc"), done.out
