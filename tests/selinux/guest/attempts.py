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
from .mounting import label, mount, set_label, unmount

DOCKERD_CONTEXT = f"system_u:system_r:{policy.HERE.dockerd}:s0"
RUNTIME = "/usr/bin/oci-gpu-runtime"
BUNDLE = "/run/containers/storage/overlay-containers/taken/userdata"
CONFIG = f"{BUNDLE}/config.json"
ROOT_CGROUP = "/sys/fs/cgroup"
DEVICES = "/run/devices"
LAYER = "/var/lib/containers/storage/overlay/app/diff"
MADE = "system_u:object_r:oci_gpu_runtime_bundle_t:s0"
CLOSED = "EACCES"
OPEN = "ok"
STARTS = {
    "oci_gpu_hook_t": (ENGINE_CONTEXT, (HOOK, "createRuntime", "--host-root", "/")),
    "oci_gpu_runtime_t": (DOCKERD_CONTEXT, (RUNTIME, "create", "--bundle", BUNDLE, "taken")),
}


def tried(domain: str, expected: Mapping[str, str], denied: frozenset[str] | None) -> Answer:
    """What came of each attempt."""
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


def root_cgroup() -> Answer:
    """The files of cgroup v2's root, which is all processes'."""
    return tried(
        "oci_gpu_hook_t",
        {f"read:{ROOT_CGROUP}/cgroup.procs": OPEN, f"write:{ROOT_CGROUP}/cgroup.procs": CLOSED},
        # The targeted policy does not log it.
        None,
    )


def device_cgroup() -> Answer:
    """Cgroup v1, whose rules are files: they are there for whom the boolean is on."""
    rules = f"{DEVICES}/devices.allow"
    os.makedirs(DEVICES)
    mount("devices", DEVICES, "cgroup", 0, "devices")
    try:
        with host.boolean("oci_gpu_hook_use_cgroup_v1"):
            return tried("oci_gpu_hook_t", {f"write:{rules}": OPEN}, frozenset())
    finally:
        unmount(DEVICES)
        os.rmdir(DEVICES)


def memory_limit() -> Answer:
    """The files of cgroup v2, which limit device memory: they are there for whom the boolean is on."""
    with host.boolean("oci_gpu_hook_limit_memory"):
        return tried("oci_gpu_hook_t", {f"write:{ROOT_CGROUP}/cgroup.subtree_control": OPEN}, frozenset())


def shared_memory() -> Answer:
    """A file of a root service's in the host's /dev/shm."""
    path = "/dev/shm/service"
    write(path, "")
    set_label(path, "system_u:object_r:tmpfs_t:s0")
    try:
        return tried(
            "oci_gpu_hook_t",
            {f"write:{path}": CLOSED, f"relabel:{path}": policy.HERE.relabels_shm},
            frozenset(("oci_gpu_hook_t tmpfs_t:file write",)),
        )
    finally:
        os.unlink(path)


def the_host() -> Answer:
    """What the manual says that the hook may not."""
    closed = (
        "start:/usr/bin/true",
        "start:/usr/bin/runc",
        "read:/dev/nvidia0",
        "write:/etc/ld.so.conf",
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
    """Files of an image, by the runtime: what it makes there is none of the image's."""
    unneeded, planted = f"{LAYER}/app/unneeded", f"{LAYER}/app/planted"
    write(unneeded, "")
    subprocess.run(["restorecon", unneeded], check=True)
    try:
        answer = tried(
            "oci_gpu_runtime_t",
            {
                f"write:{LAYER}/app/story.py": CLOSED,
                f"rename:{LAYER}/app/story.py": CLOSED,
                f"make:{planted}": policy.HERE.runtime_in_layer,
                f"remove:{unneeded}": policy.HERE.runtime_in_layer,
            },
            frozenset(("oci_gpu_runtime_t container_ro_file_t:file write",)),
        )
        made = label(planted) if os.path.exists(planted) else MADE
        wrong = [] if made == MADE else [f"{planted} is {made}"]
        return answer._replace(wrong=[*answer.wrong, *wrong])
    finally:
        for path in (unneeded, planted):
            if os.path.exists(path):
                os.unlink(path)


CASES: dict[str, Callable[[], Answer]] = {
    "taken over: the hook and the root's cgroup": root_cgroup,
    "taken over: the hook and cgroup v1, with its boolean": device_cgroup,
    "taken over: the hook and cgroup v2, with its boolean": memory_limit,
    "taken over: the hook and the host's /dev/shm": shared_memory,
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
