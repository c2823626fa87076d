# SPDX-License-Identifier: Apache-2.0
"""Whether the hook has served a container at an earlier stage of the same start.  Reads only."""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.request.bundle import Bundle


def is_served(bundle: Bundle) -> bool:
    """Whether this very program has been started for prestart, which comes before createRuntime.

    dockerd registers it so for ``--gpus``, whatever a registration or a runtime has added for createRuntime.
    """
    earlier = [path for path, words in bundle.hooks("prestart") if words[1:] == ("prestart",)]
    ours = [path for path, _ in bundle.hooks("createRuntime") if path.endswith("/oci-gpu-hook")]
    return not _inodes(earlier).isdisjoint(_inodes(ours))


def _inodes(paths: list[str]) -> set[tuple[int, int]]:
    """Device and inode number of each of these files that is there."""
    found = set()
    for path in paths:
        try:
            status = posix.stat(path)
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found
