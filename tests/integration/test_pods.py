# SPDX-License-Identifier: Apache-2.0
"""Pods as the field writes them: one GPU by its UUID, no capability, a read-only root, a user that is not root.

The files that people paste (packaging/openshift/pods) are played by real podman, on a node that systemd has booted; and
CRI-O's container of such a pod is started by its runtimes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests import pods
from tests.integration import crio, roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, on_node, podman
from tests.integration.inside import ALLOWED, COMPUTE, DENIED, gpus, node

GPU = 5
UUID = str(gpus()[GPU]["uuid"])
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
# Without CAP_SYS_RESOURCE no limit can be raised, and the node's sysctls are the machine's.
CONTAINERS_CONF = f"""
[containers]
pids_limit = 0
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
default_sysctls = []
[engine]
infra_image = "{pods.IMAGE}"
"""
# A pod's infra container waits; a signal that its program ignores would cost the patience of `kube down`.
CHANGES = f'--change \'CMD ["sleep", "1000"]\' --change STOPSIGNAL=SIGKILL --change ENV={pods.PATH}'
# Every node of the host, tried by a process of the container's cgroup.
OUTSIDE = """
(
    echo 0 >/sys/fs/cgroup$(sed -n s/^0:://p /proc/$pid/cgroup)/cgroup.procs
    for node in $(find /dev/nvidia* -type c); do echo "host $node=$({ true <$node; } 2>&1)"; done
)
"""


class Podman(NamedTuple):
    """podman's commands, with a storage of their own."""

    folder: Path
    runtime: str

    def __call__(self, words: str) -> str:
        return podman(words, runtime=self.runtime, folder=self.folder, cgroups="systemd")

    def imports(self, root: Path) -> list[str]:
        """The shell lines that make the pods' image of a root."""
        return [
            "mkdir -p /etc/containers",
            f"printf %s '{CONTAINERS_CONF}' >/etc/containers/containers.conf",
            f"tar -C {root} -c . | {self(f'import --quiet {CHANGES} - {pods.IMAGE}')}",
        ]

    def plays(self, name: str, text: str) -> str:
        """The shell line that plays a pod."""
        (self.folder / f"{name}.yaml").write_text(text)
        return self(f"kube play --network none {self.folder}/{name}.yaml")


class Seen(NamedTuple):
    """What a pod's container told of itself, and what a root that is in its cgroup may open of the host's nodes."""

    told: dict[str, str]
    allowed: set[str]
    denied: set[str]

    def is_as_written(self) -> None:
        """The pod got what it asks for, and is confined as it says."""
        mine = {*COMPUTE, node(GPU)}
        assert self.told["smi"].count("GPU-") == 1
        assert self.told["smi"].endswith(f"(UUID: {UUID})")
        nodes = {name for name in self.told if name.startswith("/dev/")}
        assert nodes == self.allowed == mine
        assert all(self.told[name].endswith(ALLOWED) for name in nodes), self.told
        assert {node(index) for index in range(8) if index != GPU} <= self.denied
        assert {self.told[name] for name in CAPABILITIES} == {"0" * 16}
        assert (self.told["user"], self.told["NoNewPrivs"], self.told["shm"]) == ("1000", "1", "")
        assert self.told["root"].endswith("Read-only file system")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, driver: Path) -> Path:
    """The root of the pods' image."""
    root = roots.debian(tmp_path_factory.mktemp("pods") / "root", driver)
    (root / "app/nvidia-smi").write_text(pods.LOOK)
    (root / "app/nvidia-smi").chmod(0o755)
    return root


@pytest.mark.parametrize(("runtime", "type_"), [("crun", "container_t"), ("runc", "nvidia_container_t")])
def test_podman_plays_the_pod(installed: Installed, tmp_path: Path, image: Path, runtime: str, type_: str) -> None:
    """Its other container, which podman makes for the pod, is left alone."""
    command = Podman(tmp_path, runtime)
    out = tmp_path / "out"
    lines = [
        *command.imports(image),
        command.plays("pod", pods.text(type_, UUID)),
        f"until {command('logs --latest')} >{out} 2>&1 && grep -q looked= {out}; do sleep 0.05; done",
        f"pid=$({command('inspect --latest --format {{.State.Pid}}')})",
        OUTSIDE,
        command("mount"),
    ]
    done = on_node(installed, "\n".join(lines), booted=True)
    assert done.code == 0, done.out + done.err
    told = seen(done.out, out)
    told.is_as_written()
    assert told.told["Seccomp"] == "2"
    mounted = [Path(line.split()[1]) for line in done.out.splitlines() if "/vfs/" in line]
    before = roots.listing(image)
    infra, main = sorted(map(roots.listing, mounted), key=len)
    assert "nvidia" not in " ".join(infra.keys() - before.keys())
    left_as_found(before, infra)
    left_as_found(before, main)


def test_a_pod_that_cannot_be_served_is_refused_in_one_sentence(
    installed: Installed, tmp_path: Path, image: Path
) -> None:
    """A GPU that this node does not have, and a CUDA version that its driver does not serve."""
    command = Podman(tmp_path, "runc")
    wrong = {"unknown": pods.text("container_t"), "unmet": pods.text("container_t", UUID, "cuda>=99.0")}
    lines = command.imports(image)
    for name, text in wrong.items():
        lines.append(f"! {command.plays(name, text)} >{tmp_path}/{name}.err 2>&1")
        lines.append(command(f"kube down {tmp_path}/{name}.yaml"))
    on_node(installed, "\n".join(lines), booted=True).printed()
    for name, said in (
        ("unknown", f"unknown device '{pods.UNKNOWN}': this host has 8 GPUs, and none has this UUID"),
        ("unmet", "the image requires 'cuda>=99.0' (here cuda is 13.0)"),
    ):
        told = (tmp_path / f"{name}.err").read_text()
        assert f"exit status 5, stdout: , stderr: oci-gpu-hook: {said}" in told
        assert "Traceback" not in told


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_cri_o_starts_the_pods_container(installed: Installed, bundle: Maker, image: Path, runtime: str) -> None:
    made = as_pod(crio.container(bundle("debian")), pods.text("nvidia_container_t", UUID))
    (made.rootfs / "app/nvidia-smi").write_text(pods.LOOK)
    (made.rootfs / "app/nvidia-smi").chmod(0o755)
    before = roots.listing(made.rootfs)
    made.write()
    out = made.path / "out"
    line = f"{runtime} --systemd-cgroup run --detach --pid-file {made.path}/pid"
    script = f"""{crio.pod()}
    {line} --bundle {made.path} main >{out} 2>&1 </dev/null || {{ cat {out}; exit 1; }}
    until grep -q looked= {out}; do sleep 0.02; done
    pid=$(cat {made.path}/pid)
    {OUTSIDE}
    {runtime} delete --force main
    """
    done = on_node(installed, script, booted=True)
    assert done.code == 0, done.out + done.err
    seen(done.out, out).is_as_written()
    left_as_found(before, roots.listing(made.rootfs))


def as_pod(made: Bundle, text: str) -> Bundle:
    """CRI-O's container of a pod, made the one that the pod's text asks for."""
    spec = yaml.safe_load(text)["spec"]
    (container,) = spec["containers"]
    process: dict[str, Any] = made.config["process"]
    user = spec["securityContext"]["runAsUser"]
    process["user"] = {"uid": user, "gid": 0, "additionalGids": [0]}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    process["noNewPrivileges"] = True
    process["capabilities"] = {}
    made.config["root"]["readonly"] = True
    process["args"] = container["command"]
    process["env"] = [it for it in process["env"] if not it.startswith("PATH=")] + [pods.PATH]
    process["env"] += [f"{item['name']}={item['value']}" for item in container["env"]]
    return made


def seen(outside: str, out: Path) -> Seen:
    """What a pod's container told, and what was tried from outside."""
    told = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    host = dict(line[5:].split("=", 1) for line in outside.splitlines() if line.startswith("host "))
    assert all(answer.endswith((DENIED, *ALLOWED)) for answer in host.values()), host
    denied = {name for name, answer in host.items() if answer.endswith(DENIED)}
    return Seen(told, set(host) - denied, denied)


def left_as_found(before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]]) -> None:
    """A root has what it had, and beside it nothing but empty mount points and links to them."""
    assert {name: after.get(name) for name in before} == before
    more = {name: after[name] for name in after.keys() - before.keys()}
    assert all(size == 0 for _, size in more.values()), more
