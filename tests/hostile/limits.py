# SPDX-License-Identifier: Apache-2.0
"""Attacks of tests/hostile/commands.py on time and memory: filesystems that never answer, and more than fits."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

from oci_gpu_hook.cli import limit
from tests.hostile.beliefs import held
from tests.hostile.commands import CONTAINERS, DOCTOR, METRICS, USER, Host
from tests.hostile.matrix import ARGUMENTS, BUNDLE, COMMANDS
from tests.hostile.scene import FUSE
from tests.integration.engines import Bundle, until

Attack = Callable[[Host], "list[str]"]

# A process of whose command line and environment, which follow one another, the whole pages lie in a file of a FUSE
# filesystem.
WORDS = r"""
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words, char **environment) {
    while (environment[1]) environment++;
    unsigned long begin = ((unsigned long)words[0] + 4095) & ~4095ul;
    unsigned long end = (unsigned long)(*environment + strlen(*environment)) & ~4095ul;
    int file = open(words[1], O_RDONLY);
    void *at = mmap((void *)begin, end - begin, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0);
    if (at == MAP_FAILED) return 1;
    write(1, "ready\n", 6);
    for (;;) pause();
}
"""
# A user's server, in a mount namespace of his own.
SERVE = """
mount -t tmpfs none /mnt
mkdir /mnt/dfuse
/usr/bin/python3 {host.work}/fuse.py /mnt/dfuse >/mnt/said &
until grep -q ready /mnt/said; do sleep 0.1; done
echo $! >{host.session}/server
"""
CALLED = ("conmon", "dockerd", "containerd-shim-runc-v2")


def beside(host: Host, script: str, is_ready: Callable[[], bool]) -> list[str]:
    """A user runs this beside a container of root's, and then his filesystem falls silent."""
    pid = host.container(f"beside-{os.getpid()}", "1")
    shutil.copy(FUSE, host.work / "fuse.py")
    host.in_namespace(SERVE.format(host=host) + script)
    until(is_ready)
    host.users_server(host.session / "server")
    host.silence()
    return [*held(host, pid), *host.all_of(DOCTOR)]


def users_root(host: Host, how: str) -> list[str]:
    """The root of a user's container is a FUSE filesystem of his, or an overlay of one, by which root gets there."""
    enter = f"""
import os, time
with open("{host.session}/inside", "w") as file:
    os.chroot("/mnt/dmerged")
while True:
    time.sleep(9)
"""
    mount = "mount -t overlay -o lowerdir=/mnt/dfuse:$ROOT none /mnt/dmerged"
    if how == "fuse":
        mount = "mount --bind /mnt/dfuse /mnt/dmerged"
    script = f"mkdir /mnt/dmerged\n{mount}\nexec /usr/bin/python3 -c {shlex.quote(enter)}\n"
    return beside(host, script, (host.session / "inside").exists)


def users_words(host: Host) -> list[str]:
    """The command line and the environment of a user's processes lie on such a filesystem."""
    compile = ["cc", "-static", "-x", "c", "-o", str(host.work / "words"), "-"]
    subprocess.run(compile, input=WORDS, text=True, check=True)
    script = f"""
mkdir -p $ROOT/proc
mount --rbind /proc $ROOT/proc
touch $ROOT/file
mount --bind /mnt/dfuse/file $ROOT/file
LONG=$(head -c 20000 /dev/zero | tr '\\0' x)
for name in {" ".join(CALLED)}; do
    cp {host.work}/words $ROOT/$name
    LONG=$LONG chroot $ROOT /$name /file $LONG >{host.session}/$name &
done
wait
"""
    said = [host.session / name for name in CALLED]
    wrong = beside(host, script, lambda: all([it.exists() and it.read_text() == "ready\n" for it in said]))
    theirs = [it for it in os.listdir("/proc") if it.isdecimal() and _program(it) in CALLED]
    wrong += host.all_of(*[("doctor", "--container", it) for it in theirs])
    assert len(theirs) == len(CALLED), theirs
    # They do not end with the process that has started them.
    for it in theirs:
        os.kill(int(it), signal.SIGKILL)
    return wrong


def _program(pid: str) -> str:
    """The name of the program of a process of the user's; "" for none."""
    try:
        path = os.readlink(f"/proc/{pid}/exe")
        return path.rpartition("/")[2] if os.stat(f"/proc/{pid}").st_uid == USER else ""
    except OSError:
        return ""


def volume(host: Host, place: str) -> list[str]:
    """A container's volume is of a server that no longer answers."""
    folder = host.serves()
    id = f"volume-{os.getpid()}"
    source = folder / ("dvolume" if place[-1] == "/" else "file")

    def edit(bundle: Bundle) -> None:
        bundle.mounts(source, place.rstrip("/").replace("$LIB", host.libraries))

    # The hook makes nothing in a volume at /dev.
    pid = host.container(id, "1" if place != "/dev/" else None, edit, root="debian")
    host.silence()
    wrong = host.all_of(("doctor", "--container", id), CONTAINERS, METRICS, DOCTOR)
    return wrong if place == "/dev/" else [*wrong, *held(host, pid)]


def roots_bundle(host: Host) -> list[str]:
    """Root has started a container from a folder of a server that no longer answers."""
    folder = host.serves()
    pid = host.container(f"served-{os.getpid()}", "1", state=str(host.work / "states"))
    place = Path("/run/runc/served/state.json")
    place.parent.mkdir(parents=True)
    labels = {"labels": [f"bundle={folder}/dbundle"]}
    place.write_text(json.dumps({"init_process_pid": pid, "config": labels}))
    host.silence()
    try:
        return [*held(host, pid), *host.all_of(("doctor", "--container", str(pid)), DOCTOR)]
    finally:
        shutil.rmtree(place.parent)


def every_command(host: Host) -> list[str]:
    """The host's root, or the container's, is of a server that no longer answers: each command says so, and ends."""
    folder = host.serves()
    bundle = host.work / "hung"
    bundle.mkdir()
    (bundle / "rootfs").symlink_to(folder / "drootfs")
    Bundle(bundle, host.kit.hooks).asks("1").write()
    lines = [
        (*words, *more)
        for words, command in COMMANDS.items()
        for more in ARGUMENTS.get(words, ((),))
        if "--host-root" in [option for it in command.params for option in it.opts]
    ]
    lines = [(*[it.replace(BUNDLE, str(bundle)) for it in words], "--host-root", f"{folder}/dhost") for words in lines]
    # The container's root alone, as an administrator would name it.
    lines.append(("plan", "--bundle", str(bundle)))
    host.silence()
    with ThreadPoolExecutor(len(lines)) as pool:
        done = list(pool.map(lambda words: host.runs(*words, seconds=4 * limit.SECONDS), lines))
    return [
        f"{' '.join(words)}: ended with {its.code} after {its.seconds:.0f} s: {its.err[-300:]}"
        for words, its in zip(lines, done)
        if its.code != 7 or "does not answer" not in its.err or "Traceback" in its.err
    ]


VOLUMES = {"caps": "/dev/nvidia-caps/", "cache": "/etc/ld.so.cache", "libraries": "$LIB/"}
VOLUMES |= {"dev": "/dev/", "shm": "/dev/shm/"}
ATTACKS: dict[str, Attack] = {
    **{f"waits-{how}": functools.partial(users_root, how=how) for how in ("overlay", "fuse")},
    "waits-words": users_words,
    **{f"waits-volume-{name}": functools.partial(volume, place=place) for name, place in VOLUMES.items()},
    "waits-bundle": roots_bundle,
    "waits-every-command": every_command,
}
