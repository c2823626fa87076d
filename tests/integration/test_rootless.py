# SPDX-License-Identifier: Apache-2.0
"""Whose folders a container's root may lie in: a rootless engine's user counts as root there, and no other does.

Needed where no tmpfs of the runtime's own on the root proves it, as with the host's /dev mounted at /dev.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import NO_PIDS_LIMIT, REPOSITORY, Outcome, on_node, podman, start

USER, FIRST = 64_123, 6_553_600
# What a user's engine has: folders of the user's, and of the first of the user's further ids, as podman's keep-id has.
# This one may lie in a folder that root alone may enter.
PACKAGE = "/run/package"
FOLDERS = f"""
echo 'user:x:{USER}:{USER}::/run/user-home:/bin/sh' >>/etc/passwd
echo 'user:x:{USER}:' >>/etc/group
for file in /etc/subuid /etc/subgid; do printf 'user:{FIRST}:65536\nroot:100000:65536\n' >>$file; done
folder() {{ mkdir -p $3 && chown $1:$1 $3 && chmod $2 $3; }}
folder {USER} 0700 /run/user-home
folder {FIRST} 0755 /run/user-home/store
folder {FIRST} 0755 /run/user-home/store/root
folder {USER} 0777 /run/user-home/open
folder {USER} 0755 /run/user-home/open/root
folder {USER} 1777 /run/user-home/sticky
folder {FIRST} 0755 /run/user-home/sticky/root
folder 0 1777 /run/sticky
folder 0 0755 /run/sticky/roots
folder {USER} 0755 /run/sticky/roots/users
folder {USER} 0755 /run/sticky/users
folder 64124 0755 /run/sticky/others
for name in roots/users users others; do folder {USER} 0755 /run/sticky/$name/root; done
ln -s others /run/sticky/link
folder 0 0777 /run/open
folder {USER} 0755 /run/open/root
folder 100000 0755 /run/shifted
folder 101000 0755 /run/shifted/store
folder 101000 0755 /run/shifted/store/root
folder {USER} 0755 /run/user/{USER}
mkdir {PACKAGE} && cp -R {REPOSITORY}/oci_gpu_hook {PACKAGE}/
"""
AS_USER = f"setpriv --reuid={USER} --regid={USER} --clear-groups "
# As podman, rootlesskit and enroot make theirs.
ROOTLESS = f"{AS_USER} unshare --mount --user --map-root-user --map-auto "
# As somebody else makes one for an engine that is to be its root; to nobody there the machine's root has a number.
SHIFTED = "unshare --mount --user --map-users=100000,0,65536 --map-groups=100000,0,65536 --setuid=0 --setgid=0 "
# The same user's namespace, in which there is a system of its own, as in a container that has an engine in it.
OWN_SYSTEM = (
    ROOTLESS
    + """sh -euc '
mount -t tmpfs none /mnt
for name in /*; do
    if [ -L $name ]; then cp -P $name /mnt/; continue; fi
    [ ! -d $name ] || { mkdir /mnt$name && mount --rbind $name /mnt$name; }
done
exec chroot /mnt "$@"' sh """
)
NAMESPACES = {"machine": "", "rootless": ROOTLESS, "shifted": SHIFTED, "own system": OWN_SYSTEM}
ASK = """
import posix, sys
sys.path.insert(0, sys.argv[1])
from oci_gpu_hook.container import rootfs
for path in sys.argv[2:]:
    try:
        print(path, rootfs._is_roots(path, posix.open(path, posix.O_PATH), 0))
    except OSError:
        print(path, "is closed")
"""
STICKY = [f"/run/sticky/{name}/root" for name in ("roots/users", "users", "others", "link")]
OPEN = ["/run/user-home/open/root", "/run/open/root"]
PATHS = ["/run/user-home/store/root", "/run/user-home/sticky/root", "/run/shifted/store/root", *STICKY, *OPEN]


def test_a_users_folders_count_in_the_users_own_namespace_alone() -> None:
    words = shlex.join(["/usr/bin/python3", "-ISB", "-c", ASK, PACKAGE, *PATHS])
    script = [f"echo '== {name}'; {prefix}{words}" for name, prefix in NAMESPACES.items()]
    out = on_node(FOLDERS + "\n".join(script), hook=False).printed()
    parts = [part.splitlines() for part in out.split("== ")[1:]]
    counts = {name: [line.split()[0] for line in lines if "True" in line] for name, *lines in parts}
    assert counts == {
        "machine": [],
        # Not what every user may write to.  In a sticky folder only its owner can exchange a thing that is not a link.
        # That another user's folder looks like root's there, SECURITY.md says.
        "rootless": [*PATHS[:3], *STICKY[:3]],
        "shifted": [],
        "own system": [],
    }


# Rootless podman without systemd: crun gets no cgroups, runc has some to itself.
ENGINES = {"crun": "--cgroups=disabled", "runc": NO_PIDS_LIMIT}

# A job's scratch folder, made by root in a sticky one; the user's own folders.
PLACES = {"home": ("/run/user-home/kept", "0755"), "scratch": ("/tmp/job/kept", "0755"), "open": ("/tmp/kept", "0777")}


def run_rootless(
    pattern: Path, runtime: str, options: str, command: str, folders: str, root: str, **node: Any
) -> Outcome:
    """``podman run`` by the user, of a copy of a root that is the owner's of its folder, which `folders` make."""
    words = f"run --rm {ENGINES[runtime]} --network=none {options} --rootfs {root} {command}"
    line = podman(words, runtime=runtime, folder=Path("/run/user-home"), run=f"/run/user/{USER}/c")
    script = f"""{FOLDERS}{folders}
rm -rf {root}; cp -a {pattern} {root}; chown -R --reference $(dirname {root}) {root}
code=0
{AS_USER} env HOME=/run/user-home XDG_RUNTIME_DIR=/run/user/{USER} {line} >/run/out 2>&1 || code=$?
cat /run/out; pkill -U {USER} || :
exit $code
"""
    return on_node(script, **node)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("runtime", ENGINES)
def test_a_rootless_one_with_the_hosts_dev(patterns: dict[str, Path], runtime: str, place: str) -> None:
    """As distrobox and toolbox start theirs; but not in a folder to which every user may write."""
    store, mode = PLACES[place]
    options = "--userns=keep-id --volume /dev:/dev --env NVIDIA_VISIBLE_DEVICES=1,5"
    folders = f"folder 0 0755 /tmp/job; folder {FIRST} {mode} {store}"
    command = "sh -c '/app/cuda; id -u'"
    done = run_rootless(patterns["debian"], runtime, options, command, folders, f"{store}/root")
    if place == "open":
        assert done.code != 0 and "others than root can exchange it" in done.out, done.out
    else:
        assert (done.code, done.out) == (0, f"cuInit 0, 8 devices\n{USER}\n"), done.err


@pytest.mark.parametrize("owner", [100_000, 101_000])
def test_an_engine_of_a_namespaces_root_gives_users_no_power(bundle: Maker, owner: int) -> None:
    """Real crun as root of a namespace that somebody else has made: another user's folder is no place for a root."""
    made = bundle("busybox").asks("0", "utility").without("/dev", "/sys").mounts("/dev", "/dev")
    kinds = [{"type": kind} for kind in ("mount", "ipc", "uts", "pid")]
    made.config["linux"] = {"namespaces": kinds}
    made.config["process"].pop("rlimits", None)
    made.config["root"]["path"] = "/run/shifted/kept/root"
    made.config["annotations"] = {"run.oci.hooks.stderr": "/run/shifted/said"}
    made.runs("/bin/sh", "-c", "echo started")
    script = f"""
folder {owner} 0755 /run/shifted/kept
cp -a {made.rootfs} /run/shifted/kept/root; chown -R 100000:100000 /run/shifted/kept/root
mkdir /run/bundle; cp {made.path}/config.json /run/bundle
: >/run/shifted/said; chown 100000 /run/shifted/said
code=0
{SHIFTED} crun --root /run/shifted --cgroup-manager=disabled run --bundle /run/bundle c || code=$?
cat /run/shifted/said
exit $code
"""
    done = on_node(FOLDERS + script)
    if owner == 100_000:
        assert done.code == 0 and done.out.startswith("started\n"), done.out + done.err
    else:
        assert done.code != 0 and "others than root can exchange it" in done.out, done.err


def test_a_users_runc_with_no_namespace_around_it(bundle: Maker) -> None:
    """As Slurm starts it, by --container: the hook may mount in the container's own namespaces alone."""
    made = bundle("debian").asks("1,5").in_user_namespace(USER).runs("/app/cuda")
    mapping = [{"containerID": 0, "hostID": USER, "size": 1}]
    made.config["linux"].update(uidMappings=mapping, gidMappings=mapping, resources={})
    for mount in made.config["mounts"]:
        mount["options"] = [it for it in mount.get("options", []) if it != "gid=5"]
    made.write()
    out = on_node(f"{FOLDERS}{AS_USER}{start(f'runc --root /run/user/{USER}', made)}").printed()
    assert out == "cuInit 0, 2 devices\n"
