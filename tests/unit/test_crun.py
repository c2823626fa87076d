# SPDX-License-Identifier: Apache-2.0
"""A state that says "/" in place of the bundle: whom the hook believes; test_main_job.py has the real crun."""

from __future__ import annotations

import json
import posix
import subprocess
import sys
from pathlib import Path
from typing import IO
from unittest import mock

import pytest

from oci_gpu_hook import asking, hook
from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.kernel import procfile
from oci_gpu_hook.report import crun
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request.state import State

PID = 77
PARENT = 4_321


@pytest.fixture()
def proc(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What this process and crun's say."""
    files = {
        f"/proc/{PARENT}/cmdline": b"crun\0create\0--bundle\0/nowhere\0c1\0",
        "/proc/self/stat": b"76 (a) b) S %d 1 1" % PARENT,
    }
    monkeypatch.setattr(procfile, "read_whole", lambda path: files[path])
    return files


def lost(**annotations: str) -> State:
    return State("c1", PID, "/", annotations)


@pytest.mark.parametrize(
    "line",
    ["crun create --bundle {} c1", "crun run -b {} c1", "crun --debug run --bundle={} --pid-file p c1"]
    # What is not UTF-8, too.
    + ["crun --log /l\udcff run -b {} c1"],
)
def test_the_command_line_names_the_bundle(proc: dict[str, bytes], tmp_path: Path, line: str) -> None:
    (tmp_path / "config.json").touch()
    command = [word.format(tmp_path) for word in line.split()]
    proc[f"/proc/{PARENT}/cmdline"] = "\0".join([*command, ""]).encode(errors="surrogateescape")
    assert crun.bundle_of(lost()) == str(tmp_path)
    # Of another container, or of a program between crun and us.
    assert crun.bundle_of(lost()._replace(id="another")) == ""


def test_anothers_number_tells_nothing(proc: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """crun is killed while the hook asks, and a user's process gets its number and writes such words."""
    (tmp_path / "config.json").touch()
    line = f"/proc/{PARENT}/cmdline"
    proc[line] = f"crun\0run\0--bundle\0{tmp_path}\0c1\0".encode()

    def read(path: str) -> bytes:
        found = proc[path]
        if path == line:
            proc["/proc/self/stat"] = b"76 (a) S 1 1 1"
        return found

    monkeypatch.setattr(procfile, "read_whole", read)
    assert crun.bundle_of(lost()) == ""


def test_the_state_folder_has_a_copy(proc: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/config.json").write_text("{}")
    proc[f"/proc/{PARENT}/cmdline"] = f"crun\0--root\0{tmp_path}\0run\0c1\0".encode()
    assert crun.bundle_of(lost()) == f"{tmp_path}/c1"


def test_where_nobody_tells_only_a_request_stops(proc: dict[str, bytes], capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever else it is: the start goes on, is told of and recorded."""
    progress = Progress()
    hook.start(progress, lost(), asking.options([]))
    assert "keeps it nowhere that is known" in capfd.readouterr().err
    assert "keeps it nowhere that is known" in progress.notes[0]
    asks = {"cdi.k8s.io/gpu": "nvidia.com/gpu=0"}
    for state, words in ((lost(**asks), []), (lost(), ["--cdi", "utility"])):
        with pytest.raises(BundleError, match="keeps it nowhere that is known"):
            hook.start(Progress(), state, asking.options(words))


def test_the_hosts_own_config_json_is_believed_last(proc: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix, "access", lambda *_: True)
    line = f"/proc/{PARENT}/cmdline"
    for words, bundle in (("run --bundle /b c1", "/b"), ("run c1", "/run/crun/c1"), ("run other", "/")):
        proc[line] = f"crun {words}".replace(" ", "\0").encode()
        assert crun.bundle_of(lost()) == bundle


# A process by the name of crun, which starts a hook as crun does, and says what crun does once that has failed.
CRUN = """
import subprocess, sys
log = open(sys.argv[sys.argv.index("--log") + 1], "ab")
subprocess.run([{python!r}, '-c', {code!r}], stderr=subprocess.DEVNULL, check=True)
log.write(b'{{"msg": "error executing hook", "level": "error"}}\\n')
"""
CRUNS_OWN = ("error executing hook", "error")


def under_crun(
    tmp_path: Path, code: str, form: str, stderr: IO[bytes] | int, name: str = "crun"
) -> tuple[str, list[tuple[str, str]]]:
    """What crun's stderr has if it is a pipe, and its log in each line, when this code has run in its hook's place."""
    log, script = tmp_path / "log", tmp_path / "script"
    script.write_text(CRUN.format(python=sys.executable, code=code))
    words = [script, f"--log-format={form}", "--log", log, "run", "c1"]
    line = ["bash", "-c", 'exec -a "$0" "$@"', name, sys.executable, *map(str, words)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(line, check=True, stderr=stderr, text=True, env=environment)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return done.stderr, [(line["msg"], line["level"]) for line in lines]


TELL = "from oci_gpu_hook.report import crun; crun.tell('no GPU')"


@pytest.mark.parametrize(("form", "told"), [("json", 1), ("text", 0)])
@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_what_failed_is_told_where_crun_writes(tmp_path: Path, form: str, told: int, mode: str) -> None:
    """Not to a file in which crun would write over it."""
    err = tmp_path / "err"
    with err.open(mode) as stderr:
        _, log = under_crun(tmp_path, TELL, form, stderr)
    assert err.read_text() == ("oci-gpu-hook: no GPU\n" if mode == "ab" else "")
    # The last of the log is what the shim of Docker and containerd shows, and podman what stands alone.
    assert log == ([("oci-gpu-hook: no GPU", "error")] if told else [CRUNS_OWN])
    (tmp_path / "log").chmod(0o640)
    _, log = under_crun(tmp_path, TELL, form, subprocess.DEVNULL)
    assert log == ([("oci-gpu-hook: no GPU", "error")] if told else [CRUNS_OWN]) * 2
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["err", "log", "script"]


def test_youkis_log_ends_with_what_failed(tmp_path: Path) -> None:
    """Of its own lines, which have "message" and "ERROR", the shim of Docker and containerd reads none."""
    assert under_crun(tmp_path, TELL, "json", subprocess.DEVNULL, "youki")[1] == [("oci-gpu-hook: no GPU", "error")]


@pytest.mark.parametrize("kind", ["link", "large", "anothers", "full"])
def test_a_log_not_replaced_gets_a_line_more(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text('{"msg": "before"}' + " " * (1 << 16 if kind == "large" else 0) + "\n")
    if kind == "link":
        log.rename(tmp_path / "real")
        log.symlink_to("real")
    elif kind == "anothers":
        monkeypatch.setattr(posix, "geteuid", lambda: 4711)
    elif kind == "full":
        monkeypatch.setattr(posix, "rename", mock.Mock(side_effect=OSError))
    crun.end_log(str(log), '{"msg": "no GPU"}\n')
    assert [json.loads(line)["msg"] for line in log.read_text().splitlines()] == ["before", "no GPU"]
    assert log.is_symlink() == (kind == "link")
    assert not [path for path in tmp_path.iterdir() if "oci-gpu-hook" in path.name]


WITHOUT_POWER = """
import posix
from oci_gpu_hook.changes import namespace
from oci_gpu_hook.report import crun
held = posix.open(f"/proc/{posix.getppid()}/fd/2", posix.O_PATH)
namespace.drop_privileges(as_owners=False)
crun.tell('no GPU', held)
"""


def test_a_step_that_failed_is_told_though_crun_has_more_capabilities_by_then(tmp_path: Path) -> None:
    """As an engine's: its stderr is a pipe."""
    assert under_crun(tmp_path, WITHOUT_POWER, "text", subprocess.PIPE) == ("oci-gpu-hook: no GPU\n", [CRUNS_OWN])


START = """
from oci_gpu_hook import hook
from oci_gpu_hook.asking import Options
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request.state import State
hook.start(Progress(), State("c1-of-this-test", 77, "/", {}), Options())
"""


def test_a_start_without_a_bundle_is_told_there_as_well(tmp_path: Path) -> None:
    """crun leads its hook's own stderr away, and the container starts: nothing else says that it may lack its GPU."""
    err, log = under_crun(tmp_path, START, "json", subprocess.PIPE)
    note = "whether the container asks for a GPU is not known, and it gets none: the runtime says "
    assert err.startswith(f"oci-gpu-hook: {note}") and err.count("\n") == 1
    assert [message.startswith(f"oci-gpu-hook: {note}") for message, _ in log] == [True]
