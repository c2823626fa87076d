# SPDX-License-Identifier: Apache-2.0
"""``oci-gpu-hook log``, with a journalctl of the test's own: what is asked of it, and what is made of its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.account import MESSAGE_ID

STARTED = {
    "__REALTIME_TIMESTAMP": "1790000000000000",
    "MESSAGE": "container abc got 0",
    "OCI_GPU_HOOK_CONTAINER": "abcdef",
    "OCI_GPU_HOOK_DEVICE": ["/dev/nvidia0", "/dev/nvidiactl"],
    "OCI_GPU_HOOK_NOTE": "one alone",
    "OCI_GPU_HOOK_IMAGE": [27, 91, 51, 49, 109],
    "OCI_GPU_HOOK_EXIT_CODE": "0",
    "OCI_GPU_HOOK_OUTCOME": "started",
    "OCI_GPU_HOOK_READ_USEC": "1500",
}
REFUSED = {
    "__REALTIME_TIMESTAMP": "1790000001000000",
    "MESSAGE": "container b does not start: so",
    "OCI_GPU_HOOK_CONTAINER": "b",
    "OCI_GPU_HOOK_EXIT_CODE": "5",
    "OCI_GPU_HOOK_OUTCOME": "refused",
}
FOREIGN: dict[str, object] = {
    "OCI_GPU_HOOK_EXIT_CODE": None,
    "OCI_GPU_HOOK_FILES": "x",
    "OCI_GPU_HOOK_NOTE": [],
}


@pytest.fixture()
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a journalctl that notes its words, and prints what lies beside it."""
    program = tmp_path / "journalctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/words\ncat {tmp_path}/entries\n'
        f"[ ! -e {tmp_path}/fails ] || {{ echo Failed to parse timestamp: x >&2; exit 1; }}\n"
    )
    program.chmod(0o755)
    (tmp_path / "entries").write_text(
        "".join([json.dumps(entry) + "\n" for entry in (STARTED, REFUSED)])
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def documents(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert cli.main(["log", "--format", "json", *words]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["records"]
    return found


def test_fields_have_short_names_and_their_types(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = documents(capsys)[0]
    assert first["device"] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert first["note"] == ["one alone"]
    assert first["image"] == "\x1b[31m"
    assert (first["exit_code"], first["read_usec"]) == (0, 1500)
    words = (journal / "words").read_text().split()
    assert f"MESSAGE_ID={MESSAGE_ID}" in words
    assert "--output=json" in words


@pytest.mark.parametrize(
    ("words", "containers"),
    [
        ((), ["abcdef", "b"]),
        (("--failed",), ["b"]),
        (("--container", "abc"), ["abcdef"]),
        (("--container", "bc"), []),
        (("--container", "abc", "--failed"), []),
    ],
)
def test_filters(
    journal: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    containers: list[str],
) -> None:
    assert [record["container"] for record in documents(capsys, *words)] == containers


def test_text_is_a_line_a_start_and_never_a_terminals_command(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["log", "--since=-1 day"]) == 0
    out = capsys.readouterr().out
    assert "--since=-1 day" in (journal / "words").read_text()
    assert "container abc got 0 (read 1.5)\n    image ?[31m\n" in out
    assert "\n    devices /dev/nvidia0 /dev/nvidiactl\n    note: one alone\n" in out
    assert "\x1b" not in out


def test_no_record_and_a_foreign_one(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (journal / "entries").write_text("")
    assert cli.main(["log"]) == 0
    assert capsys.readouterr().out == "no records\n"
    (journal / "entries").write_text(json.dumps(FOREIGN) + "\n")
    [record] = documents(capsys)
    assert record["files"] == "x"


def test_what_journalctl_says_is_passed_on(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (journal / "fails").touch()
    assert cli.main(["log", "--since", "x"]) == 2
    assert "--since is no time: Failed to parse timestamp: x" in capsys.readouterr().err


def test_what_anybody_may_have_sent_breaks_neither_the_list_nor_the_terminal(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = {
        "__REALTIME_TIMESTAMP": "9" * 30,
        "MESSAGE": "container c got \x1b[2J\nall",
        "OCI_GPU_HOOK_TIME": "\x1b[2J",
        "OCI_GPU_HOOK_MESSAGE": "\x1b[2J",
        "OCI_GPU_HOOK_EXIT_CODE": "\u00b2",
        "OCI_GPU_HOOK_FILES": "9" * 5000,
        "OCI_GPU_HOOK_READ_USEC": "\u0663",
    }
    (journal / "entries").write_text(json.dumps(forged) + "\n" + json.dumps(STARTED) + "\n")
    assert cli.main(["log"]) == 0
    first, second, *_ = capsys.readouterr().out.split("\n")
    assert first == "  container c got ?[2J?all"
    assert second.endswith("container abc got 0 (read 1.5)")
