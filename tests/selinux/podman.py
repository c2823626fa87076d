# SPDX-License-Identifier: Apache-2.0
"""podman in the virtual machine: the distribution's own, and an image that is there before it starts.

As for Docker (docker.py): an import of the image would take a minute of an emulated processor.  So its metadata is
written here, as podman's storage keeps it, and its one layer is the folder that the other rows' containers have.

Must not start podman: the guest does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil

from tests import pods
from tests.policy import debian
from tests.policy.debian import run
from tests.selinux.files import write

PACKAGES = ("conmon", "golang-github-containers-common", "podman")
# What podman and conmon are linked to.
LIBRARIES = ("libdevmapper1.02.1", "libglib2.0-0", "libgpgme11", "libsubid4")
FILES = (
    "etc/containers/policy.json",
    "usr/bin/conmon",
    "usr/bin/podman",
    "usr/share/containers/containers.conf",
    "usr/share/containers/seccomp.json",
)
# Its events are not read here; its logs are read as files.  Debian's policy does not let crun set a sysctl.  The first
# of the hooks completes the simulated driver.
CONTAINERS_CONF = f"""
[containers]
default_sysctls = []
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
hooks_dir = ["/usr/lib/e2e/hooks.d", "/usr/share/containers/oci/hooks.d"]
infra_image = "{pods.IMAGE}"
"""
STORAGE = "var/lib/containers/storage"
_CREATED = "2026-01-01T00:00:00Z"
# A pod's first container waits; the program of the others stands in the pod.
_CONFIG = {"Env": [pods.PATH], "Cmd": ["sleep", "1000"]}
# A name that podman would choose by chance.
_SHORT = "APP"


def install(root: str, scratch: str, layer: str) -> None:
    """The programs below `root`, and an image of the layer that lies at `layer` below it."""
    for package in debian.download(f"{scratch}/podman-packages", *PACKAGES):
        run("dpkg", "-x", package, f"{scratch}/podman")
    for name in FILES:
        os.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        shutil.copy(f"{scratch}/podman/{name}", f"{root}/{name}")
    write(f"{root}/etc/containers/containers.conf", CONTAINERS_CONF)
    _make_image(f"{root}/{STORAGE}", layer.split("/")[-2])


def _make_image(storage: str, layer: str) -> None:
    digest = f"sha256:{hashlib.sha256(layer.encode()).hexdigest()}"
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": _CREATED,
            "config": _CONFIG,
            "history": [{"created": _CREATED}],
            "rootfs": {"type": "layers", "diff_ids": [digest]},
        }
    )
    image = hashlib.sha256(config.encode()).hexdigest()
    media = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": {"mediaType": f"{media}.config.v1+json", "digest": f"sha256:{image}", "size": len(config)},
            "layers": [{"mediaType": f"{media}.layer.v1.tar", "digest": digest, "size": 0}],
        }
    )
    data = {f"sha256:{image}": config, "manifest": manifest}
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in data.items()}
    record = {
        "id": image,
        "digest": f"sha256:{digests['manifest']}",
        "names": [pods.IMAGE],
        "layer": layer,
        "metadata": "{}",
        "big-data-names": list(data),
        "big-data-sizes": {name: len(text) for name, text in data.items()},
        "big-data-digests": {name: f"sha256:{value}" for name, value in digests.items()},
        "created": _CREATED,
    }
    write(f"{storage}/overlay-images/images.json", json.dumps([record]))
    for name, text in data.items():
        write(f"{storage}/overlay-images/{image}/{_file(name)}", text)
    layers = [{"id": layer, "created": _CREATED, "diff-digest": digest, "diff-size": 0}]
    write(f"{storage}/overlay-layers/layers.json", json.dumps(layers))
    write(f"{storage}/overlay/{layer}/link", _SHORT)
    os.makedirs(f"{storage}/overlay/l")
    os.symlink(f"../{layer}/diff", f"{storage}/overlay/l/{_SHORT}")


def _file(name: str) -> str:
    """Where the storage keeps a piece of data: a name that is no plain word is encoded."""
    return name if name.isalnum() else "=" + base64.b64encode(name.encode()).decode()
