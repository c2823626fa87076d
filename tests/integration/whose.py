# SPDX-License-Identifier: Apache-2.0
"""Whose the /dev/shm of a running container is, as the hook has it: its owner, and how many others share it.

python3 tests/integration/whose.py BUNDLE ID PID
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from oci_gpu_hook.container import ipc
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.container.rootfs import Rootfs
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request.bundle import read_bundle


def main() -> None:
    bundle, id, pid = sys.argv[1:]
    root = Rootfs(os.open(f"/proc/{pid}/root", os.O_PATH), (), "/")
    found = ipc.mounts(read_bundle(bundle), id, root, Process(int(pid)), HostRoot())
    print(*[f"{mount.owner} {mount.members}" for mount in found if mount.path == "/dev/shm"])


if __name__ == "__main__":
    main()
