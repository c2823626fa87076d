# SPDX-License-Identifier: Apache-2.0
"""``docker run --gpus`` if the environment is not accepted: dockerd's record counts alone, as 20.10 and 26 write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.host import docker
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.selectors import KnownVendor
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, inputs_of
from oci_gpu_hook.request.words import VISIBLE_DEVICES
from tests.unit import hosts
from tests.unit.asking import HARDENED, UUID, VISIBLE, refusal, request_of

ID, OTHER_ID = "c" * 64, "d" * 64
CONTAINERS = "/var/lib/docker/containers"
HOOK = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
ALL = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
NONE = {**ALL, "Count": 0}
TWO = {**ALL, "Count": 2}
NAMED = {**NONE, "DeviceIDs": ["1", UUID], "Driver": "nvidia"}


def bundle(*environment: str, files: str = ID, hooks: object = None, **more: Any) -> Bundle:
    """A bundle of dockerd's whose network files are those of the container `files`."""
    names = ("resolv.conf", "hostname", "hosts")
    bound = [{"source": f"{CONTAINERS}/{files}/{n}", "destination": f"/etc/{n}"} for n in names]
    document = {
        "process": {"env": ["PATH=/bin", *environment]},
        "mounts": [{"source": "/var/lib/x", "destination": "/etc/x"}, *bound],
        "hooks": {"prestart": [HOOK]} if hooks is None else hooks,
        **more,
    }
    return Bundle(f"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/{ID}", document)


def record(tree: Path, *requests: object, id: str = ID) -> Path:
    path = f"{CONTAINERS}/{id}/hostconfig.json"
    hosts.plant(tree, path, json.dumps({"Binds": None, "DeviceRequests": list(requests)}))
    return tree / path.lstrip("/")


def inputs(tree: Path, made: Bundle) -> Inputs:
    return docker.with_record(inputs_of(made, made.annotations()), made, HARDENED, str(tree))


@pytest.mark.parametrize(
    ("requests", "value"),
    [
        ([NAMED], f"1,{UUID}"),
        # Each has appended a variable, and the last one counts.
        ([ALL, TWO], "0,1"),
        ([TWO, NONE], "0,1"),
        ([{**ALL, "Driver": "nvidia.runtime-hook"}], "all"),
        ([{**ALL, "Driver": "cdi"}], ""),
        ([{**ALL, "Count": 10**9}], ""),
        ([{**ALL, "Count": "all"}], ""),
        ([None, [], "all", {}], ""),
    ],
)
def test_what_dockerd_appends(tmp_path: Path, requests: list[object], value: str) -> None:
    record(tmp_path, *requests)
    found = docker.requests_of(HostRoot(str(tmp_path)), bundle(f"{VISIBLE_DEVICES}=all"))
    assert docker.value(found) == value


def test_mounts_of_the_users_own_come_before_dockerds(tmp_path: Path) -> None:
    """--volume /etc/hosts:/etc/hosts"""
    record(tmp_path, TWO)
    made = bundle(f"{VISIBLE_DEVICES}=0,1")
    users = [{"source": f"/etc/{name}", "destination": f"/etc/{name}"} for name in ("hosts", "hostname")]
    made.document["mounts"][:0] = users  # type: ignore[index]
    assert request_of(inputs(tmp_path, made), HARDENED).devices == ("0", "1")


def test_a_container_that_somebody_else_has_registered_the_hook_for_is_not_dockers(tmp_path: Path) -> None:
    asks = f"{VISIBLE_DEVICES}=all"
    assert parse_request(inputs(tmp_path, bundle(asks)), HARDENED)[0] is None, "there is no record"
    record(tmp_path, ALL)
    assert parse_request(inputs(tmp_path, bundle(asks)), HARDENED)[0] is not None
    for other in (
        bundle(asks, hooks={}),
        bundle(asks, hooks={"createRuntime": [HOOK]}),
        bundle(asks, hooks={"prestart": [{**HOOK, "args": ["oci-gpu-hook", "prestart"]}]}),
        bundle(asks, hooks={"prestart": "x"}),
        bundle(asks, hooks=[]),
        bundle(asks, mounts=[]),
        bundle(asks, mounts=[{"source": f"{CONTAINERS}/{ID}/hosts", "destination": "/data/hosts"}]),
        bundle(asks)._replace(path=f"/run/{OTHER_ID}"),
    ):
        assert parse_request(inputs(tmp_path, other), HARDENED)[0] is None


def test_only_what_dockerd_appended_is_its_own(tmp_path: Path) -> None:
    record(tmp_path, {**NAMED, "DeviceIDs": ["1"]})
    made = bundle(
        "NVIDIA_IMEX_CHANNELS=3",
        "DOCKER_RESOURCE_GPU=7",
        f"{VISIBLE_DEVICES}=1",
        annotations={"cdi.k8s.io/a": "nvidia.com/gpu=5"},
    )
    settings = HARDENED._replace(swarm_resources=("DOCKER_RESOURCE_GPU",))
    found, notes = parse_request(inputs(tmp_path, made), settings)
    assert found is not None
    assert (found.devices, found.imex_channels, found.source) == (("1",), (), "env")
    assert [note.split(" is not accepted")[0] for note in notes] == [
        "the request in the annotations cdi.k8s.io/*",
        "the request in NVIDIA_IMEX_CHANNELS",
    ]
    assert "annotations" in refusal(inputs(tmp_path, made), settings._replace(unaccepted_requests="refuse"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o666),
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text('{"DeviceRequests": {}}'),
        lambda path: path.write_bytes(b" " * (1 << 20) + path.read_bytes()),
    ],
)
def test_a_record_that_cannot_be_believed_says_nothing(tmp_path: Path, spoil: Any) -> None:
    path = record(tmp_path, ALL)
    spoil(path)
    assert docker.requests_of(HostRoot(str(tmp_path)), bundle(f"{VISIBLE_DEVICES}=all")) == []


# --- a Swarm task: its resources are accepted as Swarm's own, and its image's variables do not go past them

DOCKER = "/var/lib/docker"
DIGEST, MANIFEST, CONFIG = "a" * 64, "b" * 64, "e" * 64
NAMES = ("DOCKER_RESOURCE_GPU", "OCI_AMD=DOCKER_RESOURCE_CARD", "MY_GPUS")
COUNTED = Settings(swarm_resources=NAMES)
HARD_COUNTED = COUNTED._replace(accept_environment="privileged")
AMD = KnownVendor("OCI_AMD", "amd.com/gpu", "/amd.json")
# Where the image's own configuration lies: as of 20.10; in containerd's store, dockerd's own and the host's, of 28 on.
STORES = ("graph driver", f"{DOCKER}/containerd/daemon", "/var/lib/containerd")
MINE, CARD = f"DOCKER_RESOURCE_GPU={UUID}-0", "DOCKER_RESOURCE_CARD=renderD128"


def task(tree: Path, image: list[str] | None, *, store: str = STORES[0], **more: Any) -> None:
    """dockerd's record of a task whose image has this environment; None: there is no image any more."""
    record = {"ID": ID, "Managed": True, "Image": f"sha256:{DIGEST}", "Driver": "overlay2", **more}
    config = json.dumps({"config": {"Env": image or None, "Labels": None}, "rootfs": {"type": "layers"}})
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


def task_inputs(tree: Path, *environment: str, settings: Settings = HARD_COUNTED, **how: Any) -> Inputs:
    made = bundle(*environment, hooks={}, **how)
    return docker.with_record(inputs_of(made, made.annotations()), made, settings, str(tree))


def asked(found: Inputs, settings: Settings = HARD_COUNTED) -> list[str]:
    """What is given, NVIDIA's and the other vendor's; a sentence for each thing that is left out."""
    request, notes = parse_request(found, settings, (AMD,))
    return [*(request.asked() if request else ()), *[note.partition(":")[0] for note in notes]]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("image", [[], ["PATH=/bin", "A=1"], ["DOCKER_RESOURCE_GPU=all"]])
def test_what_swarm_has_given_is_accepted(tmp_path: Path, store: str, image: list[str]) -> None:
    """dockerd has dropped an image's variable of that name."""
    task(tmp_path, image, store=store)
    found = task_inputs(tmp_path, MINE, CARD, "A=1")
    assert (request_of(found, HARD_COUNTED).source, asked(found)) == ("swarm", [UUID, "OCI_AMD=renderD128"])
    assert asked(task_inputs(tmp_path, CARD)) == ["OCI_AMD=renderD128"]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("settings", [HARD_COUNTED, COUNTED])
@pytest.mark.parametrize(
    "entry",
    ["DOCKER_RESOURCE_GPU=all", "DOCKER_RESOURCE_CARD=all", f"{VISIBLE}=all", "OCI_AMD=all", "CUDA_VERSION=9.0"],
)
def test_an_image_gets_nothing_by_itself(tmp_path: Path, store: str, settings: Settings, entry: str) -> None:
    """Also if environments are accepted: its task has asked Swarm for nothing."""
    task(tmp_path, ["PATH=/bin", entry], store=store)
    shown = entry.partition("=")[0]
    (said,) = asked(task_inputs(tmp_path, entry, settings=settings), settings)
    assert said == f"the request in {shown} may be the image's own, and must not go past what Swarm counts"


def test_beside_swarms_count_an_images_request_is_nothing(tmp_path: Path) -> None:
    image = [f"{VISIBLE}=all", "DOCKER_RESOURCE_CARD=all"]
    task(tmp_path, image)
    for settings in (HARD_COUNTED, COUNTED):
        given, left = asked(task_inputs(tmp_path, MINE, *image, settings=settings), settings)
        assert given == UUID and "DOCKER_RESOURCE_CARD may be the image's own" in left


def test_what_the_author_of_a_service_says_is_no_images(tmp_path: Path) -> None:
    """Accepted as any environment."""
    task(tmp_path, [f"{VISIBLE}=all"])
    assert asked(task_inputs(tmp_path, f"{VISIBLE}=1", settings=COUNTED), COUNTED) == ["1"]
    # Swarm has no variable of the second's name.
    for variable in (VISIBLE, "MY_GPUS"):
        (said,) = asked(task_inputs(tmp_path, f"{variable}=1"))
        assert f"{variable} is not accepted from a container without CAP_SYS_ADMIN" in said
    # A vendor whose devices Swarm does not count is as before.
    task(tmp_path, ["OCI_AMD=0"])
    settings = Settings(swarm_resources=("DOCKER_RESOURCE_GPU",))
    assert asked(task_inputs(tmp_path, "OCI_AMD=0", settings=settings), settings) == ["OCI_AMD=0"]


@pytest.mark.parametrize(
    ("image", "more"),
    # It was removed by force; it has no environment that can be read; it is of another store.
    [(None, {}), ({"A": 1}, {}), ([], {"Image": 1})]
    + [([], {"Driver": it}) for it in ("other", "\0", "\ud800")]
    + [([], {"ImageManifest": it}) for it in ({}, {"digest": "sha256:none"})],
)
def test_where_the_image_is_not_known_all_may_be_its_own(tmp_path: Path, image: Any, more: dict[str, Any]) -> None:
    task(tmp_path, image, **more)
    (said,) = asked(task_inputs(tmp_path, MINE))
    assert "DOCKER_RESOURCE_GPU may be the image's own" in said


@pytest.mark.parametrize("other", [{"Managed": False}, {"Managed": "true"}, {"Managed": None}])
def test_no_other_container_is_a_task(tmp_path: Path, other: dict[str, Any]) -> None:
    task(tmp_path, [], **other)
    assert task_inputs(tmp_path, MINE).images is None
    (said,) = asked(task_inputs(tmp_path, MINE))
    assert "DOCKER_RESOURCE_GPU is not accepted from a container without CAP_SYS_ADMIN" in said
    assert asked(task_inputs(tmp_path, MINE, settings=COUNTED), COUNTED) == [UUID]


def test_a_record_that_others_could_have_written_says_nothing(tmp_path: Path) -> None:
    task(tmp_path, [])
    assert task_inputs(tmp_path, MINE).images == frozenset()
    # Where Swarm counts nothing it is not looked at.
    assert task_inputs(tmp_path, MINE, settings=Settings(accept_environment="privileged")).images is None
    path = tmp_path / f"{CONTAINERS}/{ID}/config.v2.json".lstrip("/")
    path.chmod(0o666)
    assert task_inputs(tmp_path, MINE).images is None
    path.chmod(0o600)
    assert task_inputs(tmp_path, MINE, files=OTHER_ID).images == frozenset()
    assert task_inputs(tmp_path, MINE, mounts=[]).images is None


def test_swarms_variables_vouch_for_no_other_beside_them() -> None:
    """Two resources of an administrator's, one of which is not a name of Swarm's: anyone may have set that one."""
    found = Inputs({}, images=frozenset())
    assert sources.refusal(found, HARD_COUNTED, "DOCKER_RESOURCE_GPU,DOCKER_RESOURCE_CARD") == ""
    assert sources.refusal(found, HARD_COUNTED, "DOCKER_RESOURCE_GPU,MY_GPUS") == sources.UNPRIVILEGED
