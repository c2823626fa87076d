# SPDX-License-Identifier: Apache-2.0
"""The state and the bundle: every shape the runtime-spec allows, and a sentence for every other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook import oci
from oci_gpu_hook.errors import BundleError

GOOD_STATE = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 42, "bundle": "/b"}


def read_state(text: str | bytes) -> oci.State:
    reading, writing = os.pipe()
    try:
        os.write(writing, text if isinstance(text, bytes) else text.encode())
        os.close(writing)
        return oci.read_state(reading)
    finally:
        os.close(reading)


def bundle(document: Any) -> oci.Bundle:
    return oci.Bundle("/b", document)


def test_a_state_is_read() -> None:
    state = read_state(json.dumps({**GOOD_STATE, "annotations": {"a": "b"}}))
    assert state == oci.State("c1", 42, "/b", {"a": "b"})


def test_the_bundle_path_of_old_engines_is_read() -> None:
    state = {key: value for key, value in GOOD_STATE.items() if key != "bundle"}
    assert read_state(json.dumps({**state, "bundlePath": "/old"})).bundle == "/old"


@pytest.mark.parametrize(
    "change",
    [
        {"pid": None},
        {"pid": 0},
        {"pid": -4},
        {"pid": "42"},
        {"pid": True},
        {"pid": 1.5},
        {"bundle": None},
        {"bundle": "relative"},
        {"bundle": 7},
        {"bundle": "/a\0b"},
        {"bundle": "/\ud800"},
        {"id": 7},
        {"annotations": ["a"]},
        {"annotations": {"a": 1}},
    ],
    ids=repr,
)
def test_a_state_of_the_wrong_shape_is_one_sentence(change: dict[str, object]) -> None:
    with pytest.raises(BundleError) as caught:
        read_state(json.dumps({**GOOD_STATE, **change}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "no json", "[]", "{", b"\xff\xfe"])
def test_a_state_that_is_no_json_object_is_one_sentence(text: str | bytes) -> None:
    with pytest.raises(BundleError):
        read_state(text)


@given(st.binary(max_size=400))
def test_reading_a_state_is_total(data: bytes) -> None:
    try:
        read_state(data)
    except BundleError:
        pass


def test_the_environment_is_a_mapping_and_the_last_of_two_counts() -> None:
    env = ["A=1", "B=x=y", "A=2", "EMPTY=", "NOEQUALS"]
    assert oci.environment(bundle({"process": {"env": env}})) == {
        "A": "2",
        "B": "x=y",
        "EMPTY": "",
        "NOEQUALS": "",
    }


@pytest.mark.parametrize(
    "document", [{}, {"process": None}, {"process": {}}, {"process": {"env": None}}]
)
def test_no_environment_is_an_empty_one(document: dict[str, object]) -> None:
    assert oci.environment(bundle(document)) == {}


@pytest.mark.parametrize(
    "process", [{"env": "A=1"}, {"env": {"A": "1"}}, {"env": ["A=1", 2]}, [], "x"], ids=repr
)
def test_an_environment_of_the_wrong_shape_is_a_bundle_error(process: object) -> None:
    with pytest.raises(BundleError):
        oci.environment(bundle({"process": process}))


def test_a_relative_root_lies_below_the_bundle() -> None:
    assert oci.rootfs(bundle({"root": {"path": "rootfs"}})) == "/b/rootfs"
    assert oci.rootfs(bundle({"root": {"path": "/elsewhere"}})) == "/elsewhere"


@pytest.mark.parametrize(
    "document", [{}, {"root": None}, {"root": {}}, {"root": {"path": 3}}, {"root": []}], ids=repr
)
def test_a_missing_root_is_a_bundle_error(document: dict[str, object]) -> None:
    with pytest.raises(BundleError):
        oci.rootfs(bundle(document))


def test_only_what_the_kernel_makes_for_a_container_is_its_own() -> None:
    mounts: list[dict[str, object]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/data", "type": "bind", "source": "/srv"},
        {"destination": "/more", "type": "none", "source": "/srv", "options": ["rbind", "ro"]},
        {"destination": "/sly", "type": "tmpfs", "source": "/srv", "options": ["bind"]},
        {"destination": "/disk", "type": "ext4", "source": "/dev/sda1"},
        {"destination": "/share", "type": "nfs", "source": "server:/srv"},
        {"destination": "/layers", "type": "overlay", "options": ["lowerdir=/srv"]},
        {"destination": "/a/../b", "type": "tmpfs"},
        {"destination": "/dev", "type": "tmpfs", "options": ["nosuid"]},
    ]
    found = oci.mounted(bundle({"mounts": mounts}))
    assert [path for path, _ in found] == [item["destination"] for item in mounts]
    assert [path for path, is_own in found if is_own] == ["/proc", "/dev"]


@pytest.mark.parametrize("mounts", [{}, "x", [1], [{}], [{"destination": 3}]], ids=repr)
def test_mounts_of_the_wrong_shape_are_a_bundle_error(mounts: object) -> None:
    document = {"mounts": mounts}
    if mounts == {}:
        assert oci.mounted(bundle(document)) == ()
        return
    with pytest.raises(BundleError):
        oci.mounted(bundle(document))


def test_device_rules_keep_their_order_and_any_is_none() -> None:
    devices = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"},
        {"allow": True, "type": "c", "major": 136, "minor": -1},
    ]
    rules = oci.device_rules(bundle({"linux": {"resources": {"devices": devices}}}))
    assert rules == (
        oci.DeviceRule("a", None, None, "rwm", allow=False),
        oci.DeviceRule("c", 1, 3, "rw"),
        oci.DeviceRule("c", 136, None, "rwm"),
    )


@pytest.mark.parametrize(
    "linux",
    [
        [],
        {"resources": []},
        {"resources": {"devices": {"a": 1}}},
        {"resources": {"devices": [1]}},
        {"resources": {"devices": [{"major": "1"}]}},
        {"resources": {"devices": [{"type": 1}]}},
    ],
    ids=repr,
)
def test_device_rules_of_the_wrong_shape_are_a_bundle_error(linux: object) -> None:
    with pytest.raises(BundleError):
        oci.device_rules(bundle({"linux": linux}))


def test_a_user_namespace_is_seen() -> None:
    namespaces = [{"type": "mount"}, {"type": "user"}]
    assert oci.has_user_namespace(bundle({"linux": {"namespaces": namespaces}}))
    assert not oci.has_user_namespace(bundle({"linux": {"namespaces": namespaces[:1]}}))
    assert not oci.has_user_namespace(bundle({}))


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"root":'])
def test_a_config_that_cannot_be_read_is_a_bundle_error(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(BundleError):
        oci.read_bundle(str(tmp_path))


def test_a_config_that_is_a_folder_is_a_bundle_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(BundleError):
        oci.read_bundle(str(tmp_path))
