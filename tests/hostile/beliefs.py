# SPDX-License-Identifier: Apache-2.0
"""The attacks of tests/hostile/commands.py: what local users and containers make root's commands open and believe."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Callable

from tests.hostile.commands import CONTAINERS, DOCTOR, ID, METRICS, USER, Host, removed
from tests.integration.engines import Bundle, until

Attack = Callable[[Host], "list[str]"]
LEADER = """
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *goes_on(void *nothing) { for (;;) sleep(1); }
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, goes_on, 0);
    syscall(SYS_exit, 0);
}
"""


def another_dockerd(host: Host, how: str) -> list[str]:
    """A process is called dockerd, and says where its settings are: a user's, or a set-user-ID program's.

    By a link, or by a hard link, as fs.protected_hardlinks = 0 allows; such a one is root's by every number.
    """
    settings = host.gives("d.json", "{")
    named, program = host.session / "dockerd", host.work / "as-root"
    if how == "hard-link":
        shutil.copy("/usr/bin/python3", named)
    else:
        shutil.copy("/usr/bin/python3", program)
        host.gives("dockerd", program if how == "link" else Path("/usr/bin/python3"))
    words = ("-c", "import time; time.sleep(99)", f"--config-file={settings}")
    pid = host.starts(str(named), *words, argv0="dockerd", root=how != "user")
    until(lambda: "config-file" in Path(f"/proc/{pid}/cmdline").read_text())
    done = host.runs(*DOCTOR)
    believed = [line for line in done.out.splitlines() if str(settings) in line]
    return [*host.wrong(done), *[f"believed: {line}" for line in believed]]


def _told(host: Host, pid: int, id: str = ID) -> list[str]:
    """Whether doctor and containers tell of root's own process and name, and of no other."""
    wrong = []
    done = host.runs("doctor", "--container", id)
    if f"process {pid}" not in done.out:
        wrong.append(f"doctor is led to another process: {(done.out + done.err)[:300]}")
    done = host.runs(*CONTAINERS)
    names = [(it["id"], it["name"], it["pod"]) for it in done.shown if it["pid"] == pid]
    if names != [(id, "", "")]:
        wrong.append(f"containers says {names}")
    return [*wrong, *host.wrong(done)]


def anothers_cgroup(host: Host) -> list[str]:
    """A user to whom a cgroup was given names one in it like root's container, whose state is not found."""
    own = host.contained()
    pid = host.container(ID, "1", state=str(host.work / "states"))
    top = Path(f"/sys/fs/cgroup/hostile-{os.getpid()}")
    host.gives_cgroups(own, top, top / ID)
    return _told(host, pid)


def held(host: Host, pid: int) -> list[str]:
    """Whether GPU 1 is held by this container, for people and for Prometheus; the machine may have others."""
    done, metrics = host.runs(*CONTAINERS), host.runs(*METRICS)
    ids = [it["id"] for it in done.shown if it["pid"] == pid and "1" in [gpu["name"] for gpu in it["gpus"]]]
    wrong = [] if len(ids) == 1 else [f"GPU 1 is held by it {len(ids)} times"]
    wrong += ["GPU 1 is free"] * ("1" in done.free)
    lines = [line for line in metrics.out.splitlines() if f'container="{(ids or "?")[0]}"' in line]
    wrong += [] if len(lines) == 1 else [f"it holds it {len(lines)} times in the metrics"]
    return [*wrong, *host.wrong(done), *host.wrong(metrics)]


def moved_node(host: Host, how: str) -> list[str]:
    """A container moves its node, or makes it again elsewhere, and goes on with its GPU."""
    pid = host.container(f"moves-{os.getpid()}", "1")
    scripts = {
        "moved": "mkdir -p /dev/a/b && mv $NODE /dev/a/b/x",
        "made": "rm $NODE && mknod /root-of-mine c 195 ${NODE#/dev/nvidia}",
        "bound": "touch /x && mount --bind $NODE /x && rm $NODE",
        "hidden": "mount -t tmpfs none /dev",
    }
    host.inside(pid, f"NODE=$(ls /dev/nvidia[0-9])\n{scripts[how]}")
    return held(host, pid)


def many_links(host: Host) -> list[str]:
    """A container's /dev has 2,000 links, each 39 links long, of 1,600 names each."""
    pid = host.container(f"links-{os.getpid()}", "1")
    folder = Path(f"/proc/{pid}/root/dev")
    for number in range(38):
        os.symlink("./" * 1600 + (f"a{number - 1}" if number else "null"), folder / f"a{number}")
    for number in range(2000):
        os.symlink("./" * 1600 + "a37", folder / f"link{number}")
    return [*host.all_of(CONTAINERS, METRICS), *held(host, pid)]


def many_names(host: Host) -> list[str]:
    """A container has 200,000 names in a folder where it has the driver's when root asks doctor."""
    id = f"names-{os.getpid()}"
    pid = host.container(id, "1", root="debian")
    fd = os.open(f"/proc/{pid}/root/usr/bin", os.O_RDONLY)
    for number in range(200_000):
        os.close(os.open(f"nvidia-smi.so.{number}", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    return host.all_of(("doctor", "--container", id))


def many_processes(host: Host) -> list[str]:
    """A user has hundreds of containers: root's is looked at all the same."""
    pid = host.container(f"among-{os.getpid()}", "1")
    host.contained(200)
    return held(host, pid)


def ended_leader(host: Host) -> list[str]:
    """The first thread of a container's process ends, and another goes on with the GPU."""
    program = host.work / "leader"
    compile = ["cc", "-static", "-pthread", "-x", "c", "-o", str(program), "-"]
    subprocess.run(compile, input=LEADER, text=True, check=True)
    id = f"leader-{os.getpid()}"

    def edit(bundle: Bundle) -> None:
        shutil.copy(program, bundle.rootfs / "leader")

    pid = host.container(id, "1", edit, runs=("/leader",))
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    done, metrics = host.runs(*CONTAINERS), host.runs(*METRICS)
    # For the runtime it has stopped.
    os.kill(pid, signal.SIGKILL)
    wrong = ["GPU 1 is free"] * ("1" in done.free)
    wrong += [] if "gpu_container_info{" in metrics.out else ["no holder in the metrics"]
    return [*wrong, *host.wrong(done), *host.wrong(metrics)]


def roots_folder(host: Host, how: str) -> list[str]:
    """Root runs a container from a user's folder: there the user says which pod it is, and which another one is."""
    home = host.work / "home"
    bundle = home / ID / "userdata"
    bundle.mkdir(parents=True)
    said = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": "db",
        "io.kubernetes.cri.sandbox-name": "other-pod",
    }

    def edit(it: Bundle) -> None:
        if how == "config":
            it.config["annotations"] = said

    state = str(host.work / "states")
    pid = host.container(ID, "1", edit, state=state if how == "list" else "")
    if how == "config":
        for path in (host.work / f"bundle-{ID}", host.work / f"bundle-{ID}/config.json"):
            os.chown(path, USER, USER)
    else:
        # Another container of root's, which is stopped, has its bundle there.
        labels = {"labels": [f"bundle={bundle}"]}
        place = Path("/run/runc/of-the-user/state.json")
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({"init_process_pid": 1 << 22, "config": labels}))
        stored = {"id": ID, "names": ["k8s_db_other-pod_team_u_0"], "metadata": '{"pod-id": "x"}'}
        (home / "containers.json").write_text(json.dumps([stored]))
        for path in (home, *home.rglob("*")):
            os.lchown(path, USER, USER)
    try:
        done = host.runs(*CONTAINERS)
    finally:
        shutil.rmtree("/run/runc/of-the-user", ignore_errors=True)
    told = [it["pod"] or it["name"] for it in done.shown if it["pid"] == pid]
    return [*([] if told == [""] else [f"it is called {told}"]), *host.wrong(done)]


def inner_cgroup(host: Host) -> list[str]:
    """A container that may make cgroups calls one in its own as another container, whose state is not found."""
    other = host.container("a" * 64, None)
    pid = host.container(ID, "1", state=str(host.work / "states"))
    top = Path("/sys/fs/cgroup" + Path(f"/proc/{other}/cgroup").read_text().rpartition("::")[2].strip())
    inner = top / f"libpod-{ID}.scope"
    inner.mkdir()
    try:
        (inner / "cgroup.procs").write_text(str(other))
        return _told(host, pid)
    finally:
        (top / "cgroup.procs").write_text(str(other))
        until(lambda: removed(inner))


ATTACKS: dict[str, Attack] = {
    "node-ended-leader": ended_leader,
    **{f"anothers-folder-{how}": functools.partial(roots_folder, how=how) for how in ("config", "list")},
    "anothers-inner-cgroup": inner_cgroup,
    **{f"another-dockerd-{how}": functools.partial(another_dockerd, how=how) for how in ("user", "link", "hard-link")},
    "anothers-cgroup": anothers_cgroup,
    **{f"node-{how}": functools.partial(moved_node, how=how) for how in ("moved", "made", "bound", "hidden")},
    "many-links": many_links,
    "many-names": many_names,
    "many-processes": many_processes,
}
