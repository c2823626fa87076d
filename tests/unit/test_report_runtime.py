# SPDX-License-Identifier: Apache-2.0
"""The log of a crun whose hook has failed: what its engine shows of it is the sentence.

tests/docker/test_containerd.py has the case under the real crun and engines; the hook's stderr is test_crun's.
"""

from __future__ import annotations

import json
import posix
import subprocess
import sys
from pathlib import Path

import pytest

from oci_gpu_hook.report import crun

# A process by the name of crun, which starts a hook as crun does, and says what crun does once that has failed.
CRUN = """
import subprocess, sys
log = open(sys.argv[sys.argv.index("--log") + 1], "ab")
tell = "from oci_gpu_hook.report import crun; crun.tell('no GPU')"
subprocess.run([{python!r}, "-c", tell], stderr=subprocess.DEVNULL, check=True)
log.write(b'{{"msg": "error executing hook", "level": "error"}}\\n')
"""


def start_as_crun(folder: Path, log: Path, form: str = "json") -> None:
    """A hook of such a crun fails."""
    script = folder / "script"
    script.write_text(CRUN.format(python=sys.executable))
    words = [script, f"--log-format={form}", "--log", log, "run", "c1"]
    line = ["bash", "-c", 'exec -a crun "$0" "$@"', sys.executable, *map(str, words)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(line, check=True, stderr=subprocess.PIPE, env=environment)


def said(log: Path) -> list[str]:
    """The messages in a log."""
    return [json.loads(line)["msg"] for line in log.read_text().splitlines()]


def test_the_sentence_is_the_last_of_the_log(tmp_path: Path) -> None:
    """The shim of Docker and containerd shows the last error, and podman what stands alone."""
    log = tmp_path / "log.json"
    start_as_crun(tmp_path, log)
    assert said(log) == ["oci-gpu-hook: no GPU"]
    log.chmod(0o640)
    start_as_crun(tmp_path, log)
    assert said(log) == ["oci-gpu-hook: no GPU"] * 2
    assert (log.stat().st_mode & 0o777, json.loads(log.read_text().splitlines()[1])["level"]) == (0o640, "error")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.json", "script"]


def test_a_log_of_another_form_is_cruns_alone(tmp_path: Path) -> None:
    start_as_crun(tmp_path, tmp_path / "log", form="text")
    assert said(tmp_path / "log") == ["error executing hook"]


@pytest.mark.parametrize("kind", ["link", "large", "anothers", "full"])
def test_a_log_that_cannot_be_replaced_gets_a_line_more(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text('{"msg": "before"}\n')
    if kind == "link":
        log.rename(tmp_path / "real")
        log.symlink_to("real")
    elif kind == "large":
        log.write_text('{"msg": "before"}' + " " * (1 << 16) + "\n")
    elif kind == "anothers":
        monkeypatch.setattr(posix, "geteuid", lambda: 4711)
    else:
        monkeypatch.setattr(posix, "rename", fails)
    crun.end_log(str(log), '{"msg": "no GPU"}\n')
    assert said(log) == ["before", "no GPU"]
    assert log.is_symlink() == (kind == "link")
    assert not [path for path in tmp_path.iterdir() if "oci-gpu-hook" in path.name]


def fails(*_: object, **__: object) -> None:
    """As where the disk is full."""
    raise OSError
