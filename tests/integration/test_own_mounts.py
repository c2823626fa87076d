# SPDX-License-Identifier: Apache-2.0
"""Which mounts are the container's own: a tmpfs or a procfs of which the host has no mount, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.integration.engines import run_unshared

# Beside the host's mount namespace, that of a container: both have a tmpfs, and only one has what is mounted there.
CODE = """
import os, subprocess
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.kernel import syscalls
os.chdir({root!r})
for name in ("proc", "dev/mqueue", "scratch", "volume", "hosts"): os.makedirs(name)
subprocess.run("mount -t tmpfs none hosts", shell=True, check=True)
mounts = '''
mount -t proc none proc
mount -t tmpfs none scratch
mount -t mqueue none dev/mqueue
mount --bind hosts volume
{more}
echo
exec cat
'''
line = ["unshare", "--mount", "--ipc", "--propagation", "private", "sh", "-euc", mounts]
inside = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert inside.stdout.readline() == b"\\n"
fd = os.open(f"/proc/{{inside.pid}}/root{root}", os.O_PATH)
own = rootfs._own(fd, ("/scratch", "/volume", "/dev/mqueue", "/absent"))
print(sorted(own.values()))
inside.communicate()
"""


def own(root: Path, more: str = "") -> str:
    root.mkdir()
    return run_unshared(CODE.format(root=str(root), more=more))


def test_own_are_a_tmpfs_and_a_procfs_that_the_host_has_not(tmp_path: Path) -> None:
    assert own(tmp_path / "root") == "['/proc/driver', '/scratch']\n"


def test_what_lies_over_a_folder_of_procfs_is_looked_at_like_the_rest(tmp_path: Path) -> None:
    """A volume of the host, and queues, which no mount of the host has either."""
    assert own(tmp_path / "a", "mount --bind hosts proc/driver") == "['/scratch']\n"
    assert own(tmp_path / "b", "mount --bind dev/mqueue proc/driver") == "['/scratch']\n"
