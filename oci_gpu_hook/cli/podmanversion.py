# SPDX-License-Identifier: Apache-2.0
"""podman's version, as podman itself says it: no file of its packages tells.

Starts no other program, and none that others than root could have written.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from oci_gpu_hook.vendors import folders

if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot

_PROGRAM = "/usr/bin/podman"
_SECONDS = 5
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C"}


def read(root: HostRoot) -> str:
    """The version, such as ``4.3.1``; "" if it is not known, as for another root than this host's."""
    if root.path != "/" or root.stat(_PROGRAM) is None or folders.openness(root, _PROGRAM):
        return ""
    try:
        done = subprocess.run(
            [_PROGRAM, "--version"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            env=_ENVIRONMENT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = done.stdout.decode("ascii", "replace").split()
    return words[2] if words[:2] == ["podman", "version"] and len(words) == 3 else ""
