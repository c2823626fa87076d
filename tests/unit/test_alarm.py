# SPDX-License-Identifier: Apache-2.0
"""A hook stage ends by itself: nothing else limits its time, and no systemd that talks and does not answer holds it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from subprocess import PIPE

import pytest

from oci_gpu_hook.changes import scope
from oci_gpu_hook.formats import scopeunit
from oci_gpu_hook.node.setup import cdispec
from tests.unit import starts

pytestmark = pytest.mark.pythons

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


def started(hang: str, before: str, written: bytes) -> tuple[int, str]:
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
    assert started("", before, written) == (3, f"oci-gpu-hook: {says}\n")


@pytest.mark.parametrize("before", [AS_IT_IS, BLOCKED, IGNORED])
def test_what_hangs_later_is_ended_by_the_signal(before: str) -> None:
    assert started(HANG, before, STATE) == (-signal.SIGALRM, "")


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
