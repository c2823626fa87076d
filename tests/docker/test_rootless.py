# SPDX-License-Identifier: Apache-2.0
"""A user's own Docker, by rootlesskit and slirp4netns as dockerd-rootless.sh starts them, beside root's daemon.

rootlesskit copies /etc and /run up, and ``configure docker --user`` writes the user's daemon.json.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.docker.dockerd import LOOK, docker, nodes, opened, tried

USER = 64_123
START = f"""
mount -t tmpfs none /srv
echo 'user:x:{USER}:{USER}::/srv/user:/bin/sh' >>/etc/passwd
echo 'user:x:{USER}:' >>/etc/group
for file in /etc/subuid /etc/subgid; do printf 'user:6553600:65536\\n' >>$file; done
mkdir -p /srv/user /run/user/{USER}
chown {USER}:{USER} /srv/user /run/user/{USER}
chmod 0700 /run/user/{USER}
cat >/srv/user.sh <<'END'
export HOME=/srv/user XDG_RUNTIME_DIR=/run/user/{USER} PATH=/usr/bin:/usr/sbin DOCKER_HOST=unix:///run/user/{USER}/docker.sock
cd /srv/user
END
cat >/srv/daemon.sh <<'END'
. /srv/user.sh
oci-gpu-hook configure docker --user --set-as-default </dev/null
/usr/share/docker.io/contrib/dockerd-rootless.sh --iptables=false --storage-driver=vfs \\
    --exec-opt native.cgroupdriver=cgroupfs >log 2>&1 &
until docker version >/dev/null 2>&1; do sleep 0.1; done
END
printf '#!/bin/sh\nexec setpriv --reuid={USER} --regid={USER} --clear-groups /bin/sh -eu "$@"\n' >/usr/bin/as_user
chmod 0755 /usr/bin/as_user
as_user /srv/daemon.sh
docker save image >/srv/image.tar
echo '. /srv/user.sh; docker load --quiet <../image.tar' | as_user
"""


def run(options: str, look: str = LOOK) -> str:
    """The shell lines of a container of the user's."""
    words = f"docker run --rm --network none {options} image /bin/sh -c {shlex.quote(look)}"
    return f"as_user <<'END'\n. /srv/user.sh\n{words} 2>&1 || echo failed\nEND"


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_a_users_own_docker(patterns: dict[str, Path], cgroup: str) -> None:
    """No user in a user namespace makes nodes or has a device cgroup: the host's nodes are bound, and no others."""
    scripts = {
        "start": START,
        "index": run("--env NVIDIA_VISIBLE_DEVICES=2"),
        "read-only": run("--read-only --env NVIDIA_VISIBLE_DEVICES=1,5"),
        "gpus": run("--gpus device=4"),
        "unknown": run("--env NVIDIA_VISIBLE_DEVICES=77"),
        "none": run(""),
        "shown": """
echo '. /srv/user.sh
docker run --detach --name mine --network none --env NVIDIA_VISIBLE_DEVICES=6 image sleep 1000' | as_user
oci-gpu-hook containers
echo '. /srv/user.sh
pid=$(docker inspect --format "{{.State.Pid}}" mine)
oci-gpu-hook containers
oci-gpu-hook doctor --container $pid || :' | as_user
echo '. /srv/user.sh; oci-gpu-hook configure docker --user --remove; ls -A .config/docker' | as_user
""",
    }
    found = docker(patterns["debian"], scripts, cgroup=cgroup)
    assert opened(found["index"]) == nodes([2])
    assert opened(found["read-only"]) == nodes([1, 5])
    assert opened(found["gpus"]) == nodes([4]) | tried([]), found["gpus"]
    assert opened(found["none"]) == set()
    assert "failed" in found["unknown"] and "unknown device '77'" in "\n".join(found["unknown"])
    # Root sees whose it is, and reads no file of the user's; the user's own command reads what it asks for.
    roots, _, users = "\n".join(found["shown"]).partition("held by no container")
    assert "(user 64123's)" in roots, roots
    assert f"of Docker, user {USER}'s" in users and "6 with utility,compute, by env" in users, users
