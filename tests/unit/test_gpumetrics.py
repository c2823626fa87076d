# SPDX-License-Identifier: Apache-2.0
"""Metrics of GPUs: what is told of which GPU, what is left out, and that Prometheus can read all of it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.cli import metrics
from oci_gpu_hook.driver import survey
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines import containerdevices
from oci_gpu_hook.node.engines.containerdevices import AllContainers
from oci_gpu_hook.node.engines.containermemory import MemoryUse
from oci_gpu_hook.node.exporters import exposition, gpuexposition
from oci_gpu_hook.node.gpus import nvml
from oci_gpu_hook.node.gpus.holdercount import Counted
from oci_gpu_hook.node.machine.validationrecord import StepResult, Validation
from tests.unit import hosts
from tests.unit.examples import examples
from tests.unit.test_holders import has

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?\d+(?:\.\d+)?(?:e[+-]\d+)?)')
UUID = "GPU-00000007-0000-4000-8000-000000000007"


def node(**fields: Any) -> dict[str, Any]:
    return {
        "driver_version": "580.65.06",
        "gpus": 2,
        "answers": True,
        "log_readable": True,
        "fresh": True,
        "held": [],
        "counted": (),
        "memory": [],
        "validation": None,
        "time": 1_700_000_000.25,
        "duration": 0.5,
        **fields,
    }


def held(*values: str) -> dict[str, str]:
    return dict(zip(("uuid", "mig_uuid", "container", "name", "pod", "namespace"), values))


def samples(made: dict[str, Any]) -> dict[str, float]:
    """What Prometheus reads: names with labels, and values; each series once, each metric in one piece."""
    text = gpuexposition.exposition(**made)
    assert text.endswith("\n")
    found: dict[str, float] = {}
    metric, seen = "", set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            metric = line.split()[2]
            assert metric not in seen
            seen.add(metric)
        elif not line.startswith(f"# TYPE {metric} "):
            match = LINE.fullmatch(line)
            assert match, line
            assert match[1] == metric
            key = line.rpartition(" ")[0].replace(exposition.PREFIX, "")
            assert key not in found, "twice"
            found[key] = float(match[3])
    return found


def test_what_containers_have_of_memory() -> None:
    labels = {"address": "0000:07:00.0", "container": "c0ffee"}
    found = samples(
        node(memory=[(labels, MemoryUse("", 3, 0, 0)), ({**labels, "container": "b"}, MemoryUse("", 5, 9, 7))])
    )
    shown = {name: value for name, value in found.items() if name.startswith("gpu_memory")}
    of, other = [f'{{address="0000:07:00.0",container="{name}"}}' for name in ("c0ffee", "b")]
    assert shown == {
        f"gpu_memory_used_bytes{of}": 3,
        f"gpu_memory_used_bytes{other}": 5,
        f"gpu_memory_peak_bytes{other}": 7,
        f"gpu_memory_limit_bytes{other}": 9,
    }


def test_users_containers_have_series_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ids are their own to choose; two alike would stop the exporter."""
    root = hosts.host(tmp_path)
    one = has((195, 1))._replace(memory=(MemoryUse("0000:07:00.0", 1, 0, 0),))
    seen = [one._replace(running=one.running._replace(owner=1000, pid=pid)) for pid in (8, 9)]
    monkeypatch.setattr(containerdevices, "find_devices", lambda *_: AllContainers((*seen, one), 0))
    held, memory = metrics._held(root, "/", hosts.surveyed(root))
    found = samples(node(held=held, memory=memory))
    # Root's first: of very many the last are cut.
    wanted = ["a" * 64, "user 1000's process 8", "user 1000's process 9"]
    assert [labels["container"] for labels in held] == [labels["container"] for labels, _ in memory] == wanted
    assert len([key for key in found if key.startswith("gpu_memory_used_bytes")]) == 3


def test_the_last_validation_counts_for_its_driver() -> None:
    outcomes = {"driver": "passed", "hook": "failed", "workload": "skipped"}
    last = Validation(1_700_000_000, "580.65.06", tuple([StepResult(*pair, "why") for pair in outcomes.items()]))
    found = samples(node(validation=last))
    assert {key: found[key] for key in found if "validation" in key} == {
        'validation_passed{step="driver"}': 1,
        'validation_passed{step="hook"}': 0,
        "validation_timestamp_seconds": 1_700_000_000,
    }
    assert not [key for key in samples(node(validation=last, driver_version="1.2")) if "valid" in key]


def test_the_number_of_series_has_a_bound() -> None:
    many = [held(UUID, "", str(number), "", "", "") for number in range(2000)]
    assert len([key for key in samples(node(held=many)) if "container_info" in key]) == 512


@examples(40)
@given(words=st.lists(st.text(), min_size=6, max_size=6))
def test_whatever_is_said_prometheus_can_read_it(words: list[str]) -> None:
    """Names of containers and devices are others' texts."""
    counted = (Counted("a", words[0], (), ""),)
    assert samples(node(held=[held(*words), held(*words)], counted=counted))["gpus"] == 2


def test_label_values_are_escaped_and_cut() -> None:
    line = exposition.sample("a", {"b": 'say "no"\\\n\x1b\udc80'}, 1)
    assert line == 'oci_gpu_hook_a{b="say \\"no\\"\\\\\\n??"} 1'
    assert len(exposition.sample("a", {"b": "x" * 1000}, 1)) < 300


def test_a_library_of_another_version_says_nothing_of_the_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts.host(tmp_path)
    found = survey.survey(HostRoot(str(tmp_path)))
    for version, answers in ((found.driver_version, True), ("1.2", False)):
        monkeypatch.setattr(nvml, "ask_nvml", lambda *_, said=version, **__: ({"driver_version": said}, []))
        with nullcontext() if answers else pytest.raises(nvml.NvmlUnavailable, match="libnvidia-ml is of 1"):
            assert nvml.readings(HostRoot(str(tmp_path)), found, 1) == {}
