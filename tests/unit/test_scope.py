# SPDX-License-Identifier: Apache-2.0
"""What the hook waits for where systemd talks and does not answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from oci_gpu_hook.changes import scope
from oci_gpu_hook.formats import scopeunit

SIGNAL = scopeunit.calls(7, "other.scope", ())


def test_a_bus_that_says_other_things_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a busy systemd sends its signals to everybody: each of them is something to read."""
    monkeypatch.setattr(scope, "_SECONDS", 0.2)
    ours, theirs = socket.socketpair()

    def talk() -> None:
        with theirs, contextlib.suppress(OSError):
            for _ in range(30_000):
                time.sleep(0.02)
                theirs.sendall(SIGNAL)

    talking = threading.Thread(target=talk)
    talking.start()
    with ours, pytest.raises(OSError, match="systemd has not answered"):
        scope.wait(ours.fileno())
    talking.join()
