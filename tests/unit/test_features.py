# SPDX-License-Identifier: Apache-2.0
"""A node's features: our labels, those of other vendors' devices, and that Kubernetes takes each of them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oci_gpu_hook.cli import features
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.node.machine.validationrecord import STEPS, StepResult, Validation
from tests.unit import hosts
from tests.unit.examples import examples
from tests.unit.program import Program

# Kubernetes: validation.IsQualifiedName and IsValidLabelValue.
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def labels(driver_version: str = "580.65.06", **fields: Any) -> dict[str, str]:
    values: dict[str, Any] = {"selinux": "selinux", "validation": None, "unhealthy": 0, "others": ()}
    return features.labels(driver_version, **{**values, **fields})


def short(**fields: Any) -> dict[str, str]:
    """The labels, ours without their namespace."""
    return {name.replace(features.OURS, ""): value for name, value in labels(**fields).items()}


def test_a_node_is_told_of_by_our_names_alone() -> None:
    assert short(unhealthy=2) == {
        "version": "0.1.0",
        "unhealthy-gpus": "2",
        "selinux-mode": "selinux",
        "validation": "none",
    }


def test_a_validation_counts_for_the_driver_that_it_was_of() -> None:
    steps = (StepResult("driver", "passed", ""), StepResult("hook", "failed", "why"))
    last = Validation(1_700_000_000, "580.65.06", steps)
    found = short(validation=last)
    assert {name: found[name] for name in found if "validation" in name} == {
        "validation": "failed",
        "validation.driver": "passed",
        "validation.hook": "failed",
        "validation.timestamp": "1700000000",
    }
    for outcome, whole in (("passed", "passed"), ("skipped", "incomplete")):
        two = tuple([StepResult(name, "passed", "") for name in STEPS[:2]])
        made = last._replace(steps=(*two, StepResult(STEPS[2], outcome, "")))
        assert short(validation=made)["validation"] == whole
    one = short(validation=last._replace(steps=steps[:1]))
    assert one["validation"] == "incomplete"
    older = short(validation=last._replace(driver_version="575.1"))
    assert older["validation"] == "none"
    assert "validation.hook" not in older


ACME = ("acme.com/card", 2, "2.5 (beta)")


def test_other_vendors_devices_are_told_of_below_their_domains() -> None:
    found = labels(others=(ACME, ("x.org/y_z", 0, ACME[2])))
    assert {name: value for name, value in found.items() if "acme" in name or "x.org" in name} == {
        "acme.com/oci-gpu-hook.card.present": "true",
        "acme.com/oci-gpu-hook.card.count": "2",
        "acme.com/oci-gpu-hook.card.driver-version": "2.5-beta",
        "x.org/oci-gpu-hook.y_z.present": "true",
        "x.org/oci-gpu-hook.y_z.driver-version": "2.5-beta",
    }


@pytest.mark.parametrize("kind", ["", "acme", "ACME.com/card", "ac_me.com/card", "acme/card", "acme.com/", "-a.com/b"])
def test_a_kind_that_is_no_domains_makes_no_label(kind: str) -> None:
    assert labels(others=((kind, *ACME[1:]),)) == labels()


def test_without_nvidias_driver_nothing_is_said_of_it() -> None:
    """Nor of its validation: an AMD node has not failed one."""
    failed = Validation(1, "", (StepResult("driver", "failed", "none"),))
    found = labels("", validation=failed, others=(ACME,))
    assert not [name for name in found if "validation" in name]
    assert found["acme.com/oci-gpu-hook.card.count"] == "2"
    assert found[f"{features.OURS}version"] == "0.1.0"


def test_only_devices_that_can_be_served_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def vendor(kind: str = "acme.com/card", nodes: int = 1, lacking: int = 0) -> SimpleNamespace:
        what = SimpleNamespace(kind=kind, version="2.5")
        return SimpleNamespace(inventory=what, devices=(1, 2), nodes=lambda: nodes, lacking=lambda: lacking)

    found = [vendor(), vendor(kind=""), vendor(nodes=0), vendor(lacking=1)]
    monkeypatch.setattr(hardware, "find_vendors", lambda root: SimpleNamespace(vendors=found))
    assert features.others(HostRoot()) == (("acme.com/card", 2, "2.5"),)


def test_below_another_root_its_file_is_removed(program: Program, tmp_path: Path) -> None:
    for name in ("hook.conf", "node/f"):
        hosts.plant(tmp_path, name, "features = /node/f\n")
    words = ("features", "--remove", "--host-root", tmp_path, "--config", tmp_path / "hook.conf")
    assert program(*words) == f"removed {tmp_path}/node/f\n"
    assert not (tmp_path / "node/f").exists()


@examples(40)
@given(words=st.lists(st.text(), min_size=5, max_size=5), number=st.integers(-5, 1 << 70))
@example(words=[f"{'a' * 62}-b"] * 5, number=1)
def test_kubernetes_takes_every_label(words: list[str], number: int) -> None:
    """Whatever a driver, its version and a vendor's file say of themselves."""
    last = Validation(number, words[0], (StepResult("driver", "passed", words[1]),))
    others = ((f"acme.com/{words[2]}", number, words[3]),)
    made = labels(words[0], selinux=words[4], validation=last, others=others)
    for label, value in made.items():
        namespace, _, name = label.partition("/")
        assert SUBDOMAIN.fullmatch(namespace), label
        assert NAME.fullmatch(name), label
        assert not value or NAME.fullmatch(value), value
