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


def test_the_counters_have_the_step_that_was_under_way_and_no_records_are_no_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Sent(monkeypatch)
    (line,) = sent.lines
    assert line.endswith(b" refused driver\n")
    assert int(line.split()[0]) == sum(sent.steps().values())
    without = Sent(monkeypatch, Settings(records=False))
    assert (without.records, len(without.lines)) == ([], 1)


def test_a_start_whose_bundle_cannot_be_read_has_its_image_and_namespace_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As far as the state tells them."""
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


def recorded(pod: str, namespace: str, name: str) -> dict[str, str]:
    """The fields of a refused start of a container that CRI-O calls so."""
    annotations = crio.container({}, {})
    annotations.update({
        "io.kubernetes.pod.name": pod, "io.kubernetes.pod.namespace": namespace, "io.kubernetes.container.name": name
    })  # fmt: skip
    progress = Progress()
    progress.state = State(crio.ID, 1, "/b", annotations)
    return dict(records.fields(progress, {"read": 1}, 5, "unknown device"))


def test_a_pod_whose_names_are_as_long_as_kubernetes_lets_them_be_is_recorded_whole() -> None:
    pod, namespace, name = "p" * 253, "n" * 63, "c" * 63
    found = recorded(pod, namespace, name)
    ours = [found[f"{records.PREFIX}{key}"] for key in ("POD", "NAMESPACE", "NAME")]
    assert ours == [pod, namespace, name]
    assert found["MESSAGE"] == f"container {crio.ID[:12]} ({namespace}/{pod}/{name}) does not start: unknown device"


def test_names_that_are_escape_codes_are_recorded_and_said_plainly() -> None:
    found = recorded("\x1b[2J\nMESSAGE=forged", "\x1b]0;x\x07", "\u202e\0")
    assert found["MESSAGE"].isprintable()
    assert found["MESSAGE"].endswith(") does not start: unknown device")
    # A field of several lines has its length ahead of it, so that it ends nowhere else.
    sent = b"".join([records._field(*item) for item in found.items()])
    value = b"\x1b[2J\nMESSAGE=forged"
    assert b"OCI_GPU_HOOK_POD\n" + len(value).to_bytes(8, "little") + value + b"\n" in sent
