# SPDX-License-Identifier: Apache-2.0
"""What the domains of the hook and of the runtime may do to the host once somebody has taken them over.

An engine starts the entry script, or oci-gpu-runtime, whose package is the copy that runs `taken`.  So each attempt is
made in the very domain that the policy leads to.  `python3 -m tests.selinux.guest.attempts` is the engine's part.
Must not leave anything on the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

from ..files import write
from . import host, policy
from .commands import ENGINE_CONTEXT, HOOK, Answer

DOCKERD_CONTEXT = f"system_u:system_r:{policy.HERE.dockerd}:s0"
RUNTIME = "/usr/bin/oci-gpu-runtime"
BUNDLE = "/run/containers/storage/overlay-containers/taken/userdata"
CONFIG = f"{BUNDLE}/config.json"
LAYER = "/var/lib/containers/storage/overlay/app/diff"
CLOSED = "EACCES"
STARTS = {
    "oci_gpu_hook_t": (ENGINE_CONTEXT, (HOOK, "createRuntime", "--host-root", "/")),
    "oci_gpu_runtime_t": (DOCKERD_CONTEXT, (RUNTIME, "create", "--bundle", BUNDLE, "taken")),
}


def tried(domain: str, expected: Mapping[str, str], denied: frozenset[str]) -> Answer:
    words = ["runcon", STARTS[domain][0], sys.executable, "-B", "-m", __name__, domain]
    environment = {**os.environ, "E2E_ATTEMPTS": " ".join(expected)}
    with _bundle(), host.unchecked("taken"):
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment)
    seen = dict(line.rpartition("=")[::2] for line in done.stdout.splitlines())
    wrong = [
        f"{word} is {seen.get(word, 'nothing')}, not {result}"
        for word, result in expected.items()
        if seen.get(word) != result
    ]
    if wrong:
        wrong.append(done.stderr[-500:])
    return Answer(wrong, denied=denied)


@contextlib.contextmanager
def _bundle() -> Iterator[None]:
    """A bundle that asks for a GPU, of a form that oci-gpu-runtime leaves to Python."""
    write(CONFIG, json.dumps({"hooks": {}, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}))
    subprocess.run(["restorecon", "-R", os.path.dirname(BUNDLE)], check=True)
    try:
        yield
    finally:
        shutil.rmtree(os.path.dirname(BUNDLE))


def the_host() -> Answer:
    """What the manual says that the hook may not."""
    closed = (
        "start:/usr/bin/true",
        "start:/usr/bin/runc",
        "read:/dev/nvidia0",
        "write:/etc/ld.so.conf",
        "write:/sys/fs/cgroup/cgroup.procs",
        "make:/run/planted",
        "make:/var/lib/planted",
        "relabel:/etc/ld.so.conf",
        "relabel:/usr/bin/true",
        "node:/dev/planted",
        "network:AF_INET",
        "network:AF_NETLINK",
    )
    return tried("oci_gpu_hook_t", dict.fromkeys(closed, CLOSED), frozenset(("oci_gpu_hook_t etc_t:file relabelfrom",)))


def layer() -> Answer:
    """A file of an image, by the runtime."""
    file = f"{LAYER}/app/agent.py"
    return tried(
        "oci_gpu_runtime_t",
        {f"write:{file}": CLOSED, f"rename:{file}": CLOSED},
        frozenset(("oci_gpu_runtime_t container_ro_file_t:file write",)),
    )


CASES: dict[str, Callable[[], Answer]] = {
    "taken over: the hook and the host": the_host,
    "taken over: the runtime and an image's layer": layer,
}


def main() -> int:
    """The engine's part: the pipes are its own, for others' are none of the domains' business."""
    words = STARTS[sys.argv[1]][1]
    done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
