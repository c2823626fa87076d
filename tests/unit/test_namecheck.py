# SPDX-License-Identifier: Apache-2.0
"""Names of devices in others' files: what is no longer here is named, and what may be here is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import FAIL, Finding, namecheck
from oci_gpu_hook.node.machine import kernelconfig
from tests.unit import hosts
from tests.vocabulary.host import MIG_UUID, UUID, everything

FILE = "/etc/docker/daemon.json"
HERE, GONE = hosts.uuid(0), hosts.uuid(9)


def judged(*resources: object) -> list[tuple[str, str, str]]:
    found = namecheck.resources(FILE, {"node-generic-resources": [*resources]}, everything())
    return [(one.level, one.seen, one.remedy) for one in found]


def test_resources_of_swarm_are_compared_with_the_host() -> None:
    assert judged(f"GPU={HERE}", f"GPU={MIG_UUID}", "SSD=2", 7) == []
    ((level, seen, remedy),) = judged(f"NVIDIA-GPU={HERE}-0", f"NVIDIA-GPU={GONE}-0", f"NVIDIA-GPU={GONE}-1")
    assert (level, seen) == (FAIL, f"{FILE} gives {GONE} to Swarm's tasks, and they cannot have it here")
    again = "oci-gpu-hook configure docker --swarm NVIDIA-GPU --shares=2"
    assert remedy == f"oci-gpu-hook inventory refresh && {again} && systemctl restart docker"
    for resource in (f"-x y={GONE}", f"GPU={GONE}-150"):
        ((level, _, remedy),) = judged(resource)
        assert (level, f" && vi {FILE} && systemctl restart" in remedy) == (FAIL, True), "no command can name it"


def test_names_are_compared_as_a_start_reads_them() -> None:
    assert judged(f"GPU={HERE.lower()}", f"GPU={HERE.upper()}") == []
    assert [it[0] for it in judged(f"GPU={UUID}")] == [FAIL], "it is divided: its MIG devices alone give it"


def test_what_names_no_device_or_may_be_any_is_not_judged() -> None:
    """A GPU without a UUID gets one at its first use."""
    assert judged("GPU=2") == []
    assert namecheck.resources(FILE, {}, everything()) == []
    assert namecheck.resources(FILE, {"node-generic-resources": "GPU=GPU-1"}, everything()) == []
    unused = tuple([gpu._replace(uuid=None) for gpu in everything().gpus])
    resources = {"node-generic-resources": [f"GPU={GONE}"]}
    assert namecheck.resources(FILE, resources, everything()._replace(gpus=unused)) == []


HOOK = "lxc.hook.mount = /bin/sh -c 'exec nvidia-container-cli --user configure --no-cgroups --device={} --compute'\n"


def rules(*numbers: str) -> str:
    return "".join([f"lxc.cgroup2.devices.allow = c {it} rw\n" for it in numbers])


def configured(tree: Path, text: str) -> list[Finding]:
    root = hosts.host(tree, gpus=1)
    hosts.plant(tree, "var/lib/lxc/a/config", text)
    # A folder of the test's is no cgroup filesystem.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernelconfig, "cgroup_version", lambda _: "v2")
        return namecheck.configurations(root, hosts.surveyed(root))


def test_rules_of_lxc_are_compared_with_the_nodes_numbers(tmp_path: Path) -> None:
    path = "/var/lib/lxc/a/config"
    numbers = ["195:255", "195:0", "505:0", "505:1"]
    moved = [(FAIL, f"{path} has no rule for /dev/nvidia-uvm and 1 more, now device 505:0")]
    unknown = "this host has 1 GPU, and none has this UUID"
    ours, older = HOOK.format("0"), rules("195:255", "195:0", "77:0", "77:1")
    cases = {
        "other": ("lxc.hook.mount = /usr/bin/other\n" + rules("1:2"), []),
        "well": (ours + rules(*numbers), []),
        "whole": (ours + rules("195:*", "505:*"), []),
        "all": (ours + "lxc.cgroup2.devices.allow = a\n", []),
        "none": (ours, []),
        "v1": (ours + rules(*numbers).replace("cgroup2", "cgroup"), []),
        "moved": (ours + older, moved),
        "gone": (HOOK.format(GONE) + rules(*numbers), [(FAIL, f"{path}: unknown device '{GONE}': {unknown}")]),
        "last": (HOOK.format("7") + ours + rules(*numbers), []),
        "upper": (HOOK.format(HERE.upper()) + older, moved),
        "no name": (HOOK.format("$(x)") + older, [(FAIL, f"{path}: unknown device '$(x)' in {path}")]),
        "garbage": ("\0\xff" * 100, []),
        "long": ("lxc.hook.mount = " + "nvidia-container-cli " * 100_000, []),
    }
    for name, (text, wanted) in cases.items():
        assert [(one.level, one.seen) for one in configured(tmp_path / name, text)] == wanted, name
    (tmp_path / "moved/var/lib/lxc/a/config").chmod(0o666)
    root = HostRoot(str(tmp_path / "moved"))
    assert namecheck.configurations(root, hosts.surveyed(root)) == [], "who wrote it is not known"


def test_capabilities_that_were_changed_by_hand_are_not_written_over(tmp_path: Path) -> None:
    path, older = "/var/lib/lxc/a/config", rules("77:0")
    (changed,) = configured(tmp_path / "changed", HOOK.format("0") + older)
    assert changed.remedy == f"oci-gpu-hook flags lxc 0  # replace the rules in '{path}' by these"
    (ours,) = configured(tmp_path / "ours", HOOK.format("0").replace("--compute", "--utility --compute") + older)
    assert ours.remedy == f"oci-gpu-hook flags lxc --write {path} 0"
