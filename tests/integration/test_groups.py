# SPDX-License-Identifier: Apache-2.0
"""Nodes of mode 0660: a container's user opens those that the container got, and none opens more than on the host."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, in_turn, on_node, run_podman, start
from tests.integration.inside import node

# Of the host's group 44.  The nodes of the simulated driver give ENXIO to those who may open them.
NARROW = "chgrp 44 /dev/nvidia*[0-9l]; chmod 0660 /dev/nvidia*[0-9l]\n"
GPU = node(0)
LOOK = f"(exec 3<>{GPU}) 2>&1; stat -c '%a %g' {GPU}"
OPENED = "No such device or address"


def as_user(made: Bundle, uid: int, gid: int, *groups: int) -> Bundle:
    made.config["process"]["user"] = {"uid": uid, "gid": gid, "additionalGids": list(groups)}
    # As engines do for another user than root: no capability is left to it.
    made.config["process"]["capabilities"] = {}
    return made.asks("0", "utility").runs("/bin/sh", "-c", f"{LOOK} || :")


# Who the container's process is, and mode and group of the node.
USERS = {
    "a user": ((1000, 1000), "660 1000"),
    "a user in the group": ((1000, 1000, 44), "660 44"),
    "a user of root's group": ((1000, 0), "660 0"),
    "root without capabilities": ((0, 0), "660 44"),
}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_containers_user_opens_its_devices(installed: Installed, bundle: Maker, runtime: str) -> None:
    scripts = {}
    for name, (ids, _) in USERS.items():
        scripts[name] = f"{start(runtime, as_user(bundle('busybox'), *ids))} 2>&1"
    found = in_turn(installed, scripts, NARROW)
    for name, (_, made) in USERS.items():
        opened, *rest = [line for line in found[name] if not line.startswith("time=")]
        assert OPENED in opened and rest == [made], (name, found[name])


def test_a_setting_leaves_the_hosts_group(installed: Installed, bundle: Maker) -> None:
    made = as_user(bundle("busybox"), 1000, 1000)
    script = f"{NARROW}{start('runc', made)} 2>&1; oci-gpu-hook plan --bundle {made.path}"
    done = on_node(installed, script, settings="device-group = host\n")
    assert "Permission denied" in done.out and "660 44" in done.out, done.out + done.err
    assert "/dev/nvidiactl and 1 more of mode 0660 and group 44: user 1000 of the container cannot open it" in done.out
    assert "start it with --group-add 44" in done.out


def test_in_a_user_namespace_the_sentence_says_what_helps(installed: Installed, bundle: Maker) -> None:
    made = as_user(bundle("busybox").in_user_namespace(100_000), 0, 0)
    script = f"{NARROW}{start('runc', made)} 2>&1 || :; oci-gpu-hook plan --bundle {made.path}"
    done = on_node(installed, script)
    assert "Permission denied" in done.out, done.out + done.err
    assert "rootless podman: --group-add keep-groups" in done.out


def test_a_pods_user_opens_its_devices(installed: Installed, bundle: Maker) -> None:
    """CRI-O's bundle of a pod with runAsUser and runAsGroup, and of one whose fsGroup is the nodes' group."""
    for groups, made in (((), "660 1000"), ((44,), "660 44")):
        pod = as_user(bundle("busybox").of_crio(namespace="lab", image="registry.example.com/a"), 1000, 1000, *groups)
        (lines,) = in_turn(installed, {"pod": f"{start('crun', pod)} 2>&1"}, NARROW).values()
        assert OPENED in lines[0] and lines[1:] == [made], lines


@pytest.mark.parametrize(
    ("options", "made"), [("--user 1000:1000", "660 1000"), ("--user 1000:1000 --group-add 44", "660 44")]
)
def test_podmans_user_opens_its_devices(installed: Installed, bundle: Maker, options: str, made: str) -> None:
    words = f"--env NVIDIA_VISIBLE_DEVICES=0 {options}"
    done = run_podman(installed, bundle("busybox").rootfs, f'/bin/sh -c "{LOOK} || :"', options=words, before=NARROW)
    assert OPENED in done.out and made in done.out, done.out + done.err


def test_a_cdi_spec_brings_the_group(installed: Installed) -> None:
    """podman 4.3 reads no spec with groups: without them its user is told what helps; with them the spec says so."""
    script = NARROW + "oci-gpu-hook cdi generate | tr -d ' \\n'; "
    script += "echo device-group = host >/etc/oci-gpu-hook.conf; oci-gpu-hook cdi generate | tr -d ' \\n'"
    done = on_node(installed, script)
    first, second = done.out.split('{"cdiVersion":')[1:]
    assert first.startswith('"0.7.0"') and '"additionalGids":[44]' in first
    assert second.startswith('"0.5.0"') and "additionalGids" not in second
