# SPDX-License-Identifier: Apache-2.0
"""``docker run --gpus`` if the environment is not accepted: dockerd's record counts alone, as 20.10 and 26 write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.host import docker
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.sources import Inputs, inputs_of
from oci_gpu_hook.request.words import VISIBLE_DEVICES
from tests.unit import hosts
from tests.unit.asking import HARDENED, UUID, refusal, request_of

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
