# SPDX-License-Identifier: Apache-2.0
"""Containers for tests: their layouts, their bundles on disk, and the plan for each."""

from __future__ import annotations

import json
from pathlib import Path

from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.container.layout import GLIBC, MUSL, Layout
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.planning import plan, provision, selection
from oci_gpu_hook.planning.plan import Container
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.settings import Settings

CONTAINER = Container(
    id="c1",
    bundle="/b",
    rootfs="/b/rootfs",
    device_cgroup=DeviceCgroup("v2", "/sys/fs/cgroup/c1", "/sys/fs/cgroup/c1", ""),
)
DEBIAN = Layout(
    library_folder="/usr/lib/x86_64-linux-gnu",
    library_folder_32="/usr/lib/i386-linux-gnu",
    compat=None,
    loader=GLIBC,
    user_namespace=False,
    dev_is_hosts=False,
)
ALPINE = DEBIAN._replace(library_folder="/usr/lib", library_folder_32="", loader=MUSL)
ROOTLESS = DEBIAN._replace(user_namespace=True)
HOSTS_DEV = DEBIAN._replace(dev_is_hosts=True)


def planned(
    request: Request,
    inventory: DriverInventory,
    layout: Layout = DEBIAN,
    container: Container = CONTAINER,
    settings: Settings = Settings(),  # noqa: B008  a record cannot be changed
    fallback: tuple[DeviceRule, ...] = (),
) -> plan.Plan:
    """The plan for a container with this request, on a host with this inventory."""
    share = provision.of_nvidia(layout, request, selection.select(request, inventory), inventory)
    provided = provision.join(layout, inventory.driver_version, (share,))
    return plan.make(container, layout, request, provided, plan.Labels(), settings.device_cgroup, fallback)


DEV = {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}


def write_bundle(folder: Path, *env: str, **more: object) -> Path:
    """A bundle with an empty root, a /dev, and these variables; `more` goes into its config.json."""
    path = folder / "bundle"
    (path / "rootfs").mkdir(parents=True, exist_ok=True)
    config = {"root": {"path": "rootfs"}, "process": {"env": env}, "mounts": [DEV], **more}
    (path / "config.json").write_text(json.dumps(config))
    return path
