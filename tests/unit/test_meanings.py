# SPDX-License-Identifier: Apache-2.0
"""By a CDI spec a container gets the devices that were meant when it was written, or none."""

from __future__ import annotations

import pytest

from oci_gpu_hook.asking import options
from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.errors import DriverError, UsageError
from oci_gpu_hook.planning import meanings

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
    meanings.check(meanings.of_nvidia(then), meanings.of_nvidia(now), given, now.devices)


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
    with pytest.raises(DriverError, match=r"/dev/nvidia1 is device .* now, and was not a device"):
        meanings.check({}, meanings.of_nvidia(THEN), GIVEN, THEN.devices)


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
    spec = options(["--cdi", "utility", "--cdi-means", "nvidia0=a/b,dri/card1=a/b"]).spec
    assert spec is not None and spec.means == (("/dev/nvidia0", "a/b"), ("/dev/dri/card1", "a/b"))
    with pytest.raises(UsageError, match="is not a node and whose it is") as caught:
        options(["--cdi", "utility", "--cdi-means", word])
    assert "cdi generate" in caught.value.hint
