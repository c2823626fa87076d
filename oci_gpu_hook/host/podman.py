# SPDX-License-Identifier: Apache-2.0
"""The image of podman's container, by podman's own record, if root alone can have written it.  Reads only."""

from __future__ import annotations

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import read_source
from oci_gpu_hook.request.annotations import PODMAN, folder_of, keeper_of
from oci_gpu_hook.request.state import object_of

# The second is of containers that are gone after a boot, as all of CRI-O's are.
RECORDS = ("containers.json", "volatile-containers.json")
# A container's has some hundred bytes.
_LARGEST = 8 << 20


def image(host: HostRoot, bundle: str, id: str) -> str:
    """The image as podman was told it, such as ``registry.example.com/cuda:12``; "" if podman does not say."""
    if keeper_of(bundle, id) != PODMAN or not id.isalnum():
        return ""
    for name in RECORDS:
        found = _named(read_source(host.fd, f"{folder_of(bundle)[0]}/{name}", _LARGEST) or b"", id)
        if found:
            return found
    return ""


def _named(records: bytes, id: str) -> str:
    """The image in the record of one container: the others, of which there may be thousands, are not parsed."""
    # In a string of JSON the quotation marks would be escaped.
    at = records.find(b'{"id":"%b"' % id.encode())
    if at < 0:
        return ""
    end = records.find(b'},{"id":"', at)
    text = records[at : end + 1] if end > 0 else records[at:].rstrip().removesuffix(b"]")
    try:
        metadata = object_of(text, "the record").get("metadata")
        name = object_of(str(metadata).encode(), "its metadata").get("image-name")
    except (BundleError, UnicodeEncodeError):
        return ""
    return name if isinstance(name, str) else ""
