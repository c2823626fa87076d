# SPDX-License-Identifier: Apache-2.0
"""nvidia-docker 1's words under real runc, and whose a daemon.json is that `configure docker --swarm` has written."""

from __future__ import annotations

from tests import manual
from tests.integration.conftest import Maker
from tests.integration.engines import on_node, start
from tests.integration.inside import COMPUTE, CONTROL, gpus, node

DOCKER = "rm -rf /etc/docker && mkdir /etc/docker && cd /etc/docker\n"
OLD = "/usr/local/nvidia"


def test_the_words_of_nvidia_docker_1_are_a_request(bundle: Maker) -> None:
    """A volume that dockerd has made, empty, and devices, and no variable: the image finds the driver there."""
    words = manual.blocks("oci-gpu-hook-images.7", "IMAGES OF NVIDIA-DOCKER 1'S TIME")[0].split()
    name, *where = words[words.index("--volume") + 1].split(":")
    devices = [path for option, path in zip(words, words[1:]) if option == "--device"]
    assert (where, devices) == ([OLD, "ro"], [CONTROL, "/dev/nvidia0"])
    made = bundle("debian").asks(None, LD_LIBRARY_PATH=f"{OLD}/lib64:{OLD}/lib")
    volume = made.path / f"volumes/{name}/_data"
    volume.mkdir(parents=True)
    made.mounts(volume, *where)
    made.mounts("/proc/driver/gpunode", "/driver", "ro")
    numbers = {CONTROL: 255, node(5): gpus()[5]["minor"]}
    made.config["linux"]["devices"] = [
        {"path": path, "type": "c", "major": 195, "minor": minor, "fileMode": 0o666} for path, minor in numbers.items()
    ]
    made.config["linux"]["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rw"} for minor in numbers.values()
    ]
    look = f"{OLD}/bin/nvidia-smi; ls /dev/nvidia*; ls {OLD}/lib64/ {OLD}/lib/; echo x >{OLD}/new"
    script = start("runc", made.runs("/bin/sh", "-c", look))
    refuse = "printf 'accept-environment = privileged\nunaccepted-requests = refuse\n' >/etc/oci-gpu-hook.conf\n"
    seen = on_node(f"{script} 2>&1 || :\n{refuse}{script} 2>&1 || :").printed().splitlines()
    for path in (CONTROL, node(5)):
        assert any(line.split()[:2] == [path, "allowed"] for line in seen), seen
    assert {path for path in seen if path.startswith("/dev/nvidia")} >= {*COMPUTE, node(5)}
    # Of 64 and of 32 bits: nvidia-docker 1 gave all.
    assert seen.count("libcuda.so.1") == 2 and seen.count("libEGL_nvidia.so.0") == 2, seen
    assert any(f"{OLD}/new: Read-only file system" in line for line in seen)
    assert f"the request in the volume at {OLD} is not accepted" in seen[-1]
    assert [*volume.iterdir()] == []


# user::rw-, user:1000:r--, group::r--, mask::r--, other::---
ENTRIES = "02000000 01000600ffffffff 02000400e8030000 04000400ffffffff 10000400ffffffff 20000000ffffffff"
ACL = f"bytes.fromhex('{ENTRIES}')"


def test_owner_mode_and_acl_are_the_files_own() -> None:
    look = 'python3 -c \'import os; print(os.getxattr("daemon.json", "system.posix_acl_access").hex())\''
    set_acl = f'import os; os.setxattr("daemon.json", "system.posix_acl_access", {ACL})'
    script = f"""{DOCKER}echo '{{}}' >daemon.json
chown 24:1000 daemon.json && chmod 640 daemon.json
python3 -c "{set_acl.replace('"', chr(92) + '"')}"
show() {{ stat -c '%u %g %a' daemon.json; {look}; }}
show
stat -c %i daemon.json
oci-gpu-hook configure docker --swarm GPU >/dev/null 2>&1
show
stat -c %i daemon.json
"""
    out = on_node(script).printed()
    *before, inode = out.splitlines()[:3]
    *after, other = out.splitlines()[3:]
    assert before == after and before[0] == "24 1000 640" and inode != other
