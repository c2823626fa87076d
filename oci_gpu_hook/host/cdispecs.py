# SPDX-License-Identifier: Apache-2.0
"""The host's CDI specs for NVIDIA's GPUs, ours and others', with the driver version that each was made for.

They are searched as text: Python has no YAML parser, and the patterns fit both JSON and YAML.  Reads only.  Never on
the hook's path.
"""

from __future__ import annotations

import re  # noqa: TID253  for people: never on the hook's path

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

# The later one has precedence (CDI's SPEC.md, "CDI Spec directories").
FOLDERS = ("/etc/cdi", "/var/run/cdi")

_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(?:,|$)""", re.MULTILINE)
_OUR_DRIVER = re.compile(r"""--cdi-driver["'],?\s*(?:-\s*)?["']([^"']*)["']""")
_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+\.[0-9.]*\d)")


class Spec(NamedTuple):
    """One spec; driver: the version that it was made for, "" where it does not say."""

    path: str
    is_ours: bool
    driver: str


def specs(root: HostRoot) -> tuple[Spec, ...]:
    """Every spec of kind nvidia.com/gpu, in the order in which engines read them."""
    found = []
    for folder in FOLDERS:
        for name in root.names(folder):
            data = root.read(f"{folder}/{name}") if name.endswith((".yaml", ".json")) else None
            text = (data or b"").decode("utf-8", "replace")
            if _KIND.search(text):
                found.append(_spec(f"{folder}/{name}", text))
    return tuple(found)


def _spec(path: str, text: str) -> Spec:
    ours = _OUR_DRIVER.search(text)
    version = ours or _LIBRARY.search(text)
    return Spec(path, ours is not None, version.group(1) if version else "")
