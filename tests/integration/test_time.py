# SPDX-License-Identifier: Apache-2.0
"""No runtime limits the hook's time, and the hook does."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, on_node, run_unshared, start

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
HANGS = """
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
    code = HANGS.format(folder=str(tmp_path), code=SHORT, python=sys.executable)
    assert run_unshared(code) == f"{-signal.SIGALRM}\n"
