# SPDX-License-Identifier: Apache-2.0
"""containerd without Docker: by ``ctr run --runc-binary``, by the CRI plugin's BinaryName, and by its CDI.

The CRI plugin's settings are the manual's own.  On cgroup v1: crun and the CRI plugin want controllers that v2 may not
have here.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import manual
from tests.docker.dockerd import LOOK, denied, docker, nodes, opened, tried, uuid
from tests.docker.test_life import WHOSE
from tests.docker.test_options import ALL, UNKNOWN, Case, has_what_it_asked_for
from tests.integration.engines import REPOSITORY, printed

SOCKET = "/run/containerd/containerd.sock"
IMAGE = "docker.io/library/image:latest"
# What a machine without a registry and without CAP_SYS_RESOURCE needs besides.
OURS = f"""
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
"""
START = """
mkdir -p /etc/containerd
cat >/etc/containerd/config.toml <<'END'
{configuration}
END
containerd >/run/containerd.log 2>&1 &
wait_for "ctr plugins ls | grep 'cri .*ok'"
docker save image >/run/image
for namespace in default k8s.io; do ctr --namespace $namespace images import /run/image >/dev/null; done
"""
SPEC = "oci-gpu-hook cdi generate --capabilities compute,utility --output /etc/cdi/nvidia.yaml"
CLIENT = f"python3 {REPOSITORY}/tests/docker/cri.py {SOCKET} {IMAGE}"
RUNTIMES = ("runc", "crun")


class Row(NamedTuple):
    """One container: its variable, options of the pods' client, whether it starts by ctr on a read-only root, its user,
    and what it has, see test_options."""

    asks: str
    pod: str
    ctr: str
    user: str
    has: Case


NOBODY = "--user 1000"
ROWS = {
    "two by index": Row("1,5", "--update --again", "", "", Case("", "", [1, 5])),
    "by UUID, a user, read-only": Row(
        uuid(2), "--user --read-only", "--read-only", NOBODY, Case("", "", [2], mknod=False)
    ),
    # The driver's files, and no GPU.
    "none": Row("none", "--update", "", "", Case("", "", [])),
    "silent": Row("", "", "", "", Case("", "", [])),
}
# No node is made there.  containerd 1.6 has no user namespaces for pods, and its `ctr run` drops the runtime's name
# in one, which `ctr tasks start` keeps.
MAPPED = Row("3", "", "--uidmap 0:100000:65536 --gidmap 0:100000:65536", "", Case("", "", [3], mknod=False))


def configuration() -> str:
    """The CRI plugin's, from the manual's own lines."""
    lines = manual.source("oci-gpu-hook-kubernetes.7").splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip().startswith("[plugins."))
    last = next(n for n, line in enumerate(lines) if "BinaryName" in line and n > first)
    cdi = [line for line in lines if line.strip().startswith(("enable_cdi", "cdi_spec_dirs"))]
    return "\n".join(["version = 2", *lines[first : last + 1], OURS, *cdi])


def on(runtime: str) -> str:
    """The shell line that puts oci-gpu-runtime in front of this runtime."""
    return f"echo 'runtime = /usr/bin/simulated-{runtime}' >/etc/oci-gpu-hook.conf\n"


def ctr(name: str, row: Row) -> str:
    """The shell lines of a container by ctr, looked into, and once more after a restart in its old root."""
    env = f"--env NVIDIA_VISIBLE_DEVICES={row.asks}" if row.asks else ""
    look = f"ctr tasks exec {row.user} --exec-id look {name} /bin/sh -c {shlex.quote(LOOK)}"
    words = f"--runc-binary /usr/bin/oci-gpu-runtime {env} {row.ctr} {IMAGE} {name}"
    return f"""
ctr run --detach {words} /bin/sleep 100000 2>&1 || {{ echo failed; exit 0; }}
{look}
echo again
ctr tasks delete --force {name} >/dev/null
ctr tasks start --detach {name}
{look}
ctr tasks delete --force {name} >/dev/null
"""


def pod(asks: str, options: str = "") -> str:
    """The shell line of a pod with one container."""
    return f"{CLIENT} {asks} {options} -- {shlex.quote(LOOK)} 2>&1 || echo failed"


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    """What a container sees, by each way in and each request."""
    scripts = {"start": START.format(configuration=configuration())}
    for kind in RUNTIMES:
        scripts[kind] = on(kind)
        for number, (name, row) in enumerate(ROWS.items()):
            asks = f"NVIDIA_VISIBLE_DEVICES={row.asks}" if row.asks else "OTHER=1"
            scripts[f"cri {kind} {name}"] = pod(asks, row.pod)
            scripts[f"ctr {kind} {name}"] = ctr(f"{kind}{number}", row)
        scripts[f"ctr {kind} mapped"] = ctr(f"{kind}-mapped", MAPPED)
        scripts[f"cri {kind} unknown"] = pod("NVIDIA_VISIBLE_DEVICES=77")
        scripts[f"ctr {kind} unknown"] = ctr(f"{kind}-unknown", MAPPED._replace(asks="77", ctr=""))
    scripts["ctr --gpus"] = f"""
ln -s ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
rm /etc/oci-gpu-hook.conf
gpus() {{ ctr run --runc-binary /usr/bin/simulated-runc --rm "$@" /bin/sh -c {shlex.quote(LOOK)} 2>&1 || echo failed; }}
gpus --gpus 2 {IMAGE} gpus-2
echo again
gpus --read-only --gpus 4 --gpus 6 {IMAGE} gpus-4-6
echo again
gpus --gpus 77 {IMAGE} gpus-77
"""
    scripts["cdi"] = f"{SPEC}\n{pod('nvidia.com/gpu=1 nvidia.com/gpu=5', '--update')}"
    # Kept until it is told otherwise: the sandbox has its /dev/shm first, and its container shares it.
    tasks = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
    scripts["shm"] = f"""{WHOSE}
{CLIENT} OTHER=1 -- 'sleep 100000' >/run/client 2>&1 &
wait_for "test \\$(ls {tasks}/*/init.pid | wc -l) = 2"
for folder in $(ls {tasks}); do whose k8s.io $folder; done
kill $!
"""
    scripts["version"] = "containerd --version"
    return docker(patterns["debian"], scripts, cgroup="v1")


def times(lines: list[str]) -> list[list[str]]:
    """What was seen each time that it was looked into."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line in ("updated", "again"):
            found.append([])
        else:
            found[-1].append(line)
    return found


def test_ctrs_own_option(seen: dict[str, list[str]]) -> None:
    """``ctr run --gpus`` has runc start nvidia-container-cli with the container's process."""
    one, two, unknown = times(seen["ctr --gpus"])
    # It asks for every capability.
    assert opened(one) - {"/dev/nvidia-modeset"} == nodes([2]) | tried([2]), one
    assert opened(two) - {"/dev/nvidia-modeset"} == nodes([4, 6]) | tried([4, 6]), two
    assert tried([0]) <= denied(one)
    assert "cuInit 0, 1 devices" in one
    assert "failed" in unknown and "unknown device '77'" in "\n".join(unknown), unknown


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", ["ctr", "cri"])
def test_a_container_has_what_it_asked_for(seen: dict[str, list[str]], way: str, runtime: str, name: str) -> None:
    """At its start, after an update of its resources, after a restart in its old root, and a second one of its pod."""
    lines = seen[f"{way} {runtime} {name}"]
    if "unknown version specified" in lines[0]:
        pytest.skip("this crun is older than the containerd that DOCKER_FROM names can use")
    looks = times(lines)
    row = ROWS[name]
    assert len(looks) == (2 if way == "ctr" else 1 + len(re.findall("--update|--again", row.pod)))
    for look in looks:
        if row.asks == "none":
            assert opened(look) == nodes([]) and denied(look) == tried(ALL), look
        else:
            has_what_it_asked_for(row.has, look)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_in_a_user_namespace(seen: dict[str, list[str]], runtime: str) -> None:
    has_what_it_asked_for(MAPPED.has, times(seen[f"ctr {runtime} mapped"])[-1])


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", ["ctr", "cri"])
def test_an_unknown_gpu_is_told(seen: dict[str, list[str]], way: str, runtime: str) -> None:
    """In the error, and for a pod in what the engine says of the container afterwards."""
    *said, last = seen[f"{way} {runtime} unknown"]
    assert last == "failed"
    assert len(said) == (1 if way == "ctr" else 2)
    for line in said:
        assert UNKNOWN in line and "OCI runtime create failed" in line, line
    if way == "cri":
        assert said[1].startswith("inspect: StartError: ")


def test_a_pod_has_its_cdi_devices(seen: dict[str, list[str]]) -> None:
    """The spec starts the hook, and oci-gpu-runtime adds no second one; an update leaves them under crun, too."""
    major, minor = map(int, re.findall(r" v?(\d+)\.(\d+)\.", seen["version"][0])[0])
    if (major, minor) < (1, 7):
        pytest.skip(f"containerd {major}.{minor} knows no CDI devices of pods: 1.7 does")
    for look in times(seen["cdi"]):
        assert opened(look) == nodes([1, 5]) | tried([1, 5]), look
        assert denied(look) == tried(ALL) - tried([1, 5])


def test_a_pods_memory_is_its_own(seen: dict[str, list[str]]) -> None:
    assert [line.split()[0] for line in seen["shm"]] == ["pod", "pod"], seen["shm"]


INSTALLER = f"{REPOSITORY}/packaging/openshift/install-node.sh"
DROP_IN = "/etc/containerd/conf.d/99-oci-gpu-hook.toml"
# With systemd's own targets masked the installer's units do not start, which it says.
NODE = f"""
set +e
mkdir -p /etc/containerd
printf 'version = 2\\nimports = ["/etc/containerd/conf.d/*.toml"]\\n' >/etc/containerd/config.toml
cat >/run/systemd/system/containerd.service <<'END'
[Unit]
DefaultDependencies=no
[Service]
Type=notify
ExecStart=/usr/bin/containerd
KillMode=process
END
systemctl daemon-reload
systemctl start containerd
export HOST=/ PAYLOAD={{payload}} GRACE=0
pid() {{{{ systemctl show -P MainPID containerd; }}}}
step() {{{{ name=$1; shift; echo $name $("$@" 2>/dev/null | cut -d ' ' -f 1) $(pid); }}}}
step first sh {INSTALLER} install
step second sh {INSTALLER} install
rm {DROP_IN}
step without systemctl restart containerd
step again sh {INSTALLER} install
sed 's/^    may_start_ours || return 0/    kill -9 $$/' {INSTALLER} >/run/killed
step killed sh /run/killed remove
step removed sh {INSTALLER} remove
ls /usr/local/bin/oci-gpu-runtime {DROP_IN} 2>/dev/null || :
"""


def test_the_installer_restarts_containerd_where_it_has_not_read_its_settings(tmp_path: Path) -> None:
    """By the node's D-Bus; also where a removal was killed before it had done so."""
    printed("make", "install", f"DESTDIR={tmp_path}", "PREFIX=/usr/local", cwd=REPOSITORY)
    lines = docker(tmp_path, {"node": NODE.format(payload=tmp_path)}, start=False, cgroup="v1")["node"]
    said = [line.split() for line in lines]
    assert [words[:-1] for words in said] == [
        *(["first", "installed"], ["second", "installed"], ["without"], ["again", "installed"], ["killed"]),
        ["removed", "removed;"],
    ]
    first, second, without, again, killed, removed = [words[-1] for words in said]
    assert first == second and again == killed and len({first, without, again, removed}) == 4
