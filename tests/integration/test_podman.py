# SPDX-License-Identifier: Apache-2.0
"""podman with --hooks-dir: the registration as an engine reads it; each runtime and cgroup: test_cdi.py."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests import manual
from tests.integration import roots
from tests.integration.engines import PODMAN_RUN, cdi_devices, on_node, podman, run_podman, with_podman
from tests.integration.inside import node


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_shows_our_sentence(root: Path, runtime: str) -> None:
    """crun leads its hooks' stderr to /dev/null."""
    done = run_podman(root, "true", options="--env NVIDIA_VISIBLE_DEVICES=77", runtime=runtime)
    assert done.code != 0
    assert "oci-gpu-hook: unknown device '77': this host has indices 0, 1, 2, 3, 4, 5, 6, 7" in done.err


def test_a_read_only_container_works(root: Path) -> None:
    look = "sh -c '/app/cuda >/dev/shm/seen && grep \"1 devices\" /dev/shm/seen'"
    options = "--read-only --env NVIDIA_VISIBLE_DEVICES=0"
    run_podman(root, look, options=options, runtime="crun").printed()


def test_rootless_needs_no_option_once_podman_is_configured(tmp_path: Path, driver: Path) -> None:
    """By the user's own file, which names a folder, by root's for all users, and where none names one by itself.

    In a user namespace: mknod is refused, so the nodes are bound; no cgroup can be changed, so none is.
    """
    home = tmp_path / "home"
    conf = home / ".config/containers"
    conf.mkdir(parents=True)
    (conf / "containers.conf").write_text('[engine]\nhooks_dir = ["/usr/libexec/gpunode/hooks.d"]\n')
    roots.debian(home / "root", driver)
    # pytest's folders are its user's alone.
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    words = (
        f"run --rm --cgroups=disabled --network=none --env NVIDIA_VISIBLE_DEVICES=1,5 --rootfs {home}/root /app/cuda"
    )
    line = re.sub("--hooks-dir [^ ]+ ", "", podman(words, runtime="crun", folder=home, run="/run/user/64123/c"))
    by_cdi = line.replace("--env NVIDIA_VISIBLE_DEVICES=1,5", cdi_devices("nvidia.com/gpu=1", "nvidia.com/gpu=5"))
    user = f"setpriv --reuid=64123 --regid=64123 --clear-groups env HOME={home}"
    configure = "oci-gpu-hook configure podman"
    steps = "\n".join(
        [
            f"echo 'user:x:64123:64123::{home}:/bin/sh' >>/etc/passwd; echo 'user:x:64123:' >>/etc/group",
            "for file in /etc/subuid /etc/subgid; do echo 'user:6553600:65536' >>$file; done",
            f"mkdir -p /run/user/64123; chown -R 64123:64123 /run/user/64123 {home}",
            f'try() {{ echo "== $*"; {user} XDG_RUNTIME_DIR=/run/user/64123 {line} 2>&1 || :; }}',
            f"try before; {user} {configure} --user; try user",
            f"{user} {configure} --user; {user} {configure} --user --remove; try removed",
            f"rm {conf}/containers.conf; cp -r /usr/libexec/gpunode/hooks.d /run/both; mkdir -p /etc/containers",
            f"echo '[engine]\nhooks_dir = [\"/run/both\"]' >/etc/containers/containers.conf; {configure}; try root",
            f"{user} {configure} --user --set-as-default >/dev/null 2>&1; try both",
            f"{user} {configure} --user --remove >/dev/null 2>&1",
            "rm -r /etc/containers/containers.conf*",
            "cp /usr/libexec/gpunode/hooks.d/* /usr/share/containers/oci/hooks.d/; try default",
            "oci-gpu-hook cdi generate --output /etc/cdi/nvidia.yaml >/dev/null 2>&1; echo == cdi",
            f"{user} XDG_RUNTIME_DIR=/run/user/64123 {by_cdi} 2>&1",
        ]
    )
    # podman's pause process would keep the node's namespace alive.
    out = on_node(f"{{ {steps}\n}} 2>&1; pkill -U 64123 || true").printed()
    parts = dict([part.split("\n", 1) for part in out.split("== ")[1:]])
    place = f"{conf}/containers.conf.d/99-oci-gpu-hook.user.conf"
    served = "cuInit 0, 2 devices\n"
    assert served not in parts["before"] and served not in parts["removed"], out
    assert parts["user"] == f"{served}nothing to do in {place}\nremoved {place}\n", out
    assert parts["root"] == served and parts["both"] == served, out
    assert parts["default"] == served, "where no file says another folder, rootless podman reads that of packages"
    assert parts["cdi"] == served, "the same spec serves root's containers and users'"


def test_our_runtime_goes_before_podmans(root: Path, tmp_path: Path) -> None:
    """With the real runtime that it says, and one hook: ours is in hooks.d, too."""
    line = re.sub("--runtime crun ", "", podman('"$@"', runtime="crun", folder=tmp_path))
    script = f"""
        podman() {{ command {line}; }}
        mkdir -p /etc/containers/oci/hooks.d
        oci-gpu-hook configure podman --set-as-default 2>/run/said
        grep -o 'runtime = .*' /run/said >/etc/oci-gpu-hook.conf
        podman {PODMAN_RUN} --detach --name front --log-driver=k8s-file --env NVIDIA_VISIBLE_DEVICES=1 \
            --rootfs {root} sleep 1000 </dev/null >/dev/null
        cat /etc/oci-gpu-hook.conf
        podman inspect --format '{{{{.OCIRuntime}}}}' front
        podman exec front nvidia-smi -L
        ls /run/crun
        # As "podman update" of 5.4 and later sends them: without a CDI spec's.
        jq '{{devices: .linux.resources.devices}}' /run/crun/*/config.json >/run/rules
        oci-gpu-hook cdi generate --output /etc/cdi/nvidia.yaml >/dev/null
        podman {PODMAN_RUN} --detach --name cdi --log-driver=k8s-file {cdi_devices("nvidia.com/gpu=1")} \
            --rootfs {root} sleep 1000 </dev/null >/run/id
        for id in $(ls /run/crun); do oci-gpu-runtime update --resources /run/rules $id; done
        for name in front cdi; do podman exec $name nvidia-smi; done
        podman rm --force --time 0 front cdi >/dev/null
    """
    _, setting, runtime, gpu, *_ = with_podman(script).printed().splitlines()
    assert (setting, runtime) == ("runtime = /usr/bin/crun", "oci-gpu-runtime")
    assert gpu.startswith("GPU 0: ")


# What podman of this machine may do, which lacks CAP_SYS_RESOURCE; and the simulated driver, for builds too, which
# read no folder but these two.
AT_HOME = """
mkdir -p /etc/containers
cp /usr/libexec/gpunode/hooks.d/* /usr/share/containers/oci/hooks.d/
printf '%s\\n' '[containers]' 'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]' 'pids_limit = 0' \\
    >/etc/containers/containers.conf
"""
SEEN = "echo seen $(ls /dev | grep 'nvidia[0-9c]')"
# What a build's layers keep: a program's link, and no file by a name of the driver's.
LEFT = "'(' -type f -name '*nvidia*' -o -type f -name 'libcuda*' -o -name nvidia-smi ')'"
# The manual's own.
UNIT, POD = manual.blocks("oci-gpu-hook-podman.7", "UNITS AND PODS")
# What a quadlet unit's generator of podman 4.4 and later makes of the unit.
(ASKED,) = re.findall("^Environment=(.*)$", UNIT, re.MULTILINE)
QUADLET = f"run --name systemd-gpu --replace --rm --cgroups=split --sdnotify=ignore --env {ASKED}"


def test_builds_pods_and_units_have_their_gpus(tmp_path: Path, root: Path) -> None:
    """A step of a build by its ENV, a pod by its env, a quadlet's container by Environment=; each alone."""

    def engine(words: str) -> str:
        return podman(words, runtime="runc", folder=tmp_path)

    pod = yaml.safe_load(POD)
    pod["spec"] |= {"hostNetwork": True, "restartPolicy": "Never"}
    pod["spec"]["containers"][0] |= {"image": "localhost/image:latest", "command": ["/bin/sh", "-c", SEEN]}
    dockerfile = f"FROM image\nENV NVIDIA_VISIBLE_DEVICES=0\nRUN {SEEN}\n"
    script = f"""{AT_HOME}
tar -C {root} -c . | {engine("import - image")} >/dev/null 2>&1
mkdir /run/context
printf %s {shlex.quote(dockerfile)} >/run/context/Dockerfile
{engine("build --tag built --network none --ulimit nofile=1024:1024 /run/context")} 2>&1
echo left: $({engine("run --rm --network none --env NVIDIA_VISIBLE_DEVICES=void built")} find / -xdev {LEFT})
cat >/run/pod.yaml <<'END'
{pod}
END
{engine("tag image localhost/image:latest")}
{engine("kube play --network host /run/pod.yaml")} >/dev/null
{engine("wait pod-gpu")} >/dev/null
{engine("logs pod-gpu")}
{engine("kube down /run/pod.yaml")} >/dev/null
{engine(QUADLET.replace("--cgroups=split", "--network none"))} image /bin/sh -c {shlex.quote(SEEN)}
"""
    out = with_podman(script, cgroup="v1").printed()
    found = re.findall(r"^seen (.*)$", out, re.MULTILINE)
    assert found == [f"{node(index)[5:]} nvidiactl" for index in range(3)], out
    assert re.findall(r"^left: (.*)$", out, re.MULTILINE) == ["/usr/bin/nvidia-smi"], out
