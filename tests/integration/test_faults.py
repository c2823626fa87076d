# SPDX-License-Identifier: Apache-2.0
"""Bad input and broken hosts: the documented exit code, one sentence, nothing left behind, no traceback; and in time.

No runtime limits the hook's time, and the hook does.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, Bundle, in_turn, on_node, run_unshared, start
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


def test_a_device_cgroup_that_is_never_touched_need_not_be_found(bundle: Maker) -> None:
    """An engine in a container that has a cgroup namespace cannot name those beside its own."""
    made, name = bundle("busybox").asks("0"), f"hidden-{os.getpid()}"
    made.config["linux"]["cgroupsPath"] = f"/{name}/beside"
    made.runs("/bin/sh", "-c", "ls /dev/nvidiactl")
    script = f"""
        group=/sys/fs/cgroup/{name}; mkdir -p $group/own
        run() {{ sh -c 'echo 0 >'$group'/own/cgroup.procs; exec unshare --cgroup {start("runc", made)}' 2>&1; }}
        run || echo $?
        echo 'device-cgroup = off' >/etc/oci-gpu-hook.conf
        run
        rmdir $group/own $group
    """
    said = on_node(script, cgroup="v2").printed()
    assert "device cgroup cannot be found: open cgroup /../beside below the mounts" in said
    assert said.splitlines()[-2:] == ["1", "/dev/nvidiactl"]


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
def test_what_cannot_be_met_stops_one_start(bundle: Maker, faults: str, devices: str, code: int, words: str) -> None:
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


# A hook of another's, which reads its state.  crun keeps all signals for later, so one SIGCHLD waits from then on.
OTHER: dict[str, Any] = {"path": "/bin/cat", "args": ["cat"]}
# The next hook has ended when crun looks for its end: of two such signals the kernel keeps the first, of another.
SLOW = "strace -o /dev/null -e trace=rt_sigtimedwait -e inject=rt_sigtimedwait:delay_enter=500000 "


@pytest.mark.parametrize(("timeout", "fails"), [(None, False), (2, True)])
def test_crun_sees_the_hooks_end(bundle: Maker, timeout: int | None, fails: bool) -> None:
    """It does of a hook that has a timeout: of ours, with one, this shows that the test can fail."""
    made = bundle("busybox").asks(None)
    ours = dict(made.config["hooks"]["createRuntime"][-1])
    ours.update({"timeout": timeout} if timeout else {})
    made.config["hooks"] = {"createRuntime": [OTHER, OTHER, ours]}
    made.runs("/bin/sh", "-c", "echo started")
    done = on_node(SLOW + start("crun", made))
    assert (done.code != 0) is fails, done.err
    assert done.out == ("" if fails else "started\n")


# A filesystem whose server has the file open and never answers: what looks at it waits until it is killed.
NEVER_ANSWERS = """
import ctypes, json, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse
assert libc.mount(b"none", {folder!r}.encode(), b"fuse", 0, options) == 0
code = {code!r}
state = json.dumps({{"id": "c", "pid": os.getpid(), "bundle": {folder!r} + "/bundle"}})
done = subprocess.run([{python!r}, "-c", code], input=state, text=True, timeout=60)
print(done.returncode)
"""
SHORT = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from oci_gpu_hook.kernel import alarm
alarm.SECONDS = 1
from oci_gpu_hook import hook
hook.main("createRuntime", [])
"""


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this kernel has no FUSE")
def test_a_filesystem_that_does_not_answer_holds_no_hook_for_ever(tmp_path: Path) -> None:
    code = NEVER_ANSWERS.format(folder=str(tmp_path), code=SHORT, python=sys.executable)
    assert run_unshared(code) == f"{-signal.SIGALRM}\n"
