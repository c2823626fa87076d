# SPDX-License-Identifier: Apache-2.0
"""The image of podman's container, by containers/storage's record of it as podman 4.3 and 5 write it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oci_gpu_hook.host import podman
from oci_gpu_hook.host.root import HostRoot
from tests.unit import hosts

ID, OTHER = "c0a7" * 16, "6d1f" * 16
STORAGE = "/var/lib/containers/storage/overlay-containers"
BUNDLE = f"{STORAGE}/{ID}/userdata"
NAME = "registry.example.com/cuda:12"


def record(id: str, name: str) -> dict[str, object]:
    """One container's; its name may have what looks like the beginning of another's."""
    metadata = {"image-name": name, "image-id": "1" * 64, "name": f'x"}},{{"id":"{ID}"'}
    said = json.dumps(metadata, separators=(",", ":"))
    return {"id": id, "names": [f'x"}},{{"id":"{ID}'], "image": "1" * 64, "layer": "2" * 64, "metadata": said}


def image(tree: Path, text: str, *, name: str = "containers.json", bundle: str = BUNDLE, id: str = ID) -> str:
    hosts.plant(tree, f"{STORAGE}/{name}", text)
    return podman.image(HostRoot(str(tree)), bundle, id)


def listed(*records: dict[str, object]) -> str:
    return json.dumps(list(records), separators=(",", ":"))


@pytest.mark.parametrize("name", ["containers.json", "volatile-containers.json"])
def test_the_record_of_the_container_itself_tells(tmp_path: Path, name: str) -> None:
    for others in ((), (record(OTHER, "stranger"),)):
        assert image(tmp_path, listed(*others, record(ID, NAME), *others), name=name) == NAME


@pytest.mark.parametrize(
    ("bundle", "id"),
    [(f"{STORAGE}/{OTHER}/userdata", ID), (f"/run/containerd/io.containerd.runtime.v2.task/moby/{ID}", ID)]
    + [(BUNDLE, ""), (f"{STORAGE}/x/userdata", "x"), (f'{STORAGE}/"/userdata', '"')],
)
def test_nothing_else_does(tmp_path: Path, bundle: str, id: str) -> None:
    assert image(tmp_path, listed(record(ID, NAME)), bundle=bundle, id=id) == ""


@pytest.mark.parametrize(
    "text",
    ["", "[]", f'[{{"id":"{ID}"', listed({"id": ID})]
    + [listed({"id": ID, "metadata": it}) for it in (1, "x", "[]", "{}", '{"image-name":1}', "\ud800")],
)
def test_a_record_that_says_nothing(tmp_path: Path, text: str) -> None:
    assert image(tmp_path, text) == ""


def test_nothing_that_others_could_write_counts(tmp_path: Path) -> None:
    root, text = HostRoot(str(tmp_path)), listed(record(ID, NAME))
    assert image(tmp_path, text) == NAME
    file = tmp_path / f"{STORAGE}/containers.json".lstrip("/")
    for path, mode in ((file, 0o666), (file.parent, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert podman.image(root, BUNDLE, ID) == ""
        path.chmod(before)
    file.unlink()
    os.mkfifo(file)
    assert podman.image(root, BUNDLE, ID) == ""
