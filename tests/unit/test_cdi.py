# SPDX-License-Identifier: Apache-2.0
"""A CDI spec and the hook that it starts give a container what the hook alone gives it, for every request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from oci_gpu_hook import asking, cli
from oci_gpu_hook.cli import options
from oci_gpu_hook.cli import plantext as operations
from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.errors import DriverError, UsageError
from oci_gpu_hook.formats.ldcache import MULTIARCH_32
from oci_gpu_hook.node.engines import cdispecs
from oci_gpu_hook.planning import meanings
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


@pytest.mark.parametrize("capabilities", SETS)
def test_spec_and_hook_agree_for_every_name(host: Node, capabilities: str) -> None:
    for name in [device["name"] for device in host.spec(capabilities)["devices"]]:
        environment = environment_of(name, capabilities)
        assert by_spec(host, environment, host.spec(capabilities), name) == by_hook(host, environment), name


@pytest.mark.parametrize(
    ("names", "told"), [((UUID, "1"), ("0", "1")), ((MIG_UUID, "1"), ("1", "0:0")), (("all",), ("1", "0:0"))]
)
def test_the_record_names_the_devices_asked_for(mig_host: Node, names: tuple[str, ...], told: tuple[str, ...]) -> None:
    """Not the nodes that the engine made for them, control nodes among these."""
    config = cdi_engine.bundle(mig_host.folder, {})
    words = cdi_engine.inject(config, mig_host.spec("all"), *names)
    progress = Progress()
    assert cdi_engine.start(config, mig_host, words[2:], progress) is not None
    assert progress.request is not None
    assert progress.request.devices == told


def test_plan_shows_what_engine_and_hook_do(mig_host: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan that is carried out, and beside it what is done by then."""
    config = cdi_engine.bundle(mig_host.folder, {})
    words = cdi_engine.inject(config, mig_host.spec("all"), "0")
    other = {"path": "/usr/bin/oci-gpu-hook", "args": ["oci-gpu-hook", "createRuntime", "--cdi-vendor", "OCI_RDMA"]}
    ours = {"path": "/usr/bin/oci-gpu-hook", "args": words}
    config["hooks"] = {"createRuntime": [{"path": "/usr/bin/true"}, ours, other]}
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
    assert "OCI_RDMA by its CDI spec: a start of its own, which is not shown" in shown["notes"]


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


def test_a_container_that_got_no_device_of_ours_gets_what_none_brings(mig_host: Node) -> None:
    """On a Jetson and under WSL 2 ``none`` has no node."""
    words = mig_host.spec("all")["containerEdits"]["hooks"][0]["args"]
    config = cdi_engine.bundle(mig_host.folder, {})
    config["linux"]["devices"] = [{"path": "/dev/fuse"}]
    plan = cdi_engine.start(config, mig_host, words[2:])
    assert plan is not None
    assert cdi_engine.facts(plan.operations) == by_spec(mig_host, {}, mig_host.spec("all"), "none")


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
    said = capfd.readouterr().err
    assert sentence in said and "capability compute is" not in said


def test_another_hands_spec_is_not_ours() -> None:
    ours = {"args": ["oci-gpu-hook", "createRuntime", "--cdi", "compute"]}
    # `doctor` takes the one hook of ours.
    odd: list[object] = [[{"args": ["other", *ours["args"][1:]]}], [ours, ours], ["", ours], [{"args": "oci-gpu-hook"}]]
    others: list[object] = [None, [], *[{"hooks": it} for it in odd]]
    for edits in others:
        made = cdispecs.origin_of({"containerEdits": edits})
        assert not made.is_ours and made.capabilities == made.vendor == made.kind == ""


# --- by a CDI spec a container gets the devices that were meant when it was written, or none

CAP = "/dev/nvidia-caps/nvidia-cap"


def node(path: str, major: int, minor: int, family: str = "", gpu: int | None = None) -> DeviceNode:
    return DeviceNode(path, major, minor, 0o666, 0, 0, True, family, gpu)


def gpu(index: int, uuid: str | None, minor: int | None = None, address: str = "") -> Gpu:
    address = address or f"00000000:0{index}:00.0"
    return Gpu(index, uuid, "H100", address, index if minor is None else minor, address[4:])


def inventory(*gpus: Gpu, migs: tuple[MigDevice, ...] = ()) -> DriverInventory:
    nodes = [node(f"/dev/nvidia{it.minor}", 195, it.minor, "", it.nvml_index) for it in gpus]
    nodes += [node(f"/dev/dri/card{it.minor + 1}", 226, it.minor + 1, "dri", it.nvml_index) for it in gpus]
    nodes += [node("/dev/nvidia-uvm", 510, 0), node("/dev/nvidiactl", 195, 255)]
    nothing: dict[str, tuple[()]] = dict.fromkeys(("libraries", "misfits", "binaries", "files", "firmware"), ())
    found = DriverInventory("580", "13.0", gpus, migs, None, None, **nothing, proc_files=(), unknown=())
    return found._replace(devices=tuple(nodes))


THEN = inventory(gpu(0, "GPU-a"), gpu(1, "GPU-b"))
GIVEN = tuple([(it.path, it.major, it.minor) for it in THEN.devices if it.gpu in (None, 1)])


def check(then: DriverInventory, now: DriverInventory, given: tuple[tuple[str, object, object], ...] = GIVEN) -> None:
    meanings.check(meanings.of_nvidia(then), meanings.of_nvidia(now), given, now.devices, has_names=True)


@pytest.mark.parametrize(
    "now",
    [
        THEN,
        inventory(gpu(0, "GPU-new"), gpu(1, "GPU-b")),
        inventory(gpu(0, "GPU-b", minor=1, address="00000000:01:00.0")),
        inventory(gpu(0, "GPU-a"), gpu(1, None)),
    ],
    ids=["the same", "another GPU that was not asked for", "its index is another", "its UUID is not known"],
)
def test_what_is_still_meant_is_given(now: DriverInventory) -> None:
    check(THEN, now)
    check(now, THEN)


def test_another_gpu_at_its_place_is_refused() -> None:
    """For other minors, a GPU less and another number of a module see tests/integration/test_cdi.py."""
    with pytest.raises(DriverError, match=r"/dev/nvidia1 is device 00000000:01:00\.0/GPU-c now, and was") as caught:
        check(THEN, inventory(gpu(0, "GPU-a"), gpu(1, "GPU-c")))
    assert caught.value.exit_code == 6
    assert "administrator must" in caught.value.hint


def test_a_node_whose_number_the_runtime_looks_up_has_a_meaning_too() -> None:
    given = tuple([(path, None, None) for path, _, _ in GIVEN])
    check(THEN, THEN, given)
    with pytest.raises(DriverError, match="/dev/nvidia1 is not a device now"):
        check(THEN, inventory(gpu(0, "GPU-a")), given)
    # Other nodes of the container are its own; of a GPU's the spec must say something.
    check(THEN, THEN, (*GIVEN, ("/dev/fuse", 10, 229), ("/dev/dri/card9", 226, 9)))
    for place, path in enumerate(("/dev/nvidia1", "/dev/dri/card2")):
        with pytest.raises(DriverError, match=rf"{path} is device .* now, and was not a device"):
            meanings.check({}, meanings.of_nvidia(THEN), GIVEN[place:], THEN.devices, has_names=True)
    # Of another vendor's the address alone is known.
    with pytest.raises(DriverError, match=r"/dev/npu0 is not a device now"):
        meanings.check({"/dev/npu0": "0000:03:00.0"}, {}, (("/dev/npu0", 240, 0),), (), has_names=True)


def test_cards_are_told_apart() -> None:
    (one, other) = [it for it in THEN.devices if it.family == "dri"]
    swapped = (one._replace(gpu=1), other._replace(gpu=0))
    now = THEN._replace(devices=(*[it for it in THEN.devices if it.family != "dri"], *swapped))
    with pytest.raises(DriverError, match=r"/dev/dri/card2 is device 00000000:00:00\.0/GPU-a now"):
        check(THEN, now)


def test_mig_devices_are_told_apart() -> None:
    def host(gi: int, uuid: str | None) -> DriverInventory:
        return inventory(gpu(0, "GPU-a"), migs=(MigDevice(0, 0, uuid, "1g", gi, 0, 3, 4),))

    given = (("/dev/nvidia0", 195, 0), (f"{CAP}3", 237, 3), (f"{CAP}4", 237, 4))
    named, unnamed = host(1, "MIG-x"), host(1, None)
    for then in (named, unnamed):
        check(then, named, given)
    # It may have been made again with the same instances; a rootless engine may not read what NVML has said.
    with pytest.raises(DriverError, match=f"whether {CAP}4 is still MIG-x is not known: NVML was not asked since"):
        check(named, unnamed, given)
    meanings.check(meanings.of_nvidia(named), meanings.of_nvidia(unnamed), given, unnamed.devices, has_names=False)
    for now in (host(2, "MIG-x"), host(1, "MIG-y"), inventory(gpu(0, "GPU-a"))):
        with pytest.raises(DriverError, match="when the CDI spec was written"):
            check(host(1, "MIG-x"), now, given)


@pytest.mark.parametrize("word", ["x", "=y", "nvidia0=", "nvidia0=a,", ","])
def test_a_half_written_word_is_told(word: str) -> None:
    spec = asking.options(["--cdi", "utility", "--cdi-means", "nvidia0=a/b,dri/card1=a/b"]).spec
    assert spec is not None and spec.means == (("/dev/nvidia0", "a/b"), ("/dev/dri/card1", "a/b"))
    with pytest.raises(UsageError, match="is not a node and whose it is") as caught:
        asking.options(["--cdi", "utility", "--cdi-means", word])
    assert "cdi generate" in caught.value.hint
