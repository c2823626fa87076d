# SPDX-License-Identifier: Apache-2.0
"""A CDI spec and the hook that it starts give a container what the hook alone gives it, for every request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.cli import options
from oci_gpu_hook.cli import plantext as operations
from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.formats.ldcache import MULTIARCH_32
from oci_gpu_hook.node.engines import cdispecs
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request.words import DRIVER_CAPABILITIES, VISIBLE_DEVICES
from tests.unit import cdi_engine, hosts
from tests.unit.cdi_engine import Node, by_hook, by_spec
from tests.vocabulary.host import FACTS, MIG_UUID, UUID, plant

SETS = ("all", "utility", "compute,compat32", "display", "graphics,video,ngx")
DRIVER_ROOT = "/run/nvidia/driver"


def _small(tree: Path, folder: Path) -> Node:
    hosts.host(tree)
    return cdi_engine.node(tree, folder)


def _everything(tree: Path, folder: Path) -> Node:
    plant(tree)
    for name, soname in hosts.SONAMES.items():
        twin = hosts.elf(soname, hosts.MACHINES["i386"])
        hosts.plant(tree, f"usr/lib/{MULTIARCH_32}/{name}.so.{hosts.VERSION}", twin)
    return cdi_engine.node(tree, folder, FACTS)


def _driver_container(tree: Path, folder: Path) -> Node:
    hosts.host(tree)
    below = tree / DRIVER_ROOT[1:]
    below.mkdir(parents=True)
    for name in ("usr", "lib"):
        shutil.move(tree / name, below / name)
    return cdi_engine.node(tree, folder, settings=f"driver-root = {DRIVER_ROOT}\n")


HOSTS = {"small": _small, "everything": _everything, "driver container": _driver_container}


@pytest.fixture(scope="module", params=HOSTS)
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return HOSTS[request.param](tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("of"))


@pytest.fixture(scope="module")
def mig_host(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return _everything(tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("of"))


def environment_of(devices: str, capabilities: str) -> dict[str, str]:
    return {VISIBLE_DEVICES: devices, DRIVER_CAPABILITIES: capabilities}


def names_of(spec: dict[str, Any]) -> list[str]:
    return [device["name"] for device in spec["devices"]]


@pytest.mark.parametrize("capabilities", SETS)
def test_spec_and_hook_agree_for_every_name(host: Node, capabilities: str) -> None:
    for name in names_of(host.spec(capabilities)):
        environment = environment_of(name, capabilities)
        assert by_spec(host, environment, host.spec(capabilities), name) == by_hook(host, environment), name


@pytest.mark.parametrize(
    ("names", "told"), [((UUID, "1"), ("0", "1")), ((MIG_UUID, "1"), ("1", "0:0")), (("all",), ("1", "0:0"))]
)
def test_the_record_names_the_devices_that_were_asked_for(
    mig_host: Node, names: tuple[str, ...], told: tuple[str, ...]
) -> None:
    """Not the nodes that the engine made for them, control nodes among these."""
    config = cdi_engine.bundle(mig_host.folder, {})
    words = cdi_engine.inject(config, mig_host.spec("all"), *names)
    progress = Progress()
    assert cdi_engine.start(config, mig_host, words[2:], progress) is not None
    assert progress.request is not None
    assert progress.request.devices == told


def test_plan_shows_what_the_engine_does_and_what_the_hook_does(
    mig_host: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan that is carried out, and beside it what is done by then."""
    config = cdi_engine.bundle(mig_host.folder, {})
    words = cdi_engine.inject(config, mig_host.spec("all"), "0")
    config["hooks"] = {"createRuntime": [{"path": "/usr/bin/true"}, {"path": "/usr/bin/oci-gpu-hook", "args": words}]}
    carried_out = cdi_engine.start(config, mig_host, words[2:])
    assert carried_out is not None and carried_out.done
    bundle = str(mig_host.folder / "bundle")
    assert cli.main(["plan", "--bundle", bundle, "--host-root", str(mig_host.tree), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["operations"] == [options.as_json(operations.document(item)) for item in carried_out.operations]
    made = [node["path"] for node in config["linux"]["devices"]]
    # The runtime opens the device cgroup for the nodes that a spec lists.
    assert sorted([item["path"] for item in shown["done"] if item["op"] != "cgroup"]) == sorted(made)
    assert {item["op"] for item in shown["done"]} <= {"device", "cgroup"}


def test_a_spec_says_nodes_and_nothing_that_a_driver_or_a_boot_changes(mig_host: Node) -> None:
    """No file, version or number: what a container gets of them is what the host has when it starts."""
    spec = mig_host.spec("all")
    edits = [spec["containerEdits"], *[device["containerEdits"] for device in spec["devices"]]]
    assert {key for it in edits for key in it} == {"deviceNodes", "env", "hooks"}
    for node in [node for it in edits for node in it.get("deviceNodes", ())]:
        assert node == {"path": node["path"], "permissions": "rw"}
    assert hosts.VERSION not in json.dumps(spec)


def test_the_hook_that_is_registered_for_all_leaves_such_a_container_alone(mig_host: Node) -> None:
    config = cdi_engine.bundle(mig_host.folder, environment_of("all", "all"))
    cdi_engine.inject(config, mig_host.spec("all"), "0")
    config["annotations"] = {"cdi.k8s.io/gpu": "nvidia.com/gpu=0"}
    assert cdi_engine.start(config, mig_host, ["--config", str(mig_host.settings)]) is None


def test_a_container_that_got_no_device_of_ours_is_left_alone(mig_host: Node) -> None:
    words = mig_host.spec("all")["containerEdits"]["hooks"][0]["args"]
    config = cdi_engine.bundle(mig_host.folder, {})
    config["linux"]["devices"] = [{"path": "/dev/dri/card1"}, {"path": "/dev/fuse"}]
    assert cdi_engine.start(config, mig_host, words[2:]) is None


def test_requirements_are_enforced(mig_host: Node) -> None:
    environment = {"NVIDIA_REQUIRE_CUDA": "cuda>=99"}
    with pytest.raises(RequestError, match="cuda>=99"):
        by_spec(mig_host, environment, mig_host.spec("all"), "0")
    assert by_spec(mig_host, {**environment, "NVIDIA_DISABLE_REQUIRE": "1"}, mig_host.spec("all"), "0")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({DRIVER_CAPABILITIES: "graphics,compute"}, "capability graphics is left out: the CDI spec is for"),
        ({"NVIDIA_IMEX_CHANNELS": "3"}, "NVIDIA_IMEX_CHANNELS is left out"),
        ({"NVIDIA_GDS": "enabled"}, "NVIDIA_GDS is left out"),
        ({"NVIDIA_MIG_CONFIG_DEVICES": "all"}, "NVIDIA_MIG_CONFIG_DEVICES is left out"),
    ],
)
def test_what_a_spec_does_not_bring_is_said(
    mig_host: Node, capfd: pytest.CaptureFixture[str], environment: dict[str, str], sentence: str
) -> None:
    by_spec(mig_host, environment, mig_host.spec("utility,compute"), "0")
    assert sentence in capfd.readouterr().err


def test_another_hands_spec_is_not_ours() -> None:
    ours = {"args": ["oci-gpu-hook", "createRuntime", "--cdi", "compute"]}
    # `doctor` takes the one hook of ours.
    hooks: list[object] = [
        [{"args": ["other", *ours["args"][1:]]}],
        [ours, ours],
        ["", ours],
        [{"args": "oci-gpu-hook"}],
    ]
    others: list[object] = [None, [], *[{"hooks": it} for it in hooks]]
    for edits in others:
        made = cdispecs.origin_of({"containerEdits": edits})
        assert not made.is_ours and made.capabilities == made.vendor == made.kind == ""
