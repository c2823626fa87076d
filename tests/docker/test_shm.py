# SPDX-License-Identifier: Apache-2.0
"""Whose /dev/shm is, in containers of real Docker and of containerd's CRI plugin: by where these engines keep it."""

from __future__ import annotations

from pathlib import Path

from tests.docker.dockerd import docker
from tests.docker.test_containerd import CLIENT, START, configuration
from tests.integration.engines import REPOSITORY, Installed

WHOSE = f"python3 {REPOSITORY}/tests/integration/whose.py"
# containerd's shim writes the process's number into the bundle.
LOOK = f"""
whose() {{
    folder=$(find /run -path "*/io.containerd.runtime.v2.task/$1/$2*" -name config.json 2>/dev/null | head -1)
    folder=${{folder%/config.json}}
    {WHOSE} $folder ${{folder##*/}} $(cat $folder/init.pid)
}}
"""
RUN = "docker run --detach --network none {} image /bin/sleep 100000"


def test_dockers_containers(installed: Installed, patterns: dict[str, Path]) -> None:
    """Their own, one that two share, one by a volume, and volumes whose paths have a container's id in them."""
    scripts = {
        "own": f"{LOOK}\nwhose moby $({RUN.format('')})",
        "lent": f"id=$({RUN.format('--ipc shareable --name lender')}); echo $id >/run/lender\n{LOOK}\nwhose moby $id",
        "shared": f"{LOOK}\nwhose moby $({RUN.format('--ipc container:lender')})",
        "hosts": f"{LOOK}\nwhose moby $({RUN.format('--ipc host')})",
    }
    for name in ("/media/memory/{}", "/media/{}/shm", "/media/{}/mounts/shm", "/media/containers/{}/shm"):
        path = name.format("$(cat /run/lender)")
        volume = f"mount -t tmpfs none /media; mkdir -p {path}"
        made = RUN.format(f"--volume {path}:/dev/shm")
        scripts[name] = f"{volume}\n{LOOK}\nwhose moby $({made}); umount -l /media"
    seen = docker(installed, patterns["debian"], scripts)
    owners = {name: lines[-1].split()[0] for name, lines in seen.items()}
    expected = {"own": "container", "lent": "pod", "shared": "pod", "hosts": "host"}
    assert owners == {name: expected.get(name, "volume") for name in scripts}, seen


def test_containerds_pods(installed: Installed, patterns: dict[str, Path]) -> None:
    """The sandbox has it first, and its containers share it."""
    run = f"{CLIENT} OTHER=1 -- 'sleep 100000'"
    tasks = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
    scripts = {
        "start": START.format(configuration=configuration()),
        "pod": f"""
{run} >/run/client 2>&1 &
wait_for "test \\$(ls {tasks}/*/init.pid | wc -l) = 2"
{LOOK}
for folder in $(ls {tasks}); do whose k8s.io $folder; done
kill $!
""",
    }
    seen = docker(installed, patterns["debian"], scripts, cgroup="v1")
    assert [line.split()[0] for line in seen["pod"]] == ["pod", "pod"], seen
