# SPDX-License-Identifier: Apache-2.0
"""Docker and podman in the virtual machine: the distribution's own, each with an image before it starts.

An import of an image would take a minute of an emulated processor.  So its metadata is written here, as dockerd's
layer store with its overlay2 driver and podman's storage keep it; the one layer of both is the folder that the other
rows' containers have.

Must not start an engine: the guest does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from typing import Any

from tests import pods
from tests.policy import debian
from tests.policy.debian import run
from tests.selinux.files import write

PACKAGES = ("conmon", "containerd", "docker.io", "golang-github-containers-common", "podman")
# What podman and conmon are linked to.
LIBRARIES = ("libdevmapper1.02.1", "libglib2.0-0", "libgpgme11", "libsubid4")
# Docker's command line is not needed: the tests speak to the daemon as it does.
FILES = (
    *("usr/sbin/dockerd", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2"),
    *("usr/bin/conmon", "usr/bin/podman", "etc/containers/policy.json"),
    *("usr/share/containers/containers.conf", "usr/share/containers/seccomp.json"),
)
# podman's events are not read here; its logs are read as files.  Debian's policy does not let crun set a sysctl.  The
# first of the hooks completes the simulated driver.
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
DOCKER = "var/lib/docker"
PODMAN = "var/lib/containers/storage"
_CREATED = "2026-01-01T00:00:00Z"
_DOCKERS = {"Env": ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1")}
# A pod's first container waits; the program of the others stands in the pod.
_PODS = {"Env": [pods.PATH], "Cmd": ["sleep", "1000"]}
# A name that an engine would choose by chance.
_SHORT = "APP"


def install(root: str, scratch: str, layer: str) -> None:
    """The engines' programs below `root`, and an image for each of the layer that lies at `layer` below it."""
    for package in debian.download(f"{scratch}/engines-packages", *PACKAGES):
        run("dpkg", "-x", package, f"{scratch}/engines")
    for name in FILES:
        os.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        shutil.copy(f"{scratch}/engines/{name}", f"{root}/{name}")
    write(f"{root}/etc/containers/containers.conf", CONTAINERS_CONF)
    # Where dockerd keeps its key.
    os.makedirs(f"{root}/etc/docker")
    digest = _hash(layer)
    _make_dockers(f"{root}/{DOCKER}", layer, digest)
    _make_podmans(f"{root}/{PODMAN}", layer.split("/")[-2], digest)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _config(digest: str, config: dict[str, Any]) -> str:
    """An image's configuration, of the one layer."""
    history, layers = [{"created": _CREATED}], {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    found = {"architecture": "amd64", "os": "linux", "created": _CREATED, "config": config}
    return json.dumps({**found, "history": history, "rootfs": layers})


def _link(driver: str, folder: str) -> None:
    """The short name of a layer's folder."""
    write(f"{driver}/{folder}/link", _SHORT)
    os.makedirs(f"{driver}/l")
    os.symlink(f"../{folder}/diff", f"{driver}/l/{_SHORT}")


def _make_dockers(data: str, path: str, digest: str) -> None:
    config = _config(digest, _DOCKERS)
    store, image = f"{data}/image/overlay2", _hash(config)
    write(f"{store}/imagedb/content/sha256/{image}", config)
    write(f"{store}/repositories.json", json.dumps({"Repositories": {"image": {"image:latest": f"sha256:{image}"}}}))
    for name, text in (("diff", f"sha256:{digest}"), ("cache-id", "app"), ("size", "0")):
        write(f"{store}/layerdb/sha256/{digest}/{name}", text)
    _link(f"{data}/overlay2", "app")
    os.symlink(f"/{path}", f"{data}/overlay2/app/diff")


def _make_podmans(storage: str, layer: str, digest: str) -> None:
    config = _config(digest, _PODS)
    image, media = _hash(config), "application/vnd.oci.image"
    described = {"mediaType": f"{media}.config.v1+json", "digest": f"sha256:{image}", "size": len(config)}
    layers = [{"mediaType": f"{media}.layer.v1.tar", "digest": f"sha256:{digest}", "size": 0}]
    manifest = json.dumps({"schemaVersion": 2, "config": described, "layers": layers})
    data = {f"sha256:{image}": config, "manifest": manifest}
    record = {
        "id": image,
        "digest": f"sha256:{_hash(manifest)}",
        "names": [pods.IMAGE],
        "layer": layer,
        "metadata": "{}",
        "big-data-names": list(data),
        "big-data-sizes": {name: len(text) for name, text in data.items()},
        "big-data-digests": {name: f"sha256:{_hash(text)}" for name, text in data.items()},
        "created": _CREATED,
    }
    write(f"{storage}/overlay-images/images.json", json.dumps([record]))
    for name, text in data.items():
        # A name that is no plain word is encoded.
        file = name if name.isalnum() else "=" + base64.b64encode(name.encode()).decode()
        write(f"{storage}/overlay-images/{image}/{file}", text)
    kept = {"id": layer, "created": _CREATED, "diff-digest": f"sha256:{digest}", "diff-size": 0}
    write(f"{storage}/overlay-layers/layers.json", json.dumps([kept]))
    _link(f"{storage}/overlay", layer)
