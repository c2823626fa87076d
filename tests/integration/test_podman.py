# SPDX-License-Identifier: Apache-2.0
"""podman with --hooks-dir: the registration as an engine reads it, with runc and crun beneath."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.engines import Installed, Outcome, on_node
from tests.integration.test_main_job import ALLOWED, DENIED, minors


def podman(
    installed: Installed,
    tmp_path: Path,
    root: Path,
    runtime: str,
    cgroup: str,
    *words: str,
    env: str = "",
    before: str = "",
    description: str = "h100x8",
) -> Outcome:
    """``podman run`` of a root folder, with storage and state of its own, after the shell lines `before`."""
    line = [
        f"podman --root {tmp_path}/storage --runroot /run/{tmp_path.name[:20]} --storage-driver vfs",
        f"--runtime {runtime} --cgroup-manager=cgroupfs --events-backend=none",
        "--hooks-dir /usr/libexec/gpunode/hooks.d --hooks-dir /usr/share/containers/oci/hooks.d",
        "run --rm --pids-limit=-1 --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --network=none",
        f"--cap-add=mknod --security-opt seccomp=unconfined {env} --rootfs {root}",
        *words,
    ]
    try:
        return on_node(installed, before + " ".join(line), cgroup=cgroup, description=description)
    finally:
        remove_parents()


def remove_parents() -> None:
    """The parent of podman's cgroups outlives its containers, and cgroups are the machine's, not the node's."""
    for parent in Path("/sys/fs/cgroup").glob("**/libpod_parent"):
        for attempt in range(50):
            try:
                for folder in sorted(parent.glob("**/"), reverse=True):
                    folder.rmdir()
                break
            except OSError:
                # conmon, the container's monitor, may still be on its way out.
                time.sleep(0.02 * attempt)


LOOK = (
    # To a file: podman may end before it has passed on the last of a container's output.
    "sh -c '{ for node in /dev/nvidia*; do cat $node; done; mknod /dev/other c 195 3; cat /dev/other; "
    "ls /proc/driver/nvidia/gpus; /app/cuda; } >/seen 2>&1'"
)


@pytest.mark.parametrize(
    ("runtime", "cgroup"), [("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2")]
)
def test_podman_starts_a_container_with_its_gpus(
    installed: Installed, tmp_path: Path, driver: Path, runtime: str, cgroup: str
) -> None:
    root = roots.debian(tmp_path / "root", driver)
    done = podman(
        installed, tmp_path, root, runtime, cgroup, LOOK, env="--env NVIDIA_VISIBLE_DEVICES=1,5"
    )
    assert done.code == 0, done.out + done.err
    seen = (root / "seen").read_text()
    assert seen.count(ALLOWED) == 5, seen
    assert f"'/dev/other': {DENIED}" in seen
    for minor in minors(1, 5):
        assert f"/dev/nvidia{minor}'" in seen
    assert seen.endswith("cuInit 0, 2 devices\n")


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_leaves_a_container_without_a_request_alone(
    installed: Installed, tmp_path: Path, runtime: str
) -> None:
    root = roots.busybox(tmp_path / "root")
    done = podman(
        installed, tmp_path, root, runtime, "v2", "sh -c '{ ls /dev; ls /usr; true; } >/seen 2>&1'"
    )
    assert done.code == 0, done.err
    seen = (root / "seen").read_text()
    assert "nvidia" not in seen
    assert "/usr: No such file" in seen


def test_podman_shows_our_sentence(installed: Installed, tmp_path: Path) -> None:
    root = roots.busybox(tmp_path / "root")
    done = podman(
        installed, tmp_path, root, "runc", "v2", "true", env="--env NVIDIA_VISIBLE_DEVICES=77"
    )
    assert done.code != 0
    assert "oci-gpu-hook: unknown device '77': this host has indices 0 to 7" in done.err


def test_a_read_only_podman_container_works(
    installed: Installed, tmp_path: Path, driver: Path
) -> None:
    root = roots.debian(tmp_path / "root", driver)
    env = "--read-only --env NVIDIA_VISIBLE_DEVICES=0"
    done = podman(
        installed,
        tmp_path,
        root,
        "crun",
        "v2",
        "sh -c '/app/cuda >/dev/shm/seen && grep \"1 devices\" /dev/shm/seen'",
        env=env,
    )
    assert done.code == 0, done.out + done.err


ROOTLESS = """
echo 'user:x:64123:64123::{home}:/bin/sh' >>/etc/passwd
echo 'user:x:64123:' >>/etc/group
echo 'user:6553600:65536' >>/etc/subuid
echo 'user:6553600:65536' >>/etc/subgid
chown -R 64123:64123 {home}
mkdir -p /run/user/64123 && chown 64123 /run/user/64123
setpriv --reuid=64123 --regid=64123 --clear-groups env HOME={home} XDG_RUNTIME_DIR=/run/user/64123 \
    podman --root {home}/storage --runroot /run/user/64123/c --storage-driver vfs --runtime crun \
    --cgroup-manager=cgroupfs --events-backend=none \
    --hooks-dir /usr/libexec/gpunode/hooks.d --hooks-dir /usr/share/containers/oci/hooks.d \
    run --rm --cgroups=disabled --network=none \
    --env NVIDIA_VISIBLE_DEVICES=1,5 --rootfs {home}/root sh -c '{{ id -u; nvidia-smi; /app/cuda; }} >/seen 2>&1' \
    >{home}/out 2>&1 || {{ cat {home}/out; exit 1; }}
"""


def test_a_rootless_container_has_its_gpus_and_no_device_cgroup(
    installed: Installed, tmp_path: Path, driver: Path
) -> None:
    """In a user namespace: mknod is refused, so the nodes are bound; no cgroup can be changed, so none is."""
    home = tmp_path / "home"
    home.mkdir()
    roots.debian(home / "root", driver)
    # pytest's folders are its user's alone; podman's pause process would keep the node's namespace alive.
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    tidy = "pkill -U 64123 || true"
    done = on_node(installed, f"{{ {ROOTLESS.format(home=home)} }}\n{tidy}")
    assert done.code == 0, done.out + done.err
    seen = (home / "root/seen").read_text()
    assert seen.startswith("0\n")
    assert seen.count("NVIDIA H100") == 2, seen
    assert seen.endswith("cuInit 0, 2 devices\n")
