# SPDX-License-Identifier: Apache-2.0
"""Whether a container's user can open the nodes that it gets, and what is done about it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.operations import Device
from oci_gpu_hook.planning import nodegroups
from oci_gpu_hook.planning.plan import Provision
from oci_gpu_hook.request.bundle import Bundle

VIDEO = 44


class User(NamedTuple):
    uid: int
    gid: int
    groups: tuple[int, ...]


def node(mode: int = 0o660, uid: int = 0, gid: int = VIDEO, source: str = "", path: str = "/dev/dri/card0") -> Device:
    return Device(path, "c", 226, 0, "rw", mode, uid, gid, source, True, "why")


def opened(devices: tuple[Device, ...], user: User, *, keeps: bool = False, may_change: bool = True) -> Provision:
    """What is given of these nodes to a container's process with these ids."""
    ids = {"uid": user.uid, "gid": user.gid, "additionalGids": list(user.groups)}
    annotations = {"run.oci.keep_original_groups": "1"} if keeps else {}
    bundle = Bundle("/b", {"process": {"user": ids}, "annotations": annotations})
    return nodegroups.opened(Provision("580.1", (), devices, ()), bundle, may_change=may_change)


def given_to(device: Device, user: User, **options: bool) -> tuple[Device, tuple[str, ...]]:
    found = opened((device,), user, **options)
    (given,) = found.operations
    assert isinstance(given, Device)
    return given, found.notes


@pytest.mark.parametrize(
    ("device", "user", "gid"),
    [
        (node(), User(1000, 1000, ()), 1000),
        (node(), User(1000, 0, ()), 0),
        (node(), User(1000, 1000, (4, VIDEO)), VIDEO),
        (node(), User(1000, VIDEO, ()), VIDEO),
        (node(), User(0, 0, ()), VIDEO),
        (node(uid=1000), User(1000, 1000, ()), VIDEO),
        (node(0o666), User(1000, 1000, ()), VIDEO),
    ],
)
def test_a_node_has_the_group_of_a_process_that_could_not_open_it(device: Device, user: User, gid: int) -> None:
    assert given_to(device, user) == (device._replace(gid=gid), ())


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_a_mode_is_never_wider_than_the_hosts(mode: int) -> None:
    found, notes = given_to(node(mode), User(1000, 1000, ()))
    assert found == node(mode)
    (note,) = notes
    assert "user 1000 of the container cannot open it; start it with --group-add 44" in note
    found, notes = given_to(node(), User(1000, 1000, ()), may_change=False)
    assert found == node() and len(notes) == 1


def test_in_a_user_namespace_a_sentence_says_what_helps() -> None:
    bound = node(source="/dev/dri/card0")
    for user in (User(0, 0, ()), User(1000, 1000, (VIDEO,))):
        found, (note,) = given_to(bound, user)
        assert found == bound
        assert "rootless podman: --group-add keep-groups" in note
        assert given_to(bound, user, keeps=True) == (bound, ())
        assert given_to(bound._replace(mode=0o666), user) == (bound._replace(mode=0o666), ())


def test_of_several_nodes_there_is_one_sentence() -> None:
    devices = (node(0o600), node(0o600, path="/dev/dri/card1"), node())
    found = opened(devices, User(7, 8, ()))
    assert found.notes[0].startswith("/dev/dri/card0, /dev/dri/card1 of mode 0600") and len(found.notes) == 1
    assert [it.gid for it in found.operations if isinstance(it, Device)] == [VIDEO, VIDEO, 8]


@given(
    st.builds(node, st.integers(0, 0o777), st.integers(0, 2), st.integers(0, 3), st.sampled_from(["", "/dev/x"])),
    st.builds(User, st.integers(0, 2), st.integers(0, 3), st.tuples(st.integers(0, 3))),
    st.booleans(),
)
def test_nothing_but_the_group_changes_and_only_to_the_processs_own(device: Device, user: User, may: bool) -> None:
    found, _ = given_to(device, user, may_change=may)
    assert found in (device, device._replace(gid=user.gid))
    assert may or found == device


@pytest.mark.parametrize(
    ("said", "user"),
    [
        ({"uid": 7, "gid": 8, "additionalGids": [9, 10]}, User(7, 8, (9, 10))),
        ({}, User(0, 0, ())),
        ({"uid": "video", "gid": None, "additionalGids": "wheel"}, User(0, 0, ())),
        ({"uid": 4294967295, "gid": -1, "additionalGids": ["video", 4294967295, 5]}, User(0, 0, (0, 0, 5))),
        ({"uid": 1, "gid": 1, "additionalGids": list(range(65_536))}, User(1, 1, tuple(range(65_536)))),
    ],
)
def test_who_a_container_runs_as(said: dict[str, object], user: User) -> None:
    assert Bundle("/b", {"process": {"user": said}}).user() == user
