# SPDX-License-Identifier: Apache-2.0
"""Bad input and broken hosts: the documented exit code, one sentence, nothing left behind, no traceback."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, in_turn, on_node, run, start
from tests.integration.inside import sentence
from tests.integration.test_invariants import HOOK


def test_a_bad_state_or_bundle_is_exit_3(bundle: Maker) -> None:
    made = bundle("busybox")
    here, gone = {"bundle": str(made.path)}, {"bundle": "/nowhere"}
    asks = '"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}'
    root = f'{{{asks}, "root": {{"path": "rootfs"}}}}'
    rows: list[tuple[str | dict[str, Any], str, str]] = [
        ("no json", "", "is not JSON"),
        (gone, "", "has no 'pid'"),
        ({"pid": 1}, "", "as 'bundle'"),
        ({"pid": 1, **gone}, "", "cannot open /nowhere/config.json"),
        ({"pid": 4194304, **here}, root, "process 4194304 cannot be looked into"),
        ({"pid": 1, **here}, "{", "is not JSON"),
        ({"pid": -1, **here}, f"{{{asks}}}", "root.path is missing"),
        ({"pid": -1, **here}, root.replace("rootfs", "gone"), "cannot be opened"),
        ({"pid": -1, **here}, root, "nothing is mounted there for the container"),
        ({"pid": -2, **here}, root, "is in this hook's own mount namespace"),
    ]
    scripts = {}
    for number, (state, config, _) in enumerate(rows):
        if isinstance(state, dict):
            state = json.dumps({"ociVersion": "1.0.2", "id": "c1", **state})
        # -1 stands for a process with a mount namespace of its own, -2 for one of ours.
        scripts[str(number)] = (
            f"printf %s {shlex.quote(config)} >{made.path}/config.json\n"
            "mkfifo /run/entered\nunshare --mount sh -c 'echo >/run/entered; exec sleep 1000' &\n"
            "read -r _ </run/entered; rm /run/entered\n"
            f'echo {shlex.quote(state)} | sed "s/: -1,/: $!,/; s/: -2,/: $$,/" |'
            f" {HOOK} createRuntime 2>&1 || echo $?\nkill $!"
        )
    found = in_turn(scripts)
    for (_, _, words), lines in zip(rows, found.values()):
        said, code = lines
        assert said.startswith("oci-gpu-hook: ") and words in said, lines
        assert code == "3", lines


ECHO = ("/bin/sh", "-c", "echo started")


def left_behind(made: Bundle, before: dict[str, tuple[str, int]]) -> set[str]:
    return set(roots.listing(made.rootfs)) - set(before) - {"dev", "proc", "sys"}


@pytest.mark.parametrize(
    ("faults", "devices", "code", "words"),
    [
        ("", "9", 5, "unknown device '9'"),
        ("library-version", "0", 6, "libcuda is there as"),
        ("no-libcuda", "0", 6, "libcuda is missing"),
        ("no-libraries", "0", 6, "libnvidia-ml is missing"),
        ("no-proc-driver", "0", 6, "kernel module is not loaded"),
        ("no-uvm", "0", 6, "modprobe nvidia-uvm"),
        ("no-gpus", "0", 6, "drives no GPU"),
    ],
)
def test_what_cannot_be_met_stops_that_start_alone(
    bundle: Maker, faults: str, devices: str, code: int, words: str
) -> None:
    made, plain = bundle("debian").asks(devices).runs(*ECHO), bundle("busybox").runs(*ECHO)
    before = roots.listing(made.rootfs)
    script = f"! {start('runc', made)} || exit 1\n{start('runc', plain)}"
    done = on_node(script, faults=tuple(faults.split()))
    assert (done.code, done.out) == (0, "started\n"), done.err
    assert f"exit status {code}" in done.err, done.err
    assert words in sentence(done.err)
    assert left_behind(made, before) == set()


def test_a_node_that_is_there_is_left_or_an_error(bundle: Maker) -> None:
    node = {"path": "/dev/nvidiactl", "type": "c", "fileMode": 0o600, "uid": 7, "gid": 0}
    wrong, right = bundle("busybox").asks("0"), bundle("busybox").asks("0")
    for made, major, minor in ((wrong, 1, 3), (right, 195, 255)):
        made.config["linux"]["devices"] = [{**node, "major": major, "minor": minor}]
        made.runs("/bin/sh", "-c", "stat -c '%u %a' /dev/nvidiactl")
    before = roots.listing(wrong.rootfs)
    script = f"! {start('runc', wrong)} || exit 1\n{start('runc', right)}"
    done = on_node(script)
    assert (done.code, done.out) == (0, "7 600\n"), done.err
    assert "/dev/nvidiactl is there as 1:3, it must be 195:255" in done.err
    assert left_behind(wrong, before) == set()


@pytest.mark.parametrize(("runtime", "cgroup"), [("runc", "v1"), ("crun", "v2")])
def test_two_hooks_give_what_one_gives(bundle: Maker, runtime: str, cgroup: str) -> None:
    """As where an engine reads two folders, and the registrations have two names: the second finds its work done."""
    look = "cut -d' ' -f5 /proc/self/mountinfo | sort -u; ls -l /dev; nvidia-smi -L"
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", look)
    once = run(runtime, cgroup, made)
    hooks = made.config["hooks"]["createRuntime"]
    hooks += [hook for hook in hooks if "oci-gpu-hook" in hook["path"]]
    made.write()
    twice = run(runtime, cgroup, made)
    assert once.code == twice.code == 0, once.err + twice.err
    # But for the minute in which they were made.
    assert [re.sub(r" ..:..", "", out) for out in (once.out, once.err)] == [
        re.sub(r" ..:..", "", out) for out in (twice.out, twice.err)
    ]
    assert "GPU 0: " in twice.out
