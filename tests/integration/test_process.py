# SPDX-License-Identifier: Apache-2.0
"""container.process.Process on real processes: one that has ended is never taken for the next with its number."""

from __future__ import annotations

from tests.integration.engines import run_unshared

# In a PID namespace of one's own the number of the next process can be chosen (proc_sys_kernel(5), ns_last_pid).
CODE = """
import os, subprocess
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import BundleError
def begun():
    child = subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1)
    child.stdout.readline()
    return child
def seen():
    for name, look in looks.items():
        try: look()
        except BundleError as err: print(name, err.message.rpartition(": ")[2])
        else: print(name, "looked")
first = begun()
process = Process(first.pid)
looks = {
    "open": lambda: os.close(process.open("ns/mnt", os.O_RDONLY)),
    "read": lambda: process.read("cgroup"),
    "pieces": lambda: next(process.pieces("mountinfo")),
    "namespace": lambda: process.namespace("mnt"),
    "user": lambda: process.in_user_namespace(),
}
seen()
first.communicate()
with open("/proc/sys/kernel/ns_last_pid", "w") as last: last.write(str(first.pid - 1))
second = begun()
print(second.pid == first.pid == Process(second.pid).pid)
seen()
second.communicate()
"""


def test_another_process_with_the_number_is_not_looked_at() -> None:
    lines = run_unshared(CODE, "--pid", "--fork", "--mount-proc").splitlines()
    looks = ("open", "read", "pieces", "namespace", "user")
    before, after = [[f"{look} {what}" for look in looks] for what in ("looked", "No such process")]
    assert lines == [*before, "True", *after]
