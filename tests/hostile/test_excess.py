# SPDX-License-Identifier: Apache-2.0
"""A config.json with far more than any engine writes: who asks for nothing starts, and no start takes memory by it."""

from __future__ import annotations

import re

import pytest

from tests.hostile.scene import BOTH
from tests.integration.conftest import Maker
from tests.integration.engines import PROCDRIVER, Bundle, Installed, in_turn, start

MANY = {f"key{number}": "value" for number in range(200_000)}
LONG = {"long": "x" * (64 << 20)}
# An interpreter takes some 30 MiB of addresses; and 64 MiB more is what a start may take.
MOST = 128 << 10


def bounded(made: Bundle) -> Bundle:
    for hooks in made.config["hooks"].values():
        for hook in [it for it in hooks if it != PROCDRIVER]:
            words = ["sh", "-c", f'ulimit -v {MOST}; exec "$0" "$@"', hook["path"], *hook["args"][1:]]
            hook.update(path="/bin/sh", args=words)
    return made


@pytest.mark.parametrize("runtime", BOTH)
def test_a_container_without_a_sign_of_a_request_starts(installed: Installed, bundle: Maker, runtime: str) -> None:
    """By annotations, which the state has as well, and by what the state has not; with a sign it is refused."""
    cases = {"many": MANY, "long": LONG, "asks": {}, "others": {}}
    scripts = {}
    for name, said_of_it in cases.items():
        made = bounded(bundle("busybox").asks("0" if name == "asks" else None))
        made.config["annotations"] = said_of_it
        if name in ("asks", "others"):
            made.config["unknown"] = [*range(300_000)]
        made.runs("/bin/sh", "-c", "echo started; ls /dev")
        scripts[name] = f"{start(runtime, made)} 2>&1 || echo stopped"
    seen = in_turn(installed, scripts)
    *_, said, last = seen.pop("asks")
    assert last == "stopped" and re.search(r"exit (status|code:) 3\b", said), said[-500:]
    for name, lines in seen.items():
        assert "started" in lines[:2] and "nvidiactl" not in lines, (name, lines[:5])
