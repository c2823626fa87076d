# SPDX-License-Identifier: Apache-2.0
"""Docker in the virtual machine: the distribution's own daemons, and an image that is there before they start.

An import of the image would take a minute of an emulated processor.  So its metadata is written here, as dockerd's
layer store and its overlay2 driver keep it, and its one layer is the folder that the other rows' containers have.

Must not start a daemon: the guest does.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil

from tests.policy import debian
from tests.policy.debian import run
from tests.selinux.files import write

PACKAGES = ("containerd", "docker.io")
DATA = "var/lib/docker"
# The command line is not needed: the tests speak to the daemon as it does.
PROGRAMS = ("usr/sbin/dockerd", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2")
IMAGE = "image:latest"
_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1")
# Names that the daemon would choose by chance.
_CACHE = "app"
_SHORT = "APP"


def install(root: str, scratch: str, layer: str) -> None:
    """The programs of the daemons below `root`, and an image of the layer that lies at `layer` below it."""
    for package in debian.download(f"{scratch}/docker-packages", *PACKAGES):
        run("dpkg", "-x", package, f"{scratch}/docker")
    for name in PROGRAMS:
        os.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        shutil.copy(f"{scratch}/docker/{name}", f"{root}/{name}")
    _make_image(root, layer)


def _make_image(root: str, path: str) -> None:
    layer = hashlib.sha256(path.encode()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Env": _ENVIRONMENT},
            "history": [{"created": "2026-01-01T00:00:00Z"}],
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        }
    )
    image = hashlib.sha256(config.encode()).hexdigest()
    store = f"{root}/{DATA}/image/overlay2"
    write(f"{store}/imagedb/content/sha256/{image}", config)
    repositories = {"image": {IMAGE: f"sha256:{image}"}}
    write(f"{store}/repositories.json", json.dumps({"Repositories": repositories}))
    for name, text in (("diff", f"sha256:{layer}"), ("cache-id", _CACHE), ("size", "0")):
        write(f"{store}/layerdb/sha256/{layer}/{name}", text)
    driver = f"{root}/{DATA}/overlay2"
    write(f"{driver}/{_CACHE}/link", _SHORT)
    os.symlink(f"/{path}", f"{driver}/{_CACHE}/diff")
    os.makedirs(f"{driver}/l")
    os.symlink(f"../{_CACHE}/diff", f"{driver}/l/{_SHORT}")
    # Where the daemon keeps its key.
    os.makedirs(f"{root}/etc/docker")
