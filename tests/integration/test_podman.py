# SPDX-License-Identifier: Apache-2.0
"""podman with --hooks-dir: the registration as an engine reads it.

That a container by podman has its GPUs, under each runtime and cgroup version, is shown in test_cdi.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from tests import manual
from tests.integration import roots
from tests.integration.engines import (
    PODMAN_RUN,
    PROCDRIVER,
    Installed,
    cdi_devices,
    on_node,
    podman,
    remove_podmans_parents,
    run_podman,
)
from tests.integration.inside import node
from tests.integration.test_cdi import GENERATE, MINORS


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_shows_our_sentence(installed: Installed, tmp_path: Path, runtime: str) -> None:
    """crun leads its hooks' stderr to /dev/null."""
    root = roots.busybox(tmp_path / "root")
    options = "--env NVIDIA_VISIBLE_DEVICES=77"
    done = run_podman(installed, root, "true", options=options, runtime=runtime)
    assert done.code != 0
    assert "oci-gpu-hook: unknown device '77': this host has indices 0 to 7" in done.err


def test_a_read_only_container_works(installed: Installed, tmp_path: Path, driver: Path) -> None:
    root = roots.debian(tmp_path / "root", driver)
    look = "sh -c '/app/cuda >/dev/shm/seen && grep \"1 devices\" /dev/shm/seen'"
    options = "--read-only --env NVIDIA_VISIBLE_DEVICES=0"
    run_podman(installed, root, look, options=options, runtime="crun").printed()


# The simulated driver's hook is no part of this: it goes by the bundle that crun does not tell.
TOLD = r"""
cat >/run/told <<'END'
state=$(cat)
id=$(echo "$state" | sed -n 's/.*"id": *"\([0-9a-f]*\).*/\1/p')
own={folder}/storage/vfs-containers/$id/userdata
echo "$state" | sed -E "s#\"bundle\": *\"(\\\\)?/\"#\"bundle\":\"$own\"#" | {procdriver}
END
sed -i 's#"path": *"{procdriver}"#"path": "/bin/sh", "args": ["sh", "/run/told"]#' /usr/libexec/gpunode/hooks.d/*.json
"""


@pytest.mark.parametrize(("runtime", "more"), [("runc", ""), ("crun", ""), ("crun", "--device /dev/fuse")])
def test_a_user_namespace_may_map_anyone(
    installed: Installed, tmp_path: Path, driver: Path, runtime: str, more: str
) -> None:
    """Whose root has no number in the host's namespace cannot be given what root owns.

    With a device crun tells its hooks no bundle, and under podman's conmon it is not the container's parent.
    """
    root = roots.debian(tmp_path / "root", driver)
    for path in (root, *root.rglob("*")):
        os.chown(path, 100_000, 100_000, follow_symlinks=False)
    # pytest's folders are its user's alone.
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    options = "--env NVIDIA_VISIBLE_DEVICES=1,5 --uidmap 0:100000:65536 --gidmap 0:100000:65536"
    look = "sh -c '/app/cuda >/seen; nvidia-smi -L >>/seen'"
    told = TOLD.format(folder=tmp_path, procdriver=PROCDRIVER["path"]) if more else ""
    options = f"{options} {more}"
    run_podman(installed, root, look, options=options, before=told, runtime=runtime).printed()
    seen = (root / "seen").read_text()
    assert "2 devices" in seen and seen.count("NVIDIA H100") == 2


ROOTLESS = """
echo 'user:x:64123:64123::{home}:/bin/sh' >>/etc/passwd
echo 'user:x:64123:' >>/etc/group
echo 'user:6553600:65536' >>/etc/subuid
echo 'user:6553600:65536' >>/etc/subgid
chown -R 64123:64123 {home}
mkdir -p /run/user/64123 && chown 64123 /run/user/64123
run() {{
    setpriv --reuid=64123 --regid=64123 --clear-groups env HOME={home} XDG_RUNTIME_DIR=/run/user/64123 \\
        {podman} >{home}/out 2>&1
}}
run || {{ cat {home}/out; exit 1; }}
"""


def users_home(tmp_path: Path, driver: Path) -> Path:
    """A home with an image's root, where a user can go: pytest's folders are its user's alone."""
    home = tmp_path / "home"
    home.mkdir()
    roots.debian(home / "root", driver)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    return home


def test_a_rootless_container_has_its_gpus(installed: Installed, tmp_path: Path, driver: Path) -> None:
    """In a user namespace: mknod is refused, so the nodes are bound; no cgroup can be changed, so none is."""
    home = users_home(tmp_path, driver)
    words = f"run --rm --cgroups=disabled --network=none --env NVIDIA_VISIBLE_DEVICES=1,5 --rootfs {home}/root"
    words += " sh -c '{ id -u; nvidia-smi; /app/cuda; } >/seen 2>&1'"
    line = podman(words, runtime="crun", folder=home, run="/run/user/64123/c")
    script = ROOTLESS.format(home=home, podman=line)
    # podman's pause process would keep the node's namespace alive.
    on_node(installed, f"{{ {script} }}\npkill -U 64123 || true").printed()
    seen = (home / "root/seen").read_text()
    assert seen.startswith("0\n")
    assert seen.count("NVIDIA H100") == 2, seen
    assert seen.endswith("cuInit 0, 2 devices\n")


def test_a_rootless_container_is_refused_a_cdi_device_that_is_another_now(
    installed: Installed, tmp_path: Path, driver: Path
) -> None:
    """The same spec serves root's containers and users'."""
    home = users_home(tmp_path, driver)
    words = f"run --rm --cgroups=disabled --network=none {cdi_devices('nvidia.com/gpu=0')} "
    words += f"--annotation run.oci.hooks.stderr={home}/said --rootfs {home}/root sh -c '/app/cuda 2>&1'"
    line = podman(words, runtime="crun", folder=home, run="/run/user/64123/c")
    script = ROOTLESS.format(home=home, podman=line)
    again = f"cat {home}/out; {MINORS}\nrun || cat {home}/out {home}/said"
    done = on_node(installed, f"{GENERATE}{script}\n{again}\npkill -U 64123 || true")
    assert done.code == 0, done.out + done.err
    well, _, refused = done.out.partition("cuInit 0, 1 devices\n")
    assert well.startswith("wrote") and refused, done.out + done.err
    assert "when the CDI spec was written" in refused and "cuInit" not in refused, done.out


def test_a_rootless_container_needs_no_option_once_podman_is_configured(
    installed: Installed, tmp_path: Path, driver: Path
) -> None:
    """By the user's own file, which names a folder, by root's for all users, and where none names one by itself."""
    home = tmp_path / "home"
    conf = home / ".config/containers"
    conf.mkdir(parents=True)
    (conf / "containers.conf").write_text('[engine]\nhooks_dir = ["/usr/libexec/gpunode/hooks.d"]\n')
    roots.debian(home / "root", driver)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    words = (
        f"run --rm --cgroups=disabled --network=none --env NVIDIA_VISIBLE_DEVICES=1,5 --rootfs {home}/root /app/cuda"
    )
    line = re.sub("--hooks-dir [^ ]+ ", "", podman(words, runtime="crun", folder=home, run="/run/user/64123/c"))
    user = f"setpriv --reuid=64123 --regid=64123 --clear-groups env HOME={home}"
    configure = "oci-gpu-hook configure podman"
    steps = "\n".join(
        [
            f'try() {{ echo "== $*"; {user} XDG_RUNTIME_DIR=/run/user/64123 {line} 2>&1 || :; }}',
            f"try before; {user} {configure} --user; try user",
            f"{user} {configure} --user; {user} {configure} --user --remove; try removed",
            f"rm {conf}/containers.conf; cp -r /usr/libexec/gpunode/hooks.d /run/both; mkdir -p /etc/containers",
            f"echo '[engine]\nhooks_dir = [\"/run/both\"]' >/etc/containers/containers.conf; {configure}; try root",
            "rm -r /etc/containers/containers.conf*",
            "cp /usr/libexec/gpunode/hooks.d/* /usr/share/containers/oci/hooks.d/; try default",
        ]
    )
    script = ROOTLESS.format(home=home, podman="true")
    out = on_node(installed, f"{{ {script}\n{steps}\n}} 2>&1; pkill -U 64123 || true").printed()
    parts = dict([part.split("\n", 1) for part in out.split("== ")[1:]])
    place = f"{conf}/containers.conf.d/99-oci-gpu-hook.conf"
    served = "cuInit 0, 2 devices\n"
    assert served not in parts["before"] and served not in parts["removed"], out
    assert parts["user"] == f"{served}nothing to do in {place}\nremoved {place}\n", out
    assert parts["root"] == served, out
    assert parts["default"] == served, "where no file says another folder, rootless podman reads that of packages"


def test_our_runtime_stands_in_front_once_podman_is_configured(
    installed: Installed, patterns: dict[str, Path], tmp_path: Path
) -> None:
    """With the real runtime that it says, and one hook: ours is in hooks.d, too."""
    shutil.copytree(patterns["busybox"], tmp_path / "root", symlinks=True)
    line = re.sub("--runtime crun ", "", podman('"$@"', runtime="crun", folder=tmp_path))
    script = f"""
        podman() {{ command {line}; }}
        mkdir -p /etc/containers/oci/hooks.d
        oci-gpu-hook configure podman --set-as-default 2>/run/said
        grep -o 'runtime = .*' /run/said >/etc/oci-gpu-hook.conf
        podman {PODMAN_RUN} --detach --name front --log-driver=k8s-file --env NVIDIA_VISIBLE_DEVICES=1 \
            --rootfs {tmp_path}/root sleep 1000 </dev/null >/dev/null
        cat /etc/oci-gpu-hook.conf
        podman inspect --format '{{{{.OCIRuntime}}}}' front
        podman exec front nvidia-smi -L
        ls /run/crun
        podman rm --force --time 0 front >/dev/null
    """
    try:
        done = on_node(installed, script)
    finally:
        remove_podmans_parents()
    assert done.code == 0, done.out + done.err
    _, setting, runtime, gpu, _ = done.out.splitlines()
    assert (setting, runtime) == ("runtime = /usr/bin/crun", "oci-gpu-runtime")
    assert gpu.startswith("GPU 0: ")


def test_a_rootless_build_needs_the_option(installed: Installed, tmp_path: Path, driver: Path) -> None:
    """podman build reads no hooks_dir of containers.conf, for which `configure podman --user` gives this advice."""
    home = users_home(tmp_path, driver)
    (home / "Dockerfile").write_text("FROM image\nENV NVIDIA_VISIBLE_DEVICES=1\nRUN /app/cuda || true\n")
    line = re.sub("--hooks-dir [^ ]+ ", "", podman('"$@"', runtime="crun", folder=home, run="/run/user/64123/c"))
    given = "--hooks-dir=/usr/libexec/gpunode/hooks.d --hooks-dir=/usr/share/containers/oci/hooks.d"
    build = f"build --no-cache --network=host --isolation=oci --ulimit nofile=1024:1024 {home}"
    script = f"""
        {ROOTLESS.format(home=home, podman="true")}
        user="setpriv --reuid=64123 --regid=64123 --clear-groups env HOME={home} XDG_RUNTIME_DIR=/run/user/64123"
        podman() {{ $user {line}; }}
        tar -C {home}/root -c . | podman import - image >/dev/null 2>&1
        $user oci-gpu-hook configure podman --user
        podman {build}; podman {build} {given}
    """
    out = on_node(installed, f"{{ {script}\n}} 2>&1; pkill -U 64123 || true").printed()
    assert out.count("cuInit 0, 1 devices\n") == 1, out
    advice = "podman build reads no such file: type podman build --hooks-dir /usr/share/containers/oci/hooks.d"
    assert advice in out


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


def test_builds_pods_and_units_have_their_gpus(installed: Installed, tmp_path: Path, driver: Path) -> None:
    """A step of a build by its ENV, a pod by its env, a quadlet's container by Environment=; each alone."""
    root = roots.debian(tmp_path / "root", driver)

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
    try:
        done = on_node(installed, script, cgroup="v1")
    finally:
        remove_podmans_parents()
    assert done.code == 0, done.out + done.err
    found = re.findall(r"^seen (.*)$", done.out, re.MULTILINE)
    assert found == [f"{node(index)[5:]} nvidiactl" for index in range(3)], done.out
    (left,) = re.findall(r"^left: (.*)$", done.out, re.MULTILINE)
    assert left == "/usr/bin/nvidia-smi", done.out
