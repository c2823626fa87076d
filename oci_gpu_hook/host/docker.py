# SPDX-License-Identifier: Apache-2.0
"""What dockerd itself asks for, by its own record of the container: ``docker run --gpus``, and Swarm's resources.

For ``--gpus`` dockerd adds a prestart hook to config.json and appends NVIDIA_VISIBLE_DEVICES to process.env, where an
image's own can be last, too: the record proves it.  A Swarm task has its resources in variables behind those of its
service; those of its image follow, but for names that are taken.  So what is not the image's own was set by Swarm, or
by the service's author.  Reads only.
"""

from __future__ import annotations

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import read_source
from oci_gpu_hook.request.bundle import Bundle, objects
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, accepts_environment
from oci_gpu_hook.request.state import object_of
from oci_gpu_hook.request.words import ALL, ANY, VISIBLE_DEVICES

_HOOK = ("nvidia-container-runtime-hook", "prestart")
_HOST_CONFIG, _CONFIG = "hostconfig.json", "config.v2.json"
_LARGEST_RECORD = 1 << 20
# dockerd makes these for each container, in a folder of its id's, and binds them unless its user mounts others there.
_BOUND = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
# The last is Docker 29.2's, which starts our link without a try by CDI.
_DRIVERS, _MAX_GPUS = ("", "nvidia", "nvidia.runtime-hook"), 1 << 10
# Where containerd keeps what images are made of: dockerd's own, and the host's.
_CONTENT = "io.containerd.content.v1.content/blobs"
_CONTAINERD = "/var/lib/containerd"


def with_record(inputs: Inputs, bundle: Bundle, settings: Settings, host_root: str) -> Inputs:
    by_gpus = settings.docker_count == "any" or not accepts_environment(inputs, settings)
    by_gpus = by_gpus and _HOOK in [words for _, words in bundle.hooks("prestart")]
    if not by_gpus and not settings.swarm_resources:
        return inputs
    with HostRoot(host_root) as host:
        if by_gpus:
            requests = requests_of(host, bundle)
            appended = devices = value(requests)
            # In place of the first GPUs, if it is dockerd that has named these.
            if settings.docker_count == "any" and appended and inputs.environment.get(VISIBLE_DEVICES) == appended:
                devices = value(requests, as_any=True)
                inputs = inputs._replace(environment={**inputs.environment, VISIBLE_DEVICES: devices})
            inputs = inputs._replace(docker_devices=devices)
        if settings.swarm_resources:
            inputs = inputs._replace(images=from_image(host, bundle, inputs.environment))
        return inputs


def requests_of(host: HostRoot, bundle: Bundle) -> list[dict[str, object]]:
    return objects(_record_of(host, bundle, _HOST_CONFIG)[1], "DeviceRequests")


def from_image(host: HostRoot, bundle: Bundle, environment: dict[str, str]) -> frozenset[str] | None:
    folder, record = _record_of(host, bundle, _CONFIG)
    if record.get("Managed") is not True:
        return None
    entries = _image_environment(host, folder, record)
    if entries is None:
        return frozenset(environment)
    return frozenset([name for name, text in environment.items() if f"{name}={text}" in entries])


def _image_environment(host: HostRoot, folder: str, record: dict[str, object]) -> list[str] | None:
    """None if it is not found.  dockerd keeps it by the image's digest, containerd's store by the image's manifest."""
    manifest = record.get("ImageManifest")
    if isinstance(manifest, dict):
        stores = (f"{folder}/containerd/daemon/{_CONTENT}", f"{_CONTAINERD}/{_CONTENT}")
        named = [(store, _config(host, store, manifest.get("digest")) or {}) for store in stores]
        configs = [_config(host, store, config.get("digest")) for store, config in named]
    else:
        configs = [_config(host, f"{folder}/image/{record.get('Driver')}/imagedb/content", record.get("Image"))]
    for config in [it for it in configs if it is not None]:
        entries = config.get("Env")
        if entries is None or isinstance(entries, list):
            return [str(entry) for entry in entries or ()]
    return None


def _config(host: HostRoot, store: str, digest: object) -> dict[str, object] | None:
    found = _record(host, f"{store}/{str(digest).replace(':', '/', 1)}").get("config")
    return found if isinstance(found, dict) else None


def _record_of(host: HostRoot, bundle: Bundle, name: str) -> tuple[str, dict[str, object]]:
    """dockerd's folder, and the record; an empty one if there is none."""
    # dockerd's bundles are named after their containers.  One that joins another's network has that one's files.
    id = bundle.path.rpartition("/")[2]
    for source, destination in bundle.bindings():
        folder, _, file = source.rpartition("/")
        containers, _, owner = folder.rpartition("/")
        is_bound = destination in _BOUND and destination == f"/etc/{file}" and owner
        # Without a record it was the user's own mount, of which dockerd has more.
        if is_bound and (record := _record(host, f"{containers}/{id}/{name}")):
            return containers.rpartition("/")[0], record
    return "", {}


def value(requests: list[dict[str, object]], *, as_any: bool = False) -> str:
    """What dockerd appends as NVIDIA_VISIBLE_DEVICES for the last request; as_any: a number is left to the node."""
    for item in reversed(requests):
        ids, count = item.get("DeviceIDs"), item.get("Count")
        if item.get("Driver", "") not in _DRIVERS:
            continue
        if isinstance(ids, list) and ids:
            return ",".join([str(id) for id in ids])
        if isinstance(count, int) and 0 < count <= _MAX_GPUS:
            return f"{ANY}:{count}" if as_any else ",".join(map(str, range(count)))
        if isinstance(count, int) and count < 0:
            return ALL
    return ""


def _record(host: HostRoot, path: str) -> dict[str, object]:
    """Empty unless root alone could have written it."""
    data = read_source(host.fd, path, _LARGEST_RECORD)
    try:
        return {} if data is None else object_of(data, path, _LARGEST_RECORD)
    except BundleError:
        return {}
