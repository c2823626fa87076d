# SPDX-License-Identifier: Apache-2.0
"""A Docker Swarm task: its resources are accepted as Swarm's own, and its image's variables do not go past them.

dockerd's records are as 20.10 writes them, which tests/docker/test_swarm.py runs; with containerd's store of images, as
28 and later do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.host import docker
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, inputs_of
from oci_gpu_hook.request.vendorrequest import KnownVendor
from tests.unit import hosts
from tests.unit.asking import UUID, VISIBLE, request_of
from tests.unit.test_docker import CONTAINERS, ID, OTHER_ID, bundle

DOCKER = "/var/lib/docker"
DIGEST, MANIFEST, CONFIG = "a" * 64, "b" * 64, "e" * 64
NAMES = ("DOCKER_RESOURCE_GPU", "OCI_AMD=DOCKER_RESOURCE_CARD", "MY_GPUS")
COUNTED = Settings(swarm_resources=NAMES)
HARDENED = COUNTED._replace(accept_environment="privileged")
AMD = KnownVendor("OCI_AMD", "amd.com/gpu", "/amd.json")
# Where the image's own configuration lies: dockerd's, and containerd's, dockerd's own and the host's.
STORES = ("graph driver", f"{DOCKER}/containerd/daemon", "/var/lib/containerd")
MINE, CARD = f"DOCKER_RESOURCE_GPU={UUID}-0", "DOCKER_RESOURCE_CARD=renderD128"


def task(tree: Path, image: list[str] | None, *, store: str = STORES[0], **more: Any) -> None:
    """dockerd's record of a task whose image has this environment; None: there is no image any more."""
    record = {"ID": ID, "Managed": True, "Image": f"sha256:{DIGEST}", "Driver": "overlay2", **more}
    config = json.dumps({"config": {"Env": image, "Labels": None}, "rootfs": {"type": "layers"}})
    path = f"{DOCKER}/image/overlay2/imagedb/content/sha256/{DIGEST}"
    if store != STORES[0]:
        record |= {"Driver": "overlayfs", "ImageManifest": {"digest": f"sha256:{MANIFEST}"}}
        blobs = f"{store}/io.containerd.content.v1.content/blobs/sha256"
        manifest = {"schemaVersion": 2, "config": {"digest": f"sha256:{CONFIG}"}}
        hosts.plant(tree, f"{blobs}/{MANIFEST}", json.dumps(manifest))
        path = f"{blobs}/{CONFIG}"
    if image is not None:
        hosts.plant(tree, path, config)
    hosts.plant(tree, f"{CONTAINERS}/{ID}/config.v2.json", json.dumps(record))


def inputs(tree: Path, *environment: str, settings: Settings = HARDENED, **how: Any) -> Inputs:
    made = bundle(*environment, hooks={}, **how)
    return docker.with_record(inputs_of(made, made.annotations()), made, settings, str(tree))


def asked(found: Inputs, settings: Settings = HARDENED) -> list[str]:
    """What is given, NVIDIA's and the other vendor's; a sentence for each thing that is left out."""
    request, notes = parse_request(found, settings, (AMD,))
    return [*(request.asked() if request else ()), *[note.partition(":")[0] for note in notes]]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("image", [[], ["PATH=/bin", "A=1"], ["DOCKER_RESOURCE_GPU=all"]])
def test_what_swarm_has_given_is_accepted(tmp_path: Path, store: str, image: list[str]) -> None:
    """dockerd has dropped an image's variable of that name."""
    task(tmp_path, image, store=store)
    found = inputs(tmp_path, MINE, CARD, "A=1")
    assert (request_of(found, HARDENED).source, asked(found)) == ("swarm", [UUID, "OCI_AMD=renderD128"])
    assert asked(inputs(tmp_path, CARD)) == ["OCI_AMD=renderD128"]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("settings", [HARDENED, COUNTED])
@pytest.mark.parametrize(
    "entry",
    ["DOCKER_RESOURCE_GPU=all", "DOCKER_RESOURCE_CARD=all", f"{VISIBLE}=all", "OCI_AMD=all", "CUDA_VERSION=9.0"],
)
def test_an_image_gets_nothing_by_itself(tmp_path: Path, store: str, settings: Settings, entry: str) -> None:
    """Also if environments are accepted: its task has asked Swarm for nothing."""
    task(tmp_path, ["PATH=/bin", entry], store=store)
    shown = entry.partition("=")[0]
    (said,) = asked(inputs(tmp_path, entry, settings=settings), settings)
    assert said == f"the request in {shown} may be the image's own, and must not go past what Swarm counts"


def test_beside_swarms_count_an_images_request_is_nothing(tmp_path: Path) -> None:
    image = [f"{VISIBLE}=all", "DOCKER_RESOURCE_CARD=all"]
    task(tmp_path, image)
    for settings in (HARDENED, COUNTED):
        given, left = asked(inputs(tmp_path, MINE, *image, settings=settings), settings)
        assert given == UUID and "DOCKER_RESOURCE_CARD may be the image's own" in left


def test_what_the_author_of_a_service_says_is_no_images(tmp_path: Path) -> None:
    """Accepted as any environment."""
    task(tmp_path, [f"{VISIBLE}=all"])
    assert asked(inputs(tmp_path, f"{VISIBLE}=1", settings=COUNTED), COUNTED) == ["1"]
    # Swarm has no variable of the second's name.
    for variable in (VISIBLE, "MY_GPUS"):
        (said,) = asked(inputs(tmp_path, f"{variable}=1"))
        assert f"{variable} is not accepted from a container without CAP_SYS_ADMIN" in said
    # A vendor whose devices Swarm does not count is as before.
    task(tmp_path, ["OCI_AMD=0"])
    settings = Settings(swarm_resources=("DOCKER_RESOURCE_GPU",))
    assert asked(inputs(tmp_path, "OCI_AMD=0", settings=settings), settings) == ["OCI_AMD=0"]


@pytest.mark.parametrize(
    ("image", "more"),
    # It was removed by force; it has no environment that can be read; it is of another store.
    [(None, {}), ({"A": 1}, {}), ([], {"Image": 1})]
    + [([], {"Driver": it}) for it in ("other", "\0", "\ud800")]
    + [([], {"ImageManifest": it}) for it in ({}, {"digest": "sha256:none"})],
)
def test_where_the_image_is_not_known_all_may_be_its_own(tmp_path: Path, image: Any, more: dict[str, Any]) -> None:
    task(tmp_path, image, **more)
    (said,) = asked(inputs(tmp_path, MINE))
    assert "DOCKER_RESOURCE_GPU may be the image's own" in said


@pytest.mark.parametrize("other", [{"Managed": False}, {"Managed": "true"}, {"Managed": None}])
def test_no_other_container_is_a_task(tmp_path: Path, other: dict[str, Any]) -> None:
    task(tmp_path, [], **other)
    assert inputs(tmp_path, MINE).images is None
    (said,) = asked(inputs(tmp_path, MINE))
    assert "DOCKER_RESOURCE_GPU is not accepted from a container without CAP_SYS_ADMIN" in said
    assert asked(inputs(tmp_path, MINE, settings=COUNTED), COUNTED) == [UUID]


def test_a_record_that_others_could_have_written_says_nothing(tmp_path: Path) -> None:
    task(tmp_path, [])
    assert inputs(tmp_path, MINE).images == frozenset()
    # Where Swarm counts nothing it is not looked at.
    assert inputs(tmp_path, MINE, settings=Settings(accept_environment="privileged")).images is None
    path = tmp_path / f"{CONTAINERS}/{ID}/config.v2.json".lstrip("/")
    path.chmod(0o666)
    assert inputs(tmp_path, MINE).images is None
    path.chmod(0o600)
    assert inputs(tmp_path, MINE, files=OTHER_ID).images == frozenset()
    assert inputs(tmp_path, MINE, mounts=[]).images is None


def test_swarms_variables_vouch_for_no_other_beside_them() -> None:
    """Two resources of an administrator's, one of which is not a name of Swarm's: anyone may have set that one."""
    found = Inputs({}, images=frozenset())
    assert sources.refusal(found, HARDENED, "DOCKER_RESOURCE_GPU,DOCKER_RESOURCE_CARD") == ""
    assert sources.refusal(found, HARDENED, "DOCKER_RESOURCE_GPU,MY_GPUS") == sources.UNPRIVILEGED
