# SPDX-License-Identifier: Apache-2.0
"""What is left of the resources that an engine sets again: all but device rules that are config.json's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.runtime import update
from tests.unit.starts import ROOT

# As containerd has them, for a container and for a privileged one.
NONE = {"allow": False, "access": "rwm"}
ALL = {"allow": True, "access": "rwm"}
FUSE = {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"}
ASKS = {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}


def config(folder: Path, devices: Any, process: Any = ASKS) -> str:
    """A config.json with these device rules."""
    path = folder / "config.json"
    path.write_text(json.dumps({"process": process, "linux": {"resources": {"devices": devices}}}))
    return str(path)


@pytest.mark.parametrize("rules", [[NONE], [ALL], [NONE, FUSE]])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_rules_that_are_in_force_are_left_out(tmp_path: Path, rules: Any, indent: int | None) -> None:
    """The others stay to the letter."""
    text = json.dumps({"devices": rules, "memory": {}, "cpu": {"shares": 512}}, indent=indent)
    left = update.without_devices(text.encode(), config(tmp_path, rules)).decode()
    assert json.loads(left) == {"memory": {}, "cpu": {"shares": 512}}
    assert '"shares": 512' in left
    # As runc spells the rule for all devices.
    spelled = [{"type": "a", "major": -1, "minor": -1, **rule} for rule in rules]
    assert update.without_devices(json.dumps({"devices": spelled}).encode(), config(tmp_path, rules)) == b"{}"


@pytest.mark.parametrize(
    "text",
    ['{"devices": [{"allow": false}, {"allow": true}]}', '{"devices": []}', '{"devices": null}']
    + ['{"cpu": {}}', '{"devices": 1}', "[]", "{", "", "\\xff"],
)  # fmt: skip
def test_whatever_else_is_to_be_set_stays(tmp_path: Path, text: str) -> None:
    """Other rules are somebody's own word; what is no update is the real runtime's to tell."""
    data = text.encode()
    assert update.without_devices(data, config(tmp_path, [NONE])) == data


def run(data: bytes, *words: object) -> tuple[int, bytes, str]:
    """Its exit status, stdout and stderr, as the script starts it."""
    code = "from oci_gpu_hook.runtime import update; update.main()"
    line = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(line, input=data, capture_output=True, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr.decode()


# More than a pipe takes at once.
LEFT = json.dumps({"unified": {"x" * 300_000: "y"}})
SET = f'{{"devices": [{json.dumps(NONE)}], {LEFT[1:]}'.encode()


def test_from_stdin_or_a_file_to_stdout(tmp_path: Path) -> None:
    kept, file = config(tmp_path, [NONE]), tmp_path / "file"
    file.write_bytes(SET)
    assert run(SET, kept, "-", "") == run(b"", kept, file, "") == (0, LEFT.encode(), "")
    # One that asks for nothing is updated, whatever its rules are.
    kept = config(tmp_path, [{"allow": False, "type": 1}], process={})
    assert run(SET, kept, "-", "")[:2] == (0, SET)


def test_a_container_that_asks_is_not_updated_where_its_rules_are_not_known(tmp_path: Path) -> None:
    log, broken = tmp_path / "log.json", tmp_path / "config.json"
    broken.write_text('{"process":{"env":["NVIDIA_VISIBLE_DEVICES=0')
    code, out, err = run(SET, broken, "-", log)
    assert (code, out) == (3, b"")
    assert f"{broken} is not JSON" in err
    assert f"oci-gpu-runtime: {broken} is not JSON" in json.loads(log.read_text())["msg"]
    code, out, err = run(b"", config(tmp_path, [NONE]), tmp_path / "nothing", "")
    assert (code, out) == (3, b"") and f"cannot open {tmp_path}/nothing" in err
