# SPDX-License-Identifier: Apache-2.0
"""Containers of each engine are found by every word that people have for them, as the engine's own files have it.

Another user's states and lists, which say what he likes, do not count.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from oci_gpu_hook.cli import containerreport
from oci_gpu_hook.container import devicecgroup
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import containercheck
from oci_gpu_hook.node.engines import containers
from oci_gpu_hook.node.engines.containers import ContainerNames
from oci_gpu_hook.node.machine import processes
from oci_gpu_hook.node.machine.foreignfile import ContainerRoot
from tests.unit import hosts
from tests.unit.containers import USER, owned, plant_cgroup, stat

PODMAN, CRIO, DOCKER, CONTAINERD = "podman", "CRI-O", "Docker", "containerd"
MAIN, SIDE, SANDBOX, WEB, SHOP, POD, ALONE, OLD, USERS = (digit * 64 for digit in "abcdef012")
RUN = "/run/containers/storage/overlay-containers"
TASKS = "/run/containerd/io.containerd.runtime.v2.task"


def runs(tree: Path, folder: str, id: str, pid: int, bundle: str, start: int = 77) -> None:
    """A container that runc has started."""
    state = {"init_process_pid": pid, "init_process_start": start}
    document = {**state, "config": {"labels": [f"bundle={bundle}"]}}
    hosts.plant(tree, f"{folder}/{id}/state.json", json.dumps(document))
    hosts.plant(tree, f"proc/{pid}/stat", stat(pid))
    plant_cgroup(tree, pid, f"/x/{id}")


def stored(id: str, name: str, **metadata: str) -> dict[str, object]:
    """One container of containers/storage."""
    return {"id": id, "names": [name], "metadata": json.dumps({"name": name, **metadata})}


@pytest.fixture()
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostRoot:
    """A host on which all engines run: CRI-O has a pod of two containers and its sandbox, and what stopped before."""
    monkeypatch.setattr("posix.geteuid", lambda: 0)
    crios = [
        stored(OLD, "k8s_main_gpu_ml_u-1_0", **{"pod-id": SANDBOX}),
        stored(MAIN, "k8s_main_gpu_ml_u-1_1", **{"pod-id": SANDBOX}),
        stored(SIDE, "k8s_side_gpu_ml_u-1_0", **{"pod-id": SANDBOX}),
        stored(SANDBOX, "k8s_POD_gpu_ml_u-1_0", **{"pod-id": SANDBOX}),
        *(stored(ALONE, "roots-own"), None, {"names": None}),
    ]
    storage = "var/lib/containers/storage/overlay-containers"
    hosts.plant(tmp_path, f"{storage}/volatile-containers.json", json.dumps(crios))
    for pid, id in ((10, MAIN), (11, SIDE), (12, SANDBOX)):
        runs(tmp_path, "run/runc", id, pid, f"{RUN}/{id}/userdata")
    own = "/users/ann/.local/share/containers/storage/vfs-containers"
    hosts.plant(tmp_path, f"{own}/containers.json", json.dumps([stored(WEB, "web")]))
    runs(tmp_path, f"run/user/{USER}/runc", WEB, 20, f"{own}/{WEB}/userdata")
    monkeypatch.setattr(processes, "maker", lambda root, pid: USER if pid in (20, 70, 81) else 0)
    runs(tmp_path, "run/docker/runtime-runc/moby", SHOP, 30, f"{TASKS}/moby/{SHOP}")
    hosts.plant(tmp_path, f"var/lib/docker/containers/{SHOP}/config.v2.json", '{"Name": "/shop"}')
    runs(tmp_path, "run/containerd/runc/k8s.io", POD, 40, f"{TASKS}/k8s.io/{POD}")
    said = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": "train",
        "io.kubernetes.cri.sandbox-name": "job",
        "io.kubernetes.cri.sandbox-namespace": "ml",
    }
    text = json.dumps({"annotations": said})
    hosts.plant(tmp_path, f"{TASKS}/k8s.io/{POD}/config.json", text)
    # A user's own Docker, and what that user has written of other containers.
    rootless = f"/run/user/{USER}/docker/containerd/daemon/io.containerd.runtime.v2.task/moby"
    runs(tmp_path, f"run/user/{USER}/docker/runtime-runc/moby", USERS, 70, f"{rootless}/{USERS}")
    hosts.plant(tmp_path, "etc/passwd", f"ann:x:{USER}:{USER}::/users/ann:/bin/sh\n")
    for id, name in ((USERS, "/mine-alone"), (POD, "/planted")):
        record = f"/users/ann/.local/share/docker/containers/{id}/config.v2.json"
        hosts.plant(tmp_path, record, json.dumps({"Name": name}))
    for id, pid in ((ALONE, 21), (SHOP, 21), ("roots", 80)):
        hosts.plant(tmp_path, f"run/user/{USER}/crun/{id}/status", json.dumps({"pid": pid, "bundle": "/b/users"}))
    owned(tmp_path, f"run/user/{USER}", "users/ann")
    # Without an engine, without a state, and in no container at all.
    hosts.plant(tmp_path, "run/crun/bare0/status", '{"pid": 80, "bundle": "/b/crun"}')
    plant_cgroup(tmp_path, 80, "/x/bare0")
    plant_cgroup(tmp_path, 81, f"/machine.slice/libpod-{ALONE}.scope")
    hosts.plant(tmp_path, "proc/82/cgroup", "0::/user.slice\n")
    for pid in (80, 81, 82):
        hosts.plant(tmp_path, f"proc/{pid}/stat", stat(pid))
    hosts.plant(tmp_path, "run/runc/broken/state.json", "{")
    hosts.plant(tmp_path, "run/crun/odd/status", '{"pid": "80"}')
    runs(tmp_path, "run/containerd/runc/default", "mine", 50, f"{TASKS}/default/mine")
    hosts.plant(tmp_path, f"{TASKS}/default/mine/config.json", "{}")
    return HostRoot(str(tmp_path))


def test_two_of_roots_containers_may_have_one_id(host: HostRoot, tmp_path: Path) -> None:
    """As in two namespaces of containerd's: each has its own bundle."""
    runs(tmp_path, "run/containerd/runc/other", "mine", 51, f"{TASKS}/other/mine")
    known = containers.KnownContainers(host)
    assert [known.of_process(pid).bundle for pid in (50, 51)] == [f"{TASKS}/{it}/mine" for it in ("default", "other")]
    with pytest.raises(UsageError, match="several containers"):
        containers.find(host, "mine")
    # A state that tells no start, of a process that has ended.
    (tmp_path / "proc/80/stat").unlink()
    assert [it.pid for it in containers.KnownContainers(host).containers if it.id == "bare0"] == [0]


def test_a_pod_is_roots_whatever_user_has_made_its_user_namespace(
    host: HostRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containerd 2 makes it as the user to whom the pod's root is mapped."""
    monkeypatch.setattr(processes, "maker", lambda root, pid: USER)
    known = containers.KnownContainers(host)
    assert [(it.owner, it.called.name) for it in map(known.of_process, (40, 81))] == [(0, "train"), (USER, "")]


@pytest.mark.parametrize(
    ("engine", "word", "pid"),
    [(CRIO, "10", 10), (CRIO, "side", 11), (DOCKER, "shop", 30), (DOCKER, SHOP[:12], 30)]
    + [(CONTAINERD, "train", 40), (CONTAINERD, "job", 40), (CONTAINERD, "ml/job/train", 40)]
    + [(CRIO, "ml/gpu/side", 11), (CONTAINERD, "mine", 50), ("", "bare0", 80)],
)
def test_each_engines_container_is_found(host: HostRoot, engine: str, word: str, pid: int) -> None:
    found = containers.find(host, word)
    assert (found.pid, found.called.engine) == (pid, engine)


@pytest.mark.parametrize("word", ["web", "mine-alone", "planted", "roots", "broken", "zz", "9" * 5000])
def test_a_users_records_name_no_container_for_root(host: HostRoot, word: str) -> None:
    with pytest.raises(UsageError, match="no running container has"):
        containers.find(host, word)


def test_of_a_process_its_cgroup_tells_and_of_a_users_no_more_than_the_id(host: HostRoot) -> None:
    found = [containers.find(host, word) for word in ("80", "81", "82")]
    assert [it[:4] for it in found] == [("bare0", 80, "/b/crun", "crun"), (ALONE, 81, "", ""), ("", 82, "", "")]
    assert (found[1].owner, found[1].called.name, found[1].called.engine) == (USER, "", PODMAN)
    places = [processes.device_cgroup(host, *which) for which in ((80, "v1"), (80, "v2"), (82, "v1"))]
    assert places == ["/sys/fs/cgroup/devices/x/bare0", "/sys/fs/cgroup/x", ""]


def test_a_users_own_containers_have_names_for_that_user(host: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posix.geteuid", lambda: USER)
    found = containers.find(host, "web")
    assert (found.pid, found.called.engine, found.owner) == (20, PODMAN, USER)
    found = containers.find(host, USERS[:12])
    assert (found.pid, found.called.engine, found.owner) == (70, DOCKER, USER)
    assert containers.find(host, "81")[:4] == (ALONE, 81, "/b/users", "crun")


def test_the_parts_of_a_pods_name(host: HostRoot) -> None:
    found = containers.find(host, "main").called
    assert found == ContainerNames(CRIO, "main", "k8s_main_gpu_ml_u-1_1", "gpu", "ml")
    assert containers.find(host, SANDBOX).called.is_sandbox


def test_a_pod_of_several_containers_asks_for_one_of_them(host: HostRoot) -> None:
    with pytest.raises(UsageError, match=r"several .*ml/gpu/main a{12}, ml/gpu/side b{12} .*NAMESPACE/POD/NAME"):
        containers.find(host, "gpu")
    with pytest.raises(UsageError, match="several"):
        containers.find(host, "b")


def test_what_has_stopped_has_no_process(tmp_path: Path, host: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another process has its number by now, and where only the engine's list is left."""
    # That process is none of this machine's.
    monkeypatch.setattr(processes, "is_contained", lambda pid: False)
    hosts.plant(tmp_path, "proc/30/stat", stat(30, start=78))
    hosts.plant(tmp_path, "proc/11/stat", stat(11, state="Z"))
    for word in ("shop", "side", OLD):
        assert containers.find(host, word).pid == 0


def without_state(tree: Path, cmdline: str, cgroup: str) -> HostRoot:
    """A container whose runtime keeps its state where no command looks."""
    hosts.plant(tree, "proc/60/stat", stat(60, parent=59))
    plant_cgroup(tree, 60, cgroup)
    hosts.plant(tree, "proc/59/cmdline", cmdline.replace(" ", "\0"))
    hosts.plant_program(tree, 59, cmdline.partition(" ")[0])
    return HostRoot(str(tree))


def test_conmon_tells_what_it_watches_where_root_alone_has_put_it(tmp_path: Path) -> None:
    bundle = f"/b/overlay-containers/{ALONE}/userdata"
    hosts.plant(tmp_path, "/b/overlay-containers/containers.json", json.dumps([stored(ALONE, "alone")]))
    line = f"/usr/bin/conmon --api-version 1 -c {ALONE} -n alone -r /usr/bin/crun -b {bundle}"
    root = without_state(tmp_path, line, f"/machine.slice/libpod-{ALONE}.scope/container")
    found = containers.find(root, "60")
    assert found[:4] == (ALONE, 60, bundle, "crun")
    assert (found.called.engine, found.called.name) == (PODMAN, "alone")
    # crun says "/" of a bundle where the container has a user namespace and devices.
    hosts.plant(tmp_path, f"run/crun/{ALONE}/status", json.dumps({"pid": 60, "bundle": "/"}))
    assert [containers.find(root, word)[:4] for word in ("60", ALONE)] == [found[:4]] * 2
    (tmp_path / f"run/crun/{ALONE}/status").unlink()
    # What lies in a user's folder is no conmon: a hard link gives a set-user-ID program any name, and by every number
    # it is root's.
    (tmp_path / "usr/bin").chmod(0o777)
    assert containers.find(root, "60").called.name == ""


def test_containerds_shim_tells_the_bundle(tmp_path: Path) -> None:
    line = f"/usr/bin/containerd-shim-runc-v2 -namespace moby -id {ALONE} -address x"
    root = without_state(tmp_path, line, f"/docker/{ALONE}")
    (tmp_path / "proc/59/cwd").symlink_to(f"/exec/moby/{ALONE}")
    hosts.plant(tmp_path, "etc/docker/daemon.json", '{"data-root": "/data"}')
    hosts.plant(tmp_path, f"data/containers/{ALONE}/config.v2.json", '{"Name": "/alone"}')
    found = containers.find(root, "60")
    assert found[:4] == (ALONE, 60, f"/exec/moby/{ALONE}", "runc")
    assert found.called == ContainerNames(DOCKER, "alone", "alone")


def test_the_monitor_tells_who_has_started_one_of_lxcs(tmp_path: Path) -> None:
    found = containers.find(without_state(tmp_path, "/usr/libexec/incusd forkstart", "/lxc.payload.ml_web"), "60")
    assert (found.id, found.runtime, found.called) == ("ml_web", "incusd", ContainerNames("LXC", "ml_web"))


def test_a_gpu_that_hangs_in_the_kernel_does_not_hold_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends a process that waits for it; here a signal that does nothing stands for that."""
    monkeypatch.setattr(containerreport, "_open_all", lambda *_: time.sleep(20))
    monkeypatch.setattr(containerreport, "_OPEN_SECONDS", 0.1)
    kill, children = os.kill, []
    monkeypatch.setattr(os, "kill", lambda pid, _: children.append(pid))
    root = HostRoot(str(tmp_path))
    inside = ContainerRoot(HostRoot(), os.getpid())
    try:
        nodes = {"/dev/nvidia0": (195, 0)}
        assert containerreport._opened(root, inside, os.getpid(), "/somewhere", nodes) == "a GPU does not answer"
        # Still there: no process has waited for it to end.
        assert os.waitpid(children[0], os.WNOHANG) == (0, 0)
    finally:
        for child in children:
            kill(child, 9)
            os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("file", "text", "is_paused"),
    [("freezer/c/freezer.state", word, word != "THAWED") for word in ("FROZEN", "FREEZING", "THAWED")]
    + [("devices/c/cgroup.freeze", word, word == "1") for word in "01"],
)
def test_no_process_enters_a_container_that_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, is_paused: bool
) -> None:
    hosts.plant(tmp_path, f"sys/fs/cgroup/{file}", f"{text}\n")
    monkeypatch.setattr(containerreport, "_open_all", lambda *_: {})
    root, inside = HostRoot(str(tmp_path)), ContainerRoot(HostRoot(), os.getpid())
    found = containerreport._opened(root, inside, os.getpid(), "/sys/fs/cgroup/devices/c", {"/dev/nvidia0": (195, 0)})
    assert (found == containercheck.PAUSED) == is_paused


def test_a_cgroups_name_says_whose_it_is() -> None:
    names = ("c1", "docker-c1.scope", "system.slice:docker:c1", "xc1", "c1x.scope", "c1-x")
    assert [name for name in names if devicecgroup.is_named_after(name, "c1")] == [*names[:3]]
    assert not devicecgroup.is_named_after("c1", "")
