# SPDX-License-Identifier: Apache-2.0
"""What `flags` and `configure docker --swarm` say and make on a whole node, as root, with real runc."""

from __future__ import annotations

import json

from tests import manual
from tests.integration.conftest import Maker
from tests.integration.engines import Installed, in_turn, on_node, start
from tests.integration.inside import COMPUTE, CONTROL, REFRESH, gpus, node

DAEMON = "/etc/docker/daemon.json"
DOCKER = "rm -rf /etc/docker && mkdir /etc/docker && cd /etc/docker\n"
WRITE = "oci-gpu-hook configure docker --swarm GPU --shares 2 2>&1 || echo code $?; ls -A /etc/docker"
OLD = "/usr/local/nvidia"


def test_the_words_of_nvidia_docker_1_are_a_request(installed: Installed, bundle: Maker) -> None:
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
    done = on_node(installed, f"{script} 2>&1 || :\n{refuse}{script} 2>&1 || :")
    assert done.code == 0, done.err
    seen = done.out.splitlines()
    for path in (CONTROL, node(5)):
        assert any(line.split()[:2] == [path, "allowed"] for line in seen), seen
    assert {path for path in seen if path.startswith("/dev/nvidia")} >= {*COMPUTE, node(5)}
    # Of 64 and of 32 bits: nvidia-docker 1 gave all.
    assert seen.count("libcuda.so.1") == 2 and seen.count("libEGL_nvidia.so.0") == 2, seen
    assert any(f"{OLD}/new: Read-only file system" in line for line in seen)
    assert f"the request in the volume at {OLD} is not accepted" in seen[-1]
    assert [*volume.iterdir()] == []


def test_resources_are_the_nodes_gpus(installed: Installed) -> None:
    done = on_node(installed, f"{DOCKER}oci-gpu-hook configure docker --swarm GPU --shares 2 >&2\ncat daemon.json")
    named = json.loads(done.out)["node-generic-resources"]
    assert named == [f"GPU={gpu['uuid']}-{share}" for share in (0, 1) for gpu in gpus()]
    assert "swarm-resources = DOCKER_RESOURCE_GPU" in done.err


def test_mig_devices_are_resources_of_their_own(installed: Installed) -> None:
    scripts = {
        "unasked": "oci-gpu-hook configure docker --swarm GPU 2>&1 || echo code $?",
        "resources": f"{REFRESH}{DOCKER}oci-gpu-hook configure docker --swarm GPU --shares 2 >&2\ncat daemon.json",
        "docker": "oci-gpu-hook flags docker --way cdi 0:0",
    }
    seen = in_turn(installed, scripts, description="h100mig")
    assert seen["unasked"][-1] == "code 6" and "without a UUID" in seen["unasked"][0]
    first, second = gpus("h100mig")
    values = [item.partition("=")[2] for item in json.loads("".join(seen["resources"]))["node-generic-resources"]]
    assert len(values) == len(first["mig"]) + 2 and len(set(values)) == len(values)
    assert values[-2:] == [f"{second['uuid']}-0", f"{second['uuid']}-1"]
    assert all(value.startswith("MIG-") for value in values[:-2])
    assert seen["docker"] == ["--device nvidia.com/gpu=0:0"]


FULL = "mount -t tmpfs -o size=8k none .; cd /etc/docker; head -c 4000 /dev/zero >big; echo '{}' >daemon.json"
USERS = "mkdir -p /run/user && install -d -o 1000 /run/user/own; echo '{}' >/run/user/own/d.json; "
REFUSED = {
    "no JSON": ("echo '{' >daemon.json", "4", "is not JSON"),
    "no object": ("echo '[]' >daemon.json", "4", "is not a JSON object"),
    "a user's folder": (f"{USERS}ln -s /run/user/own/d.json daemon.json", "4", "user 1000's"),
    "a user's link": (
        "mkdir -m 1777 t; echo '{}' >d.json; ln -s ../d.json t/l; chown -h 1000 t/l; ln -s t/l daemon.json",
        "4",
        "'l' is a link",
    ),
    "a loose link": ("ln -s nothing daemon.json", "4", "dangling symbolic link"),
    "full": (FULL, "7", "No space left on device"),
    "read-only": ("mount -t tmpfs none .; cd /etc/docker; echo '{}' >daemon.json; mount -o remount,ro .", "7", ""),
}


# user::rw-, user:1000:r--, group::r--, mask::r--, other::---
ENTRIES = "02000000 01000600ffffffff 02000400e8030000 04000400ffffffff 10000400ffffffff 20000000ffffffff"
ACL = f"bytes.fromhex('{ENTRIES}')"


def test_owner_mode_and_acl_are_the_files_own(installed: Installed) -> None:
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
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    *before, inode = done.out.splitlines()[:3]
    *after, other = done.out.splitlines()[3:]
    assert before == after and before[0] == "24 1000 640" and inode != other


def test_two_that_write_at_once_lose_nothing(installed: Installed) -> None:
    """Each adds twelve resources of its own to those that it finds; who is too late says so, and tries again."""
    script = f"""{DOCKER}echo '{{"a": 1}}' >daemon.json
add() {{
    for n in 1 2 3 4 5 6 7 8 9 10 11 12; do
        until oci-gpu-hook configure docker --swarm $1$n; do test $? = 7 || return; done
    done
}}
add A >/dev/null 2>/run/said & add B >/dev/null 2>&1; wait
cat daemon.json; ls -A >&2
"""
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    document = json.loads(done.out)
    kinds = {item.partition("=")[0] for item in document["node-generic-resources"]}
    assert kinds == {f"{name}{number}" for name in "AB" for number in range(1, 13)}
    assert document["a"] == 1 and done.err == "daemon.json\n"


def test_what_cannot_be_written_stays_as_it_is(installed: Installed) -> None:
    scripts = {
        name: f"{DOCKER}{before}\ncp -a . /run/before\n{WRITE}\ndiff -r --no-dereference . /run/before && echo same\n"
        "cd /; rm -rf /run/before; umount /etc/docker 2>/dev/null || :"
        for name, (before, _, _) in REFUSED.items()
    }
    scripts["new"] = f"rm -rf /etc/docker\n{WRITE}\nstat -c %a {DAEMON}"
    seen = in_turn(installed, scripts)
    for name, (_, code, why) in REFUSED.items():
        assert why in seen[name][0] and seen[name][0].startswith("oci-gpu-hook: "), (name, seen[name])
        assert seen[name][1] == f"code {code}" and seen[name][-1] == "same", (name, seen[name])
    assert seen["new"][0] == f"wrote {DAEMON}"
    assert seen["new"][-2:] == ["daemon.json", "644"]
