# SPDX-License-Identifier: Apache-2.0
"""The sockets of NVIDIA's services, and MPS's pipes: root's own serve, and a local user's never reach a container."""

from __future__ import annotations

from tests.integration.conftest import Maker
from tests.integration.engines import in_turn, start

HAS_SOCKET = "[ -S /var/run/nvidia-persistenced/socket ] && echo socket"
LOOK = ("/bin/sh", "-c", f"cat /tmp/nvidia-mps/of; touch /tmp/nvidia-mps/new 2>&1; {HAS_SOCKET}")
CLEAN = "rm -rf /tmp/nvidia-mps /run/nvidia-persistenced\n"
USERS = "install -d -o 1000 /tmp/nvidia-mps; echo a user >/tmp/nvidia-mps/of\n"
SOCKET = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/run/nvidia-persistenced/socket\")'\n"
# Who made it, and what a container has of it.
CASES = {
    "root's folder": ("mkdir -m 777 /tmp/nvidia-mps; echo root >/tmp/nvidia-mps/of", "root"),
    "a user's folder": (USERS, ""),
    "a user's folder with root's things": (f"{USERS}chown root /tmp/nvidia-mps/of", ""),
    "a user's link": (
        "mkdir -m 700 /run/hidden; echo hidden >/run/hidden/of; ln -s /run/hidden /tmp/nvidia-mps;"
        " chown -h 1000 /tmp/nvidia-mps",
        "",
    ),
    "root's link": ("mkdir /run/shown; echo shown >/run/shown/of; ln -s /run/shown /tmp/nvidia-mps", ""),
    "a user's by the settings": (f"{USERS}echo mps-pipe-owner = 1000 >/etc/oci-gpu-hook.conf", "a user"),
    "elsewhere": (
        "mkdir /run/pipes; echo pipes >/run/pipes/of; echo mps-pipe-folder = /run/pipes >/etc/oci-gpu-hook.conf",
        "pipes",
    ),
}


def test_mps_is_the_administrators(bundle: Maker) -> None:
    made = bundle("busybox").asks("0", "compute").runs(*LOOK)
    scripts = {
        name: f"{CLEAN}rm -f /etc/oci-gpu-hook.conf\n{before}\n{start('runc', made)} 2>&1 || :"
        for name, (before, _) in CASES.items()
    }
    scripts["said"] = f"rm /etc/oci-gpu-hook.conf; {CLEAN}{USERS}oci-gpu-hook plan --bundle {made.path}"
    found = in_turn(scripts)
    assert "the host's /tmp/nvidia-mps is left out: 'nvidia-mps' is user 1000's" in "".join(found["said"])
    for name, (_, of) in CASES.items():
        said = "\n".join(found[name])
        assert ("Read-only file system" in said) == bool(of), (name, said)
        assert (found[name][0] == of) if of else "can't open" in found[name][0], (name, said)


def test_a_services_own_folder_serves_for_its_socket_only(bundle: Maker) -> None:
    """nvidia-persistenced runs as a user of its own, whose the folder is."""
    made = bundle("busybox").asks("0", "utility").runs(*LOOK)
    folder = "install -d -o 1000 /run/nvidia-persistenced\n"
    as_user = "setpriv --reuid=1000 --clear-groups "
    scripts = {
        "socket": f"{CLEAN}{folder}{as_user}{SOCKET}",
        "link": f"{CLEAN}{folder}{as_user}ln -s /etc/shadow /run/nvidia-persistenced/socket",
        "file": f"{CLEAN}{folder}{as_user}touch /run/nvidia-persistenced/socket",
    }
    runs = {name: f"{before}\n{start('runc', made)} 2>&1 || :" for name, before in scripts.items()}
    found = {name: "socket" in lines for name, lines in in_turn(runs).items()}
    assert found == {"socket": True, "link": False, "file": False}


# As enroot and an engine in a container do: a user namespace of its own, the mount bound once more, flags set again.
AGAIN = """
mount -o bind /var/run/nvidia-persistenced/socket /again &&
mount -o remount,bind,rw,nosuid,nodev,noexec /again && [ -S /again ] && echo mounted again
mount -o bind /tmp/nvidia-mps /mnt && mount -o remount,bind,ro,nosuid,nodev,noexec /mnt && echo read-only again
"""
REPLACE = "rm -f /tmp/nvidia-mps/control 2>&1; rm -f /var/run/nvidia-persistenced/socket 2>&1"


def test_a_container_in_the_container_mounts_a_socket_again(bundle: Maker) -> None:
    """And the container's root replaces none, in the container or on the host."""
    made = bundle("busybox").asks("0", "compute,utility")
    made.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    made.changed("touch again; mkdir -p mnt").runs("/bin/busybox", "unshare", "-Urm", "/bin/sh", "-c", AGAIN)
    root = bundle("busybox").asks("0", "compute,utility").runs("/bin/sh", "-c", REPLACE)
    plant = f"{CLEAN}mkdir /run/nvidia-persistenced\n{SOCKET}mkdir /tmp/nvidia-mps; mkfifo /tmp/nvidia-mps/control\n"
    look = "[ -S /run/nvidia-persistenced/socket ] && ls /tmp/nvidia-mps"
    scripts = {"again": f"{start('runc', made)} 2>&1 || :", "replace": f"{start('runc', root)} 2>&1 || :\n{look}"}
    found = in_turn(scripts, plant)
    assert found["again"] == ["mounted again", "read-only again"]
    folder, socket, *left = found["replace"]
    assert "Read-only file system" in folder and "busy" in socket, found
    assert left == ["control"], "the host has both"
