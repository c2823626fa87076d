# SPDX-License-Identifier: Apache-2.0
"""The record of a start: what it says, and that no value of a container can forge or break it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook import errors, hook
from oci_gpu_hook.changes.tree import TargetError, Tree, Undo
from oci_gpu_hook.cli.options import show
from oci_gpu_hook.errors import LONGEST, LONGEST_LIST, ApplyError, BundleError, HookError, plain
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.syscalls import SyscallError
from oci_gpu_hook.operations import Device, LimitMemory, Mount, Relabel
from oci_gpu_hook.planning.plan import Provision
from oci_gpu_hook.report import records, sentence
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import State
from tests import crio
from tests.unit.asking import of_crio
from tests.unit.bounded import MIB, peak

REQUEST = Request("env", ("0", "GPU-1"), ("compute", "utility"))
ID = "3f2a" * 16


class Plan:
    """As much of a plan as a record tells."""

    provision = Provision("550.54.15")
    label = "system_u:object_r:container_file_t:s0"

    def __init__(self, devices: int = 2, relabelled: str = "/dev/shm") -> None:
        self.operations = (
            *[Device(f"/dev/nvidia{n}", "c", 195, n, "rw", 0o666, 0, 0, "", True, "") for n in range(devices)],
            Mount("/usr/lib/a", "/usr/lib/a", (), True, ""),
            Mount("/usr/lib/b", "/usr/lib/b", (), True, ""),
            Relabel(relabelled, "c", "", True, ""),
            LimitMemory("/c", "/c", (("drm/0000:03:00.0/vram", 1 << 30),) * devices, True, ""),
        )

    request: Request | None = None

    def given(self) -> tuple[Any, ...]:
        return self.operations


STEPS = {"start": 8000, "read": 400, "plan": 3000, "apply": 6000}


def made(
    container: str = ID, image: str = "registry/cuda:12", namespace: str = "team", sentence: str = "", **changes: Any
) -> tuple[Progress, dict[str, int], int, str]:
    """A start of CRI-O's container, as a record is made of it; request: None for a start without one, and no plan."""
    progress = Progress()
    progress.state = of_crio(image, namespace, container)
    progress.request = changes.get("request", REQUEST)
    if progress.request:
        plan: Any = changes.get("plan") or Plan()
        plan.request = progress.request
        progress.plan = plan
    progress.notes = list(changes.get("notes", ()))
    return progress, changes.get("steps", STEPS), changes.get("exit_code", 0), sentence


def fields(**changes: Any) -> dict[str, str]:
    """The record's, without the prefix of ours."""
    return {name.replace("OCI_GPU_HOOK_", ""): value for name, value in records.fields(*made(**changes))}


def read(datagram: bytes) -> list[tuple[str, bytes]]:
    """The journal's native protocol, as journald reads it: an independent reader of the specification."""
    found = []
    while datagram:
        line, _, rest = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, end, rest = rest[8 : 8 + size], rest[8 + size : 9 + size], rest[9 + size :]
            assert end == b"\n"
        found.append((name.decode("ascii"), value))
        datagram = rest
    return found


def several(datagram: bytes, name: str) -> list[str]:
    return [value.decode() for key, value in read(datagram) if key == name]


def test_a_start_has_all_its_fields() -> None:
    text = "".join([f"{name}={value.decode()}\n" for name, value in read(records.datagram(*made()))])
    # What it took of the processor is measured.
    text = re.sub(r"(_CPU_USEC)=[1-9]\d*", r"\1=1", text)
    assert text == (Path(__file__).parents[1] / "data/record.txt").read_text()


@pytest.mark.parametrize(
    ("code", "steps", "outcome", "why", "field"),
    [
        (3, ("start", "read"), "refused", "bundle", "REASON"),
        (6, ("start", "read", "plan"), "refused", "driver", "REASON"),
        (7, ("start", "read", "plan", "apply"), "failed", "apply", "STEP"),
        (1, ("start", "read", "plan"), "failed", "plan", "STEP"),
    ],
)
def test_what_does_not_start_says_why(code: int, steps: tuple[str, ...], outcome: str, why: str, field: str) -> None:
    how: dict[str, Any] = {"exit_code": code, "request": None, "sentence": "it is so", "steps": dict.fromkeys(steps, 7)}
    found = fields(**how)
    assert (found["OUTCOME"], found[field], found["SENTENCE"]) == (outcome, why, "it is so")
    assert found["MESSAGE"] == "container 3f2a3f2a3f2a does not start: it is so"
    assert records.counted(*made(**how)[:3]) == f"\n{7 * len(steps)} {outcome} {why}\n".encode()


def test_every_error_has_its_reason() -> None:
    """A class of errors that is added is counted as something."""
    kinds = [kind for kind in errors.HookError.__subclasses__() if kind.__module__ == errors.__name__]
    refused = {kind.exit_code for kind in kinds} - {errors.UsageError.exit_code, errors.ApplyError.exit_code}
    assert refused == set(records.REFUSALS)


def test_what_is_asked_of_other_vendors_stands_behind_their_flags() -> None:
    asked = Request("env", ("0", "1"), flag="OCI_AMD", file="/usr/share/oci-gpu-hook/vendors/amd.json")
    found = fields(request=Request("env", (), (), vendors=(asked,)))
    assert found["REQUEST"] == "OCI_AMD=0,OCI_AMD=1" and "CAPABILITIES" not in found
    assert found["MESSAGE"].startswith("container 3f2a3f2a3f2a got OCI_AMD=0, OCI_AMD=1: 2 device")
    assert fields(request=REQUEST._replace(vendors=(asked,)))["REQUEST"] == "0,GPU-1,OCI_AMD=0,OCI_AMD=1"
    # As a CDI spec of control nodes brings them.
    nodes = fields(request=REQUEST._replace(devices=()))
    assert nodes["MESSAGE"].startswith("container 3f2a3f2a3f2a got nothing: 2 device nodes")


def test_one_that_starts_without_what_it_asked_for_says_so() -> None:
    how: dict[str, Any] = {"request": None, "notes": ("only privileged containers may ask",)}
    found = fields(**how)
    assert found["OUTCOME"] == "ignored"
    assert found["MESSAGE"].endswith(" starts without what it asked for: only privileged containers may ask")
    assert records.counted(*made(**how)[:3]).endswith(b" ignored -\n")


@pytest.mark.parametrize(
    "hostile", ["a\nMESSAGE=forged", "\n", "a\0b", "\x1b[31mred", "ü" * 10**6, "\ud800\n" * 10**5], ids=range(6)
)
def test_a_hostile_text_stays_a_value(hostile: str) -> None:
    said = dict.fromkeys(("container", "image", "sentence"), hostile)
    told = made(**said, plan=Plan(relabelled=hostile), notes=(hostile,) * 50, exit_code=7)
    found = read(records.datagram(*told))
    names = [name for name, _ in records.fields(*told)]
    assert [name for name, _ in found] == names
    assert len([name for name in names if not name.startswith("OCI_GPU_HOOK_")]) == 4
    assert dict(found)["MESSAGE"].decode().isprintable()
    assert max(len(value) for _, value in found) <= 2000
    whole = hostile.encode("utf-8", "backslashreplace")
    image = dict(found)["OCI_GPU_HOOK_IMAGE"]
    assert whole.startswith(image)
    image.decode()


@given(st.text(max_size=50), st.text(max_size=50))
def test_any_text_is_read_back_as_it_was(container: str, note: str) -> None:
    sent = records.datagram(*made(container=container, notes=(note, "second")))
    assert several(sent, "OCI_GPU_HOOK_CONTAINER") == [text for text in (container,) if text]
    assert several(sent, "OCI_GPU_HOOK_NOTE") == [text for text in (note, "second") if text]


def test_the_longest_record_fits_into_a_datagram() -> None:
    """net.core.wmem_default is 212992 nearly everywhere, less the kernel's own 32 bytes."""
    long = "\ud800\n" * 10**5
    request = REQUEST._replace(devices=(long,), capabilities=(long,))
    plan = Plan(devices=3000)
    plan.operations += tuple([Relabel(long, long, "", True, "")] * 100)
    told = made(container=long, image=long, namespace=long, request=request, plan=plan, notes=(long,) * 100)
    datagram = records.datagram(*told)
    assert len(datagram) < 100_000
    assert several(datagram, "OCI_GPU_HOOK_DEVICES") == ["3000"]


# --- what a start sends: a record to the journal and a line to the counters, with the time of each step


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


# --- what leaves is one short line that no terminal takes for a command, whatever an image or an engine has put in

ESCAPE = "\x1b[31mred\x1b[0m\x07\u202e"
HOSTILE = [ESCAPE, ESCAPE * 500, "a" * 3_400, "a b " * 900, "\n" * 10, "\udcff", "x" * 4 * MIB, "y " * MIB]


@given(st.text() | st.text(max_size=40).map(lambda text: text * 100), st.integers(30, 2000))
def test_any_text_becomes_plain_and_stays_so(text: str, most: int) -> None:
    assert plain(text, most).isprintable()
    assert len(plain(text, most)) <= 10 * max(most, 300)
    if text.isprintable() and len(text) <= min(most, 300):
        assert plain(text, most) == text


def test_what_is_just_short_enough_is_whole() -> None:
    """A word has 300 characters, and a sentence what its reader allows."""
    assert plain("x" * 300) == "x" * 300
    assert len(plain("x" * 301)) == 300
    words = "xy " * 133 + "z"
    assert plain(words, 400) == words and len(plain(words, 399)) == 399


def test_of_a_long_piece_its_ends_stay_and_what_is_said_of_it() -> None:
    path = f"/first{'/x' * 2000}/last"
    said = str(BundleError(f"the root {path} cannot be opened: {path}", "fix it"))
    assert said.count("/first/x/x/x") == said.count("/x/last") == said.count("...") == 2
    assert said.startswith("the root /first") and said.endswith("/last (fix it)") and len(said) < 700


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: f"{text[:4]!a} {len(text)}")
def test_every_error_is_plain(hostile: str) -> None:
    errors: tuple[Callable[[], Exception], ...] = (
        lambda: HookError(f"it is {hostile}, so"),
        lambda: ApplyError(f"cannot go: {TargetError(1, f'{hostile} is there')}"),
        lambda: TargetError(1, f"{hostile} is there"),
        lambda: SyscallError(2, "openat2", hostile),
    )
    for error in errors:
        said = str(error())
        assert said.isprintable() and len(said) <= 3 * LONGEST
        assert peak(error) < 40 * MIB


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: f"{text[:4]!a} {len(text)}")
def test_what_is_said_is_one_plain_line(hostile: str, capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.keep([f"the file {hostile} is left out"])
    progress.say()
    sentence.failure(ValueError(hostile))
    note, failure = capfd.readouterr().err.rstrip("\n").split("\n")
    assert all(line.isprintable() and len(line) <= 10 * LONGEST_LIST for line in (note, failure))
    assert note == f"oci-gpu-hook: {progress.notes[0]}"


def test_of_very_many_notes_the_first_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for _ in range(2):
        progress.keep([f"note {number}" for number in range(5_000)])
    progress.say()
    said = capfd.readouterr().err.rstrip("\n").split("\n")
    assert len(said) == len(progress.notes) == 129
    assert said[-1] == "oci-gpu-hook: more is left out than is listed here"


class AllVolumes(Tree):
    """A root in which only the top folder is the container's own."""

    def is_own(self, fd: int) -> bool:
        return os.fstat(fd).st_ino == os.fstat(self.root_fd).st_ino


@pytest.mark.parametrize("name", [ESCAPE, "a b " * 50, f"{'long' * 50}/" * 10])
def test_where_an_images_link_leads_is_said_plainly(tmp_path: Path, name: str) -> None:
    """A link's text may have any bytes, and 4,095 of them."""
    (tmp_path / "volume" / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(f"/volume/{name}/nothing")
    with closing(os.open(tmp_path, os.O_PATH)) as fd, pytest.raises(TargetError) as caught:
        AllVolumes(fd, (), Undo()).own_folder("/link")
    said = str(caught.value)
    assert said.startswith("/volume/") and said.endswith("one of its own, such as an overlay")
    assert said.isprintable() and len(said) < 400


def test_what_a_command_shows_is_plain_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, {}, [f"one {ESCAPE}", f"two\n{'x' * 5_000}", "  three"])
    first, second, *others = capsys.readouterr().out.split("\n")
    assert first.isprintable() and "red" in first and len(second) < 400
    assert others == ["  three", ""]
