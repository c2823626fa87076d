# SPDX-License-Identifier: Apache-2.0
"""What dockerd itself asks for (``docker run --gpus``), by its own record of the container.

For ``--gpus`` dockerd adds a prestart hook to config.json and appends NVIDIA_VISIBLE_DEVICES to process.env.  Where the
variable stands does not tell who wrote it: for ``--gpus 0`` Docker 20.10 adds the hook alone, and an image's own
variable can be the last one then.  The record tells: dockerd writes it when the container is created, and no image can.
Reads only.  On the hook's path only where the environment of such a container is not accepted.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import open_source
from oci_gpu_hook.kernel.filetypes import WRITABLE_BY_OTHERS, is_regular
from oci_gpu_hook.request.state import read_object
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.request.bundle import Bundle
    from oci_gpu_hook.request.sources import Inputs

_HOOK = ("nvidia-container-runtime-hook", "prestart")
_RECORD = "hostconfig.json"
_LARGEST_RECORD = 1 << 20
# dockerd makes these for each container, in a folder of its id's, and binds them unless its user mounts others there.
_BOUND = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
_DRIVERS = ("", "nvidia")
_MOST_GPUS = 1 << 10


def with_request(inputs: Inputs, bundle: Bundle, host_root: str) -> Inputs:
    """`inputs` with what dockerd itself asks for this container."""
    if _HOOK not in [words for _, words in bundle.hooks("prestart")]:
        return inputs
    root = HostRoot(host_root)
    try:
        return inputs._replace(dockers=requested(root, bundle))
    finally:
        root.close()


def requested(root: HostRoot, bundle: Bundle) -> str:
    """The value of NVIDIA_VISIBLE_DEVICES that dockerd appends; "" for none, and without a record."""
    # dockerd's bundles are named after their containers.  One that joins another's network has that one's files.
    id = bundle.path.rpartition("/")[2]
    for source, destination in bundle.bindings():
        folder, _, name = source.rpartition("/")
        containers, _, owner = folder.rpartition("/")
        if destination in _BOUND and destination == f"/etc/{name}" and owner:
            record = _record(root, f"{containers}/{id}/{_RECORD}")
            if record:
                return value(record)
            # It was the user's own mount, of which dockerd has more.
    return ""


def value(record: dict[str, object]) -> str:
    """The value for the last of DeviceRequests that gives one; "" for none."""
    requests = record.get("DeviceRequests")
    for item in reversed(requests) if isinstance(requests, list) else ():
        if not isinstance(item, dict) or item.get("Driver", "") not in _DRIVERS:
            continue
        ids, count = item.get("DeviceIDs"), item.get("Count")
        if isinstance(ids, list) and ids:
            return ",".join([str(id) for id in ids])
        if isinstance(count, int) and 0 < count <= _MOST_GPUS:
            return ",".join([str(index) for index in range(count)])
        if isinstance(count, int) and count < 0:
            return ALL
    return ""


def _record(root: HostRoot, path: str) -> dict[str, object]:
    """The JSON object at `path`, if root alone could have written it; else an empty one."""
    try:
        named = open_source(root.fd, path)
    except OSError:
        return {}
    try:
        status = posix.fstat(named)
        is_roots = status.st_uid in (0, posix.fstat(root.fd).st_uid)
        if not is_regular(status) or not is_roots or status.st_mode & WRITABLE_BY_OTHERS:
            return {}
        fd = posix.open(f"/proc/self/fd/{named}", posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            return read_object(fd, path, largest=_LARGEST_RECORD)
        finally:
            posix.close(fd)
    except (OSError, BundleError):
        return {}
    finally:
        posix.close(named)
