# SPDX-License-Identifier: Apache-2.0
"""A node's features: gpu-feature-discovery's labels, ours, and that Kubernetes takes each of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.exporters import featurelabels
from oci_gpu_hook.node.gpus.readings import GpuReading, MigReading
from oci_gpu_hook.node.machine.validated import STEPS, StepResult, Validation
from oci_gpu_hook.vendors import vendorhost
from oci_gpu_hook.vendors.vendorinventory import VendorInventory
from tests.unit import hosts
from tests.unit.examples import examples
from tests.unit.program import Program

# Kubernetes: validation.IsQualifiedName and IsValidLabelValue.
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def gpu(number: int, model: str = "NVIDIA A100-SXM4-40GB", capability: str = "8.0") -> Gpu:
    bus = f"0000000{number}:07:00.0"
    return Gpu(number, f"GPU-{number}", model, bus, number, bus[4:], capability, "Nvidia")


def mig(parent: int, number: int, profile: str) -> MigDevice:
    return MigDevice(parent, number, f"MIG-{parent}-{number}", profile, number, 0, 30, 31)


def inventory(**fields: Any) -> DriverInventory:
    empty: dict[str, Any] = dict.fromkeys(DriverInventory._fields, ())
    empty.update(driver_version="580.65.06", cuda_version="13.0")
    return DriverInventory(**{**empty, **fields})


def reading(number: int, **values: int) -> GpuReading:
    parts = [MigReading(f"MIG-{number}-{n}", {"memory": 4864, "slices.gi": 1}) for n in range(7)]
    return GpuReading("", gpu(number).bus_id, values, tuple(parts))


def host(found: DriverInventory, *readings: GpuReading, **fields: Any) -> featurelabels.Host:
    values: dict[str, Any] = {
        "classes": ("0x030200",),
        "machine": "DGX H100",
        "strategy": "none",
        "selinux": "selinux",
        "version": "0.1.0",
        "validation": None,
    }
    return featurelabels.Host(found, readings, **{**values, **fields})


def short(found: featurelabels.Host) -> dict[str, str]:
    """The labels below nvidia.com, and ours behind their namespace."""
    return {
        name.replace(featurelabels.NVIDIA, "").replace(featurelabels.OURS, "our "): value
        for name, value in featurelabels.labels(found).items()
    }


def test_a_node_of_whole_gpus() -> None:
    gpus = (gpu(0), gpu(1), gpu(2, "NVIDIA T4", "7.5"))
    found = short(host(inventory(gpus=gpus), reading(0, memory_total=40960 << 20, mig_enabled=0)))
    assert found == {
        "cuda.driver-version.full": "580.65.06",
        "cuda.driver-version.major": "580",
        "cuda.driver-version.minor": "65",
        "cuda.driver-version.revision": "06",
        "cuda.driver.major": "580",
        "cuda.driver.minor": "65",
        "cuda.driver.rev": "06",
        "cuda.runtime-version.full": "13.0",
        "cuda.runtime-version.major": "13",
        "cuda.runtime-version.minor": "0",
        "cuda.runtime.major": "13",
        "cuda.runtime.minor": "0",
        "gpu.machine": "DGX-H100",
        "gpu.mode": "compute",
        "mig.capable": "true",
        "gpu.product": "NVIDIA-A100-SXM4-40GB",
        "gpu.count": "2",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.family": "ampere",
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "gpu.memory": "40960",
        "our version": "0.1.0",
        "our selinux-mode": "selinux",
        "our validation": "none",
    }


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ("7.0", "volta"),
        ("7.5", "turing"),
        ("8.6", "ampere"),
        ("8.9", "ada-lovelace"),
        ("9.0", "hopper"),
        ("12.0", "blackwell"),
        ("99.1", "undefined"),
        ("", None),
    ],
)
def test_the_family_is_of_the_compute_capability(capability: str, family: str | None) -> None:
    found = short(host(inventory(gpus=(gpu(0, capability=capability),))))
    assert found.get("gpu.family") == family
    assert "gpu.memory" not in found, "nothing is said that NVML has not said"


ALIKE = tuple(mig(parent, number, "1g.5gb") for parent in (0, 1) for number in (0, 1))
DIVIDED = (reading(0, mig_enabled=1), reading(1, mig_enabled=1))
INVALID = {"product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID", "count": "0", "memory": "0"}


@pytest.mark.parametrize(
    ("devices", "readings", "wanted"),
    [
        (ALIKE, DIVIDED, {"product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "count": "4", "memory": "4864"}),
        ((*ALIKE, mig(1, 2, "2g.10gb")), DIVIDED, INVALID),
        (ALIKE[:2], DIVIDED, INVALID),
        (ALIKE[:2], (DIVIDED[0], reading(1, mig_enabled=0)), INVALID),
        ((), (), {"product": "NVIDIA-A100-SXM4-40GB", "count": "2", "replicas": "1"}),
    ],
    ids=["alike", "two profiles", "one is empty", "one is whole", "none is divided"],
)
def test_single_needs_all_gpus_divided_alike(
    devices: tuple[MigDevice, ...], readings: tuple[GpuReading, ...], wanted: dict[str, str]
) -> None:
    node = inventory(gpus=(gpu(0), gpu(1)), mig_devices=devices)
    found = short(host(node, *readings, strategy="single"))
    assert found["mig.strategy"] == "single"
    assert {name: found[f"gpu.{name}"] for name in wanted} == wanted


def test_mixed_has_a_resource_for_each_profile_beside_the_gpus() -> None:
    devices = (*ALIKE[:2], mig(0, 2, "1g.10gb+me"), mig(0, 3, ""))
    node = inventory(gpus=(gpu(0), gpu(1)), mig_devices=devices)
    found = short(host(node, DIVIDED[0], strategy="mixed"))
    assert found["gpu.count"] == "2"
    assert found["mig-1g.5gb.count"] == "2"
    assert found["mig-1g.5gb.slices.gi"] == "1"
    assert found["mig-1g.10gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.10gbme"
    assert "mig-1g.5gb.count" not in short(host(node, DIVIDED[0]))


def test_a_validation_counts_for_the_driver_that_it_was_of() -> None:
    steps = (StepResult("driver", "passed", ""), StepResult("hook", "failed", "why"))
    last = Validation(1_700_000_000, "580.65.06", steps)
    found = short(host(inventory(), validation=last))
    assert {name: found[name] for name in found if "validation" in name} == {
        "our validation": "failed",
        "our validation.driver": "passed",
        "our validation.hook": "failed",
        "our validation.timestamp": "1700000000",
    }
    for outcome, whole in (("passed", "passed"), ("skipped", "incomplete")):
        two = tuple([StepResult(name, "passed", "") for name in STEPS[:2]])
        made = last._replace(steps=(*two, StepResult(STEPS[2], outcome, "")))
        assert short(host(inventory(), validation=made))["our validation"] == whole
    one = short(host(inventory(), validation=last._replace(steps=steps[:1])))
    assert one["our validation"] == "incomplete"
    older = short(host(inventory(), validation=last._replace(driver_version="575.1")))
    assert older["our validation"] == "none"
    assert "our validation.hook" not in older


ACME = featurelabels.OtherVendor("acme.com/card", 2, "2.5 (beta)")


def test_other_vendors_devices_are_told_of_below_their_domains() -> None:
    found = featurelabels.labels(
        host(inventory(gpus=(gpu(0),)), others=(ACME, ACME._replace(kind="x.org/y_z", number=0)))
    )
    assert {name: value for name, value in found.items() if "acme" in name or "x.org" in name} == {
        "acme.com/oci-gpu-hook.card.present": "true",
        "acme.com/oci-gpu-hook.card.count": "2",
        "acme.com/oci-gpu-hook.card.driver-version": "2.5-beta",
        "x.org/oci-gpu-hook.y_z.present": "true",
        "x.org/oci-gpu-hook.y_z.driver-version": "2.5-beta",
    }
    assert found["nvidia.com/gpu.count"] == "1"


@pytest.mark.parametrize("kind", ["", "acme", "ACME.com/card", "ac_me.com/card", "acme/card", "acme.com/", "-a.com/b"])
def test_a_kind_that_is_no_domains_makes_no_label(kind: str) -> None:
    assert featurelabels.labels(host(inventory(), others=(ACME._replace(kind=kind),))) == featurelabels.labels(
        host(inventory())
    )


def test_without_nvidias_driver_nothing_is_said_of_it() -> None:
    """Nor of its validation: an AMD node has not failed one."""
    failed = Validation(1, "", (StepResult("driver", "failed", "none"),))
    found = featurelabels.labels(host(inventory(driver_version="", cuda_version=""), validation=failed, others=(ACME,)))
    assert not [name for name in found if name.startswith("nvidia.com/") or "validation" in name]
    assert found["acme.com/oci-gpu-hook.card.count"] == "2"
    assert found[f"{featurelabels.OURS}version"] == "0.1.0"


def vendors_host(tree: Path) -> list[object]:
    """A host with two nodes of a vendor's and its file; the words of a command there."""
    tree.chmod(0o755)
    group = {"devices": [{"path": "/dev/acme[0-9]", "major": "acme", "each": True}]}
    said = {
        **{"activation_flag": "OCI_ACME", "kind": "acme.com/card", "driver_feature": ["compute"]},
        **{"inventory": {"compute": group}, "requires": {"modules": ["acme"]}, "version": {"module": "acme"}},
    }
    hosts.plant(tree, "usr/share/oci-gpu-hook/vendors/acme.json", json.dumps(said))
    hosts.plant(tree, "sys/module/acme/version", "2.5\n")
    (tree / "run/oci-gpu-hook").mkdir(parents=True)
    (tree / "etc").mkdir(exist_ok=True)
    hosts.plant(tree, "hook.conf", "features = /etc/f\n")
    return ["features", "--host-root", tree, "--config", tree / "hook.conf", "--nvml-timeout", 0]


def test_the_file_comes_and_goes_with_any_vendors_devices(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.umask(0o022)
    words = vendors_host(tmp_path)
    file = tmp_path / "etc/f"
    assert "no NVIDIA driver" in program.mistake(6, *words)
    assert program(*words, "--write") == f"no driver is loaded: there is no {file}\n"
    # A tree can have no device nodes.
    plain = vendorhost.vendor_state
    card = DeviceNode("/dev/acme0", 240, 0, 0o666, 0, 0, True, "", None)

    def with_card(root: HostRoot, what: VendorInventory) -> vendorhost.VendorState:
        return plain(root, what)._replace(
            devices=(vendorhost.VendorDevice(("0",), ((card, "compute"),)),), unmatched=()
        )

    monkeypatch.setattr(vendorhost, "vendor_state", with_card)
    assert program(*words, "--write").startswith(f"wrote {file}: ")
    lines = file.read_text().splitlines()
    assert "acme.com/oci-gpu-hook.card.count=1" in lines and "acme.com/oci-gpu-hook.card.driver-version=2.5" in lines
    assert not any("nvidia" in line for line in lines)
    # Beside NVIDIA's it is one file.
    hosts.host(tmp_path)
    both = program(*words)
    assert "nvidia.com/gpu.count=2\n" in both and "acme.com/oci-gpu-hook.card.present=true\n" in both
    (tmp_path / "proc/driver/nvidia/version").unlink()
    # A module that must be loaded and is not: no container gets the card.
    for path in sorted((tmp_path / "sys/module/acme").iterdir()):
        path.unlink()
    (tmp_path / "sys/module/acme").rmdir()
    assert program(*words, "--write") == f"no driver is loaded: removed {file}\n"


@examples(40)
@given(words=st.lists(st.text(), min_size=8, max_size=8), number=st.integers(-5, 1 << 70))
def test_kubernetes_takes_every_label(words: list[str], number: int) -> None:
    """Whatever a driver, a firmware and a board say of themselves."""
    node = inventory(
        driver_version=words[0],
        cuda_version=words[1],
        gpus=(gpu(0, words[2], words[3]),),
        mig_devices=(mig(0, 0, words[4]), mig(0, 1, words[5])),
    )
    last = Validation(number, words[0], (StepResult("driver", "passed", words[6]),))
    for strategy in ("none", "single", "mixed"):
        others = (featurelabels.OtherVendor(f"acme.com/{words[5]}", number, words[6]),)
        fields = {"machine": words[6], "selinux": words[7], "classes": tuple(words), "others": others}
        made = host(node, DIVIDED[0], strategy=strategy, validation=last, **fields)
        for label, value in featurelabels.labels(made).items():
            namespace, _, name = label.partition("/")
            assert SUBDOMAIN.fullmatch(namespace), label
            assert NAME.fullmatch(name), label
            assert not value or NAME.fullmatch(value), value
