# SPDX-License-Identifier: Apache-2.0
"""What a start sends: a record to the journal and a line to the counters, with the time of each step."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic_ns

import pytest

from oci_gpu_hook import hook
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.report import records
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import State
from tests import crio
from tests.unit.asking import of_crio


class Sent:
    """What a start has sent: 7 ms had gone before, the step `read` took 2 ms, the one under way began 3 ms ago."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: Settings | None = None) -> None:
        self.records: list[bytes] = []
        self.lines: list[bytes] = []
        monkeypatch.setattr(records, "to_journal", self.records.append)
        monkeypatch.setattr(records, "to_spool", self.lines.append)
        progress = Progress()
        now = monotonic_ns()
        progress.began = 7_000_000
        progress.ends = [now - 5_000_000, now - 3_000_000]
        progress.settings = settings
        records.send(progress, 6, "there is no driver")

    def steps(self) -> dict[str, int]:
        """Microseconds of each step, as the record has them."""
        (sent,) = self.records
        fields = dict(line.split("=", 1) for line in sent.decode().splitlines())
        names = ("START", "READ", "PLAN", "APPLY")
        found = {name: fields.get(f"OCI_GPU_HOOK_{name}_USEC") for name in names}
        return {name: int(value) for name, value in found.items() if value is not None}


def test_the_first_step_is_the_processor_time_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Sent(monkeypatch).steps()
    assert (steps["START"], steps["READ"]) == (7000, 2000)
    assert set(steps) == {"START", "READ", "PLAN"}
    assert 3_000 <= steps["PLAN"] < 10_000_000


def test_the_counters_have_the_step_under_way_without_records_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    (line,) = sent.lines
    assert line.endswith(b" refused driver\n")
    assert int(line.split()[0]) == sum(sent.steps().values())
    without = Sent(monkeypatch, Settings(records=False))
    assert (without.records, len(without.lines)) == ([], 1)


def test_without_a_bundle_image_and_namespace_are_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(records, "to_journal", sent.append)
    monkeypatch.setattr(records, "to_spool", lambda line: None)
    monkeypatch.setattr(alarm, "begin", lambda error: None)
    named = of_crio("cuda:12", "team")
    state = {"id": named.id, "pid": 1, "bundle": str(tmp_path), "annotations": named.annotations}
    file = tmp_path / "state"
    file.write_text(json.dumps(state))
    with file.open() as stdin:
        monkeypatch.setattr(hook, "_STDIN", stdin.fileno())
        assert hook.main("createRuntime", []) == 3
    lines = sent[0].decode().splitlines()
    assert {"OCI_GPU_HOOK_IMAGE=cuda:12", "OCI_GPU_HOOK_NAMESPACE=team"} <= {*lines}


def test_a_pod_whose_names_are_as_long_as_kubernetes_lets_them_be_is_recorded_whole() -> None:
    names = {"POD": "p" * 253, "NAMESPACE": "n" * 63, "NAME": "c" * 63}
    keys = ("io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.container.name")
    progress = Progress()
    progress.state = State(crio.ID, 1, "/b", {**crio.container({}, {}), **dict(zip(keys, names.values()))})
    found = dict(records.fields(progress, {"read": 1}, 5, "unknown device"))
    assert {key: found[f"{records.PREFIX}{key}"] for key in names} == names
    container = f"{names['NAMESPACE']}/{names['POD']}/{names['NAME']}"
    assert found["MESSAGE"] == f"container {crio.ID[:12]} ({container}) does not start: unknown device"
