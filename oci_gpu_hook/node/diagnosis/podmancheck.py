# SPDX-License-Identifier: Apache-2.0
"""Findings about podman alone: what it lets images say to crun.

Its version podman itself says: no file of its packages tells.  Starts no other program, and none that others than root
could have written.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import Finding, warned
from oci_gpu_hook.node.diagnosis.remedy import command
from oci_gpu_hook.node.diagnosis.systemcheck import version_numbers
from oci_gpu_hook.vendors import folders

if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.node.engines.installed import Engine

# The first that keeps the annotations of an image's manifest to itself (containers/podman, change 18542).
_KEEPS_ANNOTATIONS = (4, 6)
_PROGRAM = "/usr/bin/podman"
_SECONDS = 5
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C"}


def images(engine: Engine, version: str, *, has_crun: bool) -> list[Finding]:
    """A warning if an image can name a file for crun to write to: run.oci.hooks.stderr, for which any hook is enough.

    engine: podman; version: "" if it is not known; has_crun: whether crun is there, which podman takes before runc.
    """
    numbers = version_numbers(version)
    runtime = engine.runtime.rpartition("/")[2] or ("crun" if has_crun else "")
    if len(numbers) < 2 or numbers >= _KEEPS_ANNOTATIONS or runtime != "crun":
        return []
    seen = (
        f"podman {version} hands an image's annotations on to crun, which as root makes, or appends to, a file "
        "of the host that run.oci.hooks.stderr names: use podman 4.6 or later, or runc"
    )
    remedy = command("vi", "/etc/containers/containers.conf", note='[engine] runtime = "runc"')
    return [warned("images in podman", seen, remedy)]


def version(root: HostRoot) -> str:
    """The version, such as ``4.3.1``; "" if it is not known, as for another root than this host's."""
    if root.path != "/" or root.stat(_PROGRAM) is None or folders.openness(root, _PROGRAM):
        return ""
    words = [_PROGRAM, "--version"]
    try:
        done = subprocess.run(
            words, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, env=_ENVIRONMENT
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = done.stdout.decode("ascii", "replace").split()
    return words[2] if words[:2] == ["podman", "version"] and len(words) == 3 else ""
