# SPDX-License-Identifier: Apache-2.0
"""The interpreter as the entry script starts it: nothing from outside reaches it, and the state does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from oci_gpu_hook.changes import scope
from oci_gpu_hook.formats import scopeunit
from oci_gpu_hook.node.setup import cdispec
from tests.unit import starts
from tests.unit.containers import at_stage, write_bundle
from tests.unit.starts import ROOT

pytestmark = pytest.mark.pythons


def run(command: list[Any], env: dict[str, str] | None = None, **how: Any) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    how.setdefault("input", b"")
    ran = subprocess.run(command, capture_output=True, env=env or {}, timeout=600, **how)
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


def started(folder: Path, main: str, **how: Any) -> tuple[int, str, str]:
    return run([starts.entry(folder, main), "-"], **how)


def test_names_of_files_are_utf8_where_the_locale_has_another_charset(tmp_path: Path) -> None:
    made = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / "de_DE.ISO-8859-1")]
    if shutil.which("localedef"):
        subprocess.run(made, check=False, capture_output=True)  # 1 where it only warns
    main = "print(sys.getfilesystemencoding(), sys.stdout.encoding)"
    env = {"LOCPATH": str(tmp_path), "LC_ALL": "de_DE.ISO-8859-1"}
    usual = run([sys.executable, "-ISB", "-c", f"import sys; {main}"], env=env)
    if not usual[1].startswith("iso8859-1"):
        pytest.skip("this machine cannot make a locale")
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        env = {"LOCPATH": str(tmp_path), name: "de_DE.ISO-8859-1"}
        assert started(tmp_path, main, env=env) == (0, "utf-8 utf-8\n", "")


def test_the_state_is_handed_over_as_it_is(tmp_path: Path) -> None:
    """In the folder in which the runtime started us, and though the state is no UTF-8."""
    main = "import posix; print(posix.environ[b'OCI_GPU_HOOK_STATE'], posix.getcwd(), sys.argv)"
    (tmp_path / "config.json").write_text("{")
    state = b'{"bundle": "/\xff"}'
    ran = run([starts.entry(tmp_path, main), "createRuntime"], input=state, cwd=tmp_path)
    assert ran == (0, f"{state!r} {tmp_path} ['-c', 'createRuntime']\n", "")


def test_a_word_that_is_not_a_stage_is_a_mistake_of_who_registers_the_hook(tmp_path: Path) -> None:
    """Its Python has the standard library alone, and cannot run what people type."""
    said = "oci-gpu-hook: 'prestrat' is not a hook stage (people start another program of this name)\n"
    assert run([starts.entry(tmp_path), "prestrat"]) == (2, "", said)


def test_the_start_program_starts_python_as_the_entry_script_does() -> None:
    first, *lines = (ROOT / "hooks.d/oci-gpu-hook-start").read_text().splitlines()
    begin, option, value = starts.FLAGS
    # One word is all that the kernel passes (execve(2)).
    assert first == f"#!/usr/bin/python3 {begin}{option[1:]}{value}"
    assert [line for line in lines if line and not line.startswith("#")] == starts.PROGRAM.split("\n")[1:]


def poison(folder: Path) -> Path:
    """A folder in which every module that an interpreter might look for says that it was found."""
    folder.mkdir()
    names = {"oci_gpu_hook", "linked", "sitecustomize", "usercustomize", *sys.builtin_module_names}
    standard = Path(os.__file__).parent
    names |= {path.stem for path in standard.iterdir() if path.suffix == ".py" or path.is_dir()}
    names |= {path.name.partition(".")[0] for path in (standard / "lib-dynload").glob("*.so")}
    for name in names:
        text = f"open({str(folder / 'found')!r}, 'a').write('{name} ')\n"
        (folder / f"{name}.py").write_text(text)
    for name in ("posix", "gc", "marshal", "_json", "encodings", "linecache", "linked"):
        assert (folder / f"{name}.py").exists()
    return folder


TELL = """
import os
print(sys.flags, sys.path, sorted(sys.modules), sys.warnoptions, sys._xoptions, sys.breakpointhook)
print(sys.pycache_prefix, sys.dont_write_bytecode, sys.prefix, sys.executable)
print(sys.stdin.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.getfilesystemencoding())
"""
HOSTILE = {
    "PYTHONPATH": "{poison}",
    "PYTHONHOME": "/nowhere",
    "PYTHONSTARTUP": "{poison}/gc.py",
    "PYTHONINSPECT": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONIOENCODING": "utf-16:strict",
    "PYTHONUTF8": "0",
    "PYTHONSAFEPATH": "",
    "PYTHONOPTIMIZE": "2",
    "PYTHONPYCACHEPREFIX": "{poison}",
    "PYTHONPLATLIBDIR": "nowhere",
    "PYTHONUSERBASE": "{poison}",
}


def test_no_variable_from_outside_reaches_the_interpreter(tmp_path: Path) -> None:
    folder = poison(tmp_path / "poison")
    expected = started(tmp_path, TELL)
    assert expected[0] == 0 and expected[1] and not expected[2], expected
    given = {key: value.format(poison=folder) for key, value in HOSTILE.items()}
    assert started(tmp_path, TELL, env=given) == expected
    assert not (folder / "found").exists()


# An interpreter that ends in a fault of ours: the traceback is what imports most.
FAILS = "import json\nraise ValueError('\\u00e4')"


@pytest.mark.parametrize("main", [starts.MAIN, FAILS])
@pytest.mark.parametrize("devices", ["void", "0"])
def test_no_module_comes_from_the_bundle(tmp_path: Path, main: str, devices: str) -> None:
    """Runtimes start hooks in the bundle, which is a container's; Python looks for modules where it is started."""
    bundle = poison(tmp_path / "bundle")
    write_bundle(tmp_path, f"NVIDIA_VISIBLE_DEVICES={devices}")
    (tmp_path / "host").mkdir()
    # With an option the entry script leaves the state where it is: both ways are to be seen.
    for options in ([], ["--host-root", str(tmp_path / "host")]):
        command = [str(starts.entry(tmp_path, main)), "createRuntime", *options]
        code, _, said = at_stage(command, bundle, cwd=bundle)
        assert not (bundle / "found").exists(), (bundle / "found").read_text()
        assert code == (1 if main == FAILS else code), said
        assert ("Traceback" in said) == (main == FAILS), said


@pytest.fixture()
def library(tmp_path: Path) -> Path:
    """The package without its compiled files."""
    path = tmp_path / "library"
    hidden = shutil.ignore_patterns("__pycache__", "__linked__")
    shutil.copytree(ROOT / "oci_gpu_hook", path / "oci_gpu_hook", ignore=hidden)
    return path


def others() -> dict[str, str]:
    """Every other Python of this machine that the hook can run on, by version: pyenv's own, or on PATH.

    pyenv's shims on PATH may lead to none, and each is a slow script.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for version in [f"3.{minor}" for minor in range(9, 15) if minor != sys.version_info[1]]:
        paths = [Path(folder, f"python{version}") for folder in os.get_exec_path()]
        for path in (*pyenv.glob(f"versions/{version}.*/bin/python3"), *paths):
            if path.exists() and not subprocess.run([path, "-V"], capture_output=True).returncode:
                found[version] = str(path)
                break
    return found


@pytest.mark.parametrize("other", others().values())
def test_a_python_that_the_hook_was_not_installed_for_starts_it(tmp_path: Path, library: Path, other: str) -> None:
    """As after an update of Python: it compiles the package for itself."""
    entry = starts.entry(tmp_path, library=library)
    entry.write_text(entry.read_text().replace(sys.executable, other))
    assert run([entry, "poststop"], env={"PATH": os.environ["PATH"]}) == (0, "", "")


# --- a hook stage ends by itself: nothing else limits its time, and no systemd that talks and does not answer holds it

# A start whose time is short, and which may hang once it has read the state.
SHORT = """
linked.prepare()
from oci_gpu_hook.kernel import alarm
alarm.SECONDS = 1
import posix
from oci_gpu_hook import hook
{hang}
posix._exit(hook.main("createRuntime", []))
"""
HANG = """
def start(*words):
    import time
    while True:
        time.sleep(60)
hook.start = start
"""
STATE = json.dumps({"id": "c", "pid": 1, "bundle": "/nowhere"}).encode()
# What the program that starts the hook may have made of the signal.
AS_IT_IS = "pass"
BLOCKED = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
IGNORED = "signal.signal(signal.SIGALRM, signal.SIG_IGN)"
BEFORE = "import os, signal, sys; {}; os.execv(sys.argv[1], sys.argv[1:])"


def short_start(hang: str, before: str, written: bytes) -> tuple[int, str]:
    """How a start ends whose standard input never does, and what it says."""
    line = starts.command(SHORT.format(hang=hang))
    line = [line[0], "-c", BEFORE.format(before), *line]
    with subprocess.Popen(line, stdin=PIPE, stderr=PIPE, env={}) as child:
        assert child.stdin is not None and child.stderr is not None
        with suppress(BrokenPipeError):
            child.stdin.write(written)
            child.stdin.flush()
        if hang:
            child.stdin.close()
        # Not communicate(), which would end the input.
        return child.wait(timeout=60), child.stderr.read().decode()


@pytest.mark.parametrize("before", [AS_IT_IS, BLOCKED, IGNORED])
@pytest.mark.parametrize("written", [b"", STATE[:20], STATE])
def test_a_state_without_an_end_is_one_sentence(before: str, written: bytes) -> None:
    says = "the state on stdin does not end within 1 seconds (the container engine or runtime must fix it)"
    assert short_start("", before, written) == (3, f"oci-gpu-hook: {says}\n")


@pytest.mark.parametrize("before", [AS_IT_IS, BLOCKED, IGNORED])
def test_what_hangs_later_is_ended_by_the_signal(before: str) -> None:
    assert short_start(HANG, before, STATE) == (-signal.SIGALRM, "")


def test_no_registration_and_no_spec_asks_for_a_limit() -> None:
    """crun loses the end of a hook that has one (tests/integration/test_faults.py)."""
    registration = json.loads((starts.ROOT / "hooks.d/oci-gpu-hook.json").read_text())
    assert "timeout" not in registration["hook"]
    assert "timeout" not in cdispec._started(cdispec.Hook("/hook", ("utility",)))


def test_a_bus_that_says_other_things_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a busy systemd sends its signals to everybody: each of them is something to read."""
    monkeypatch.setattr(scope, "_SECONDS", 0.2)
    ours, theirs = socket.socketpair()

    def talk() -> None:
        with theirs, suppress(OSError):
            for _ in range(30_000):
                time.sleep(0.02)
                theirs.sendall(scopeunit.calls(7, "other.scope", ()))

    talking = threading.Thread(target=talk)
    talking.start()
    with ours, pytest.raises(OSError, match="systemd has not answered"):
        scope.wait(ours.fileno())
    talking.join()
