# SPDX-License-Identifier: Apache-2.0
"""The host's CDI specs for NVIDIA's GPUs, ours and others', with the driver version that each was made for.

And our own for other vendors' devices.

They are searched as text: Python has no YAML parser, and the patterns fit both JSON and YAML.  Reads only.
"""

from __future__ import annotations

import re

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.cdidevices import Device, devices, is_unread
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.words import CDI_FOLDERS

_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(?:[,#}]|$)""", re.MULTILINE)
_OUR_DRIVER = re.compile(r"""--cdi-driver["'],?\s*(?:-\s*)?["']([^"']*)["']""")
_OUR_VENDOR = re.compile(r"""--cdi-vendor["'],?\s*(?:-\s*)?["'](OCI_[A-Z0-9_]+)["']""")
_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+\.[0-9.]*\d)")


class Spec(NamedTuple):
    """One spec.

    driver: the version that it was made for, "" if it does not say; devices: those that it names; unread: it has a
    list of devices, and none was found in it.
    """

    path: str
    is_ours: bool
    driver: str
    devices: tuple[Device, ...] = ()
    unread: bool = False


class VendorSpec(NamedTuple):
    """A spec of ours for the devices of the vendor with this flag."""

    path: str
    flag: str


def specs(root: HostRoot) -> tuple[Spec, ...]:
    """Every spec of kind nvidia.com/gpu, in the order in which engines read them."""
    return tuple([_spec(path, text) for path, text in _texts(root) if _KIND.search(text)])


def of_vendors(root: HostRoot) -> tuple[VendorSpec, ...]:
    """Every spec of ours for other vendors' devices, in the same order."""
    pairs = [(path, _OUR_VENDOR.search(text)) for path, text in _texts(root)]
    return tuple([VendorSpec(path, match.group(1)) for path, match in pairs if match])


def _texts(root: HostRoot) -> list[tuple[str, str]]:
    """Path and text of each file that engines read."""
    found = []
    for folder in CDI_FOLDERS:
        for name in root.names(folder):
            data = root.read(f"{folder}/{name}") if name.endswith((".yaml", ".json")) else None
            found.append((f"{folder}/{name}", (data or b"").decode("utf-8", "replace")))
    return found


def _spec(path: str, text: str) -> Spec:
    ours = _OUR_DRIVER.search(text)
    version = ours or _LIBRARY.search(text)
    driver = version.group(1) if version else ""
    return Spec(path, ours is not None, driver, devices(text), is_unread(text))
