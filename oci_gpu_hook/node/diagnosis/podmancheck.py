# SPDX-License-Identifier: Apache-2.0
"""Findings about podman alone: what it lets images say to crun.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import WARN, Finding
from oci_gpu_hook.node.diagnosis.remedy import command

if TYPE_CHECKING:
    from oci_gpu_hook.node.engines.installed import Engine

# The first that keeps the annotations of an image's manifest to itself (containers/podman, change 18542).
_KEEPS_ANNOTATIONS = (4, 6)
_SETTINGS = "/etc/containers/containers.conf"


def images(engine: Engine, version: str, *, has_crun: bool) -> list[Finding]:
    """A warning if an image can name a file for crun to write to: run.oci.hooks.stderr, for which any hook is enough.

    engine: podman; version: "" if it is not known; has_crun: whether crun is there, which podman takes before runc.
    """
    numbers = tuple([int(word) for word in version.split(".")[:2] if word.isdecimal()])
    runtime = engine.runtime.rpartition("/")[2] or ("crun" if has_crun else "")
    if len(numbers) < 2 or numbers >= _KEEPS_ANNOTATIONS or runtime != "crun":
        return []
    seen = (
        f"podman {version} hands an image's annotations on to crun, which as root makes, or appends to, a file "
        "of the host that run.oci.hooks.stderr names: use podman 4.6 or later, or runc"
    )
    remedy = command("vi", _SETTINGS, note='[engine] runtime = "runc"')
    return [Finding("images in podman", WARN, seen, remedy)]
