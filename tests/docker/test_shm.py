# SPDX-License-Identifier: Apache-2.0
"""Whose /dev/shm is, in containers of real Docker: by where it keeps it.  Of containerd's pods: test_containerd."""

from __future__ import annotations

from pathlib import Path

from tests.docker.dockerd import docker
from tests.integration.engines import REPOSITORY

# containerd's shim writes the process's number into the bundle.
WHOSE = f"""
whose() {{
    folder=$(find /run -path "*/io.containerd.runtime.v2.task/$1/$2*" -name config.json 2>/dev/null | head -1)
    folder=${{folder%/config.json}}
    python3 {REPOSITORY}/tests/integration/whose.py $folder ${{folder##*/}} $(cat $folder/init.pid)
}}
"""
RUN = "docker run --detach --network none {} image /bin/sleep 100000"


def test_dockers_containers(patterns: dict[str, Path]) -> None:
    """Their own, one that two share, one by a volume, and volumes whose paths have a container's id in them."""
    scripts = {
        "own": f"whose moby $({RUN.format('')})",
        "lent": f"id=$({RUN.format('--ipc shareable --name lender')}); echo $id >/run/lender\nwhose moby $id",
        "shared": f"whose moby $({RUN.format('--ipc container:lender')})",
        "hosts": f"whose moby $({RUN.format('--ipc host')})",
    }
    for name in ("/media/memory/{}", "/media/{}/shm", "/media/{}/mounts/shm", "/media/containers/{}/shm"):
        path = name.format("$(cat /run/lender)")
        made = RUN.format(f"--volume {path}:/dev/shm")
        scripts[name] = f"mount -t tmpfs none /media; mkdir -p {path}\nwhose moby $({made}); umount -l /media"
    seen = docker(patterns["debian"], scripts, before=WHOSE)
    owners = {name: lines[-1].split()[0] for name, lines in seen.items()}
    expected = {"own": "container", "lent": "pod", "shared": "pod", "hosts": "host"}
    assert owners == {name: expected.get(name, "volume") for name in scripts}, seen
