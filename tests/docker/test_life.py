# SPDX-License-Identifier: Apache-2.0
"""A container's life behind oci-gpu-runtime: its GPUs stay its own, and the runtime is called until the end.

With runc and with crun, on cgroup v1, whose controllers Docker can set here.  The daemon has live-restore, so that
containers outlive it.  Then whose /dev/shm is, by where Docker keeps it (of containerd's pods: test_containerd.py), and
what a start leaves in Docker's layer, and in an image made of it: links, mount points, the cache, and no library.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docker.dockerd import LINK, denied, docker, look, nodes, opened, run, tried
from tests.integration.engines import REPOSITORY, Installed

ASKS = "--env NVIDIA_VISIBLE_DEVICES=1,5"
BY_GPUS = """--gpus '"device=1,5"'"""
GIVEN = [1, 5]
START = f"docker run --detach --network none --name kept {ASKS} image /bin/sleep 100000 >/dev/null"
# Its hook is added without Python, to what dockerd writes.
ALONE = "sed -i s,/usr/bin/python3,/bin/false, /usr/bin/oci-gpu-runtime"
# With crun dockerd sends a limit of 0 for the memory that was not named, which the kernel refuses: with ours or not.
UPDATE = "--cpus 1.5 --memory 1g --memory-swap 2g"
FIXED = {"default-runtime": "oci-gpu-runtime", "live-restore": True}


def has_its_own(lines: list[str]) -> None:
    """Its own GPUs can be opened, and no others of the host's."""
    assert opened(lines) == nodes(GIVEN) | tried(GIVEN), lines
    assert len(denied(lines)) == 6, lines
    assert lines[-1] == "cuInit 0, 2 devices"


def scripts(tree: Path, runtime: str) -> dict[str, str]:
    """One container from its start to its end, as `kept`, and what is tried on it, in turn."""
    return {
        "start": f"{START}\n{look('kept')}",
        "update": f"docker update {UPDATE} kept >/dev/null\n{look('kept')}",
        "cpus": "docker exec kept cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        "pause": f"docker pause kept >/dev/null && docker unpause kept >/dev/null\n{look('kept')}",
        "restart": f"docker restart -t 0 kept >/dev/null\n{look('kept')}",
        "daemon": f"""
# The kernel ends its containerd with it: a new daemon that still sees that one waits for it in vain.
old=$(cat /run/docker/containerd/containerd.pid)
kill -KILL $(cat /run/docker.pid)
wait_for "! docker version && ! kill -0 $old"
start_dockerd
docker inspect --format '{{{{.RestartCount}}}} {{{{.State.Status}}}}' kept
{look("kept")}
""",
        # As a package's upgrade does: each file is renamed over the old one, which is gone.
        "upgrade": f"""
cp -a --remove-destination {tree}/usr/. /usr/
{look("kept")}
""",
        "stop": "docker stop -t 0 kept && docker start kept\n" + look("kept"),
        "gpus": run(f"--runtime simulated-{runtime} {BY_GPUS}"),
        "alone": f"{ALONE}\n" + run(f"--network bridge {ASKS}").replace("--network none ", ""),
        "end": "docker rm --force kept; docker ps --all --quiet; pgrep sleep || echo nobody",
    }


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_from_start_to_end(installed: Installed, patterns: dict[str, Path], runtime: str) -> None:
    steps, settings = scripts(installed.tree, runtime), f"runtime = /usr/bin/simulated-{runtime}\n"
    seen = docker(patterns["debian"], steps, FIXED, settings=settings, cgroup="v1")
    for name in ("start", "update", "pause", "restart", "upgrade", "gpus", "alone"):
        has_its_own(seen[name])
    assert seen["cpus"] == ["150000"]
    assert seen["daemon"][0] == "0 running"
    has_its_own(seen["daemon"][1:])
    assert seen["stop"][:2] == ["kept", "kept"]
    has_its_own(seen["stop"][2:])
    assert seen["end"] == ["kept", "nobody"]


def test_with_userns_remap(patterns: dict[str, Path]) -> None:
    """The container's root is nobody here; its nodes are bound from the host."""
    before = """
echo 'remapped:x:64124:64124::/:/bin/false' >>/etc/passwd
echo 'remapped:x:64124:' >>/etc/group
echo 'remapped:100000:65536' >/etc/subuid && cp /etc/subuid /etc/subgid
"""
    scripts = {
        "gpus": run(f"--runtime simulated-runc {BY_GPUS}"),
        "env": run(ASKS),
        "device": run(f"--device /dev/fuse {ASKS}"),
        "silent": run("--device /dev/fuse"),
        "map": run("", "cat /proc/self/uid_map"),
        "exec": f"{START}\n{look('kept')}\ndocker rm --force kept",
    }
    configuration = {"default-runtime": "oci-gpu-runtime", "userns-remap": "remapped"}
    seen = docker(patterns["debian"], scripts, configuration, before=LINK + before)
    for name in ("gpus", "env", "device", "exec"):
        assert opened(seen[name]) == nodes(GIVEN), seen[name]
        assert "cuInit 0, 2 devices" in seen[name]
    assert seen["silent"] == []
    assert seen["map"][0].split() == ["0", "100000", "65536"]


# containerd's shim writes the process's number into the bundle.
WHOSE = f"""
whose() {{
    folder=$(find /run -path "*/io.containerd.runtime.v2.task/$1/$2*" -name config.json 2>/dev/null | head -1)
    folder=${{folder%/config.json}}
    python3 {REPOSITORY}/tests/integration/whose.py $folder ${{folder##*/}} $(cat $folder/init.pid)
}}
"""
RUN = "docker run --detach --network none {} image /bin/sleep 100000"


def test_dockers_containers(patterns: dict[str, Path]) -> None:
    """Their own, one that two share, one by a volume, and volumes whose paths have a container's id in them."""
    scripts = {
        "own": f"whose moby $({RUN.format('')})",
        "lent": f"id=$({RUN.format('--ipc shareable --name lender')}); echo $id >/run/lender\nwhose moby $id",
        "shared": f"whose moby $({RUN.format('--ipc container:lender')})",
        "hosts": f"whose moby $({RUN.format('--ipc host')})",
    }
    for name in ("/media/memory/{}", "/media/{}/shm", "/media/{}/mounts/shm", "/media/containers/{}/shm"):
        path = name.format("$(cat /run/lender)")
        made = RUN.format(f"--volume {path}:/dev/shm")
        scripts[name] = f"mount -t tmpfs none /media; mkdir -p {path}\nwhose moby $({made}); umount -l /media"
    seen = docker(patterns["debian"], scripts, before=WHOSE)
    owners = {name: lines[-1].split()[0] for name, lines in seen.items()}
    expected = {"own": "container", "lent": "pod", "shared": "pod", "hosts": "host"}
    assert owners == {name: expected.get(name, "volume") for name in scripts}, seen


CAPABILITIES = ("utility", "compute,utility", "all")
GPU = "--gpus device=2 --env NVIDIA_DRIVER_CAPABILITIES={}"
LEAVES = """
docker run --name {name} --network none {gpu} image /app/cuda 2>&1 || :
docker diff {name}
docker commit {name} {name} >/dev/null
docker rm {name} >/dev/null
docker create --name {name} {name} >/dev/null
docker export {name} | tar -tv
"""
AGAIN = "docker run --rm --network none {} kept-2 /bin/sh -c '{}' 2>&1 || echo ended with $?"
COMMITS = {
    **{f"kept-{n}": LEAVES.format(name=f"kept-{n}", gpu=GPU.format(it)) for n, it in enumerate(CAPABILITIES)},
    "without": AGAIN.format("", "ldconfig; ldconfig -p | grep -c nvidia; nvidia-smi"),
    "again": AGAIN.format(GPU.format("all"), "nvidia-smi && LD_LIBRARY_PATH=/usr/lib /app/cuda"),
}


def test_an_image_of_a_container_has_no_library_of_the_driver(patterns: dict[str, Path]) -> None:
    seen = docker(patterns["debian"], COMMITS, {"default-runtime": "simulated-runc"})
    for number, capabilities in enumerate(CAPABILITIES):
        works, *lines = seen[f"kept-{number}"]
        assert works == "cuInit 0, 1 devices" or capabilities == "utility", works
        changed = [line[2:] for line in lines if line[:2] in ("A ", "C ")]
        there = {line.split()[5]: line for line in lines if line[:1] in "-lhcd" and len(line.split()) > 5}
        new = {path: there[path[1:]] for path in changed if path[1:] in there}
        links = {path: line.partition(" -> ")[2] for path, line in new.items() if line.startswith("l")}
        files = {path: line.split()[2] for path, line in new.items() if line.startswith("-")}
        # The image's own file, as an ldconfig would have written it.
        assert files.pop("/etc/ld.so.cache") != "0"
        names = {path.rpartition("/")[2].partition("_")[0] for path in files}
        assert names == {"gsp", "socket", "000-oci-gpu-hook.conf"}, files
        assert {*files.values()} == {"0"}
        assert links and all(to.startswith("/usr/local/nvidia/") for to in links.values()), links
        libraries = {path for path in links if ".so" in path}
        assert {path.rpartition("/")[2] for path in libraries} == (
            {"nvidia-drm_gbm.so", "nvidia_drv.so", "libglxserver_nvidia.so", "libglxserver_nvidia.so.580.65.06"}
            if capabilities == "all"
            else set()
        )
    # Docker has two streams, and no order of them.
    assert "0" in seen["without"] and seen["without"][-1] == "ended with 127", seen["without"]
    assert seen["again"][-1] == "cuInit 0, 1 devices", seen["again"]
