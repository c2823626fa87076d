# SPDX-License-Identifier: Apache-2.0
"""What a start leaves in Docker's layer, and in an image made of it: links, mount points, the cache, and no library."""

from __future__ import annotations

from pathlib import Path

from tests.docker.dockerd import docker

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
RUN = "docker run --rm --network none {} kept-2 /bin/sh -c '{}' 2>&1 || echo ended with $?"
SCRIPTS = {
    **{f"kept-{n}": LEAVES.format(name=f"kept-{n}", gpu=GPU.format(it)) for n, it in enumerate(CAPABILITIES)},
    "without": RUN.format("", "ldconfig; ldconfig -p | grep -c nvidia; nvidia-smi"),
    "again": RUN.format(GPU.format("all"), "nvidia-smi && LD_LIBRARY_PATH=/usr/lib /app/cuda"),
}


def test_an_image_of_a_container_has_no_library_of_the_driver(patterns: dict[str, Path]) -> None:
    seen = docker(patterns["debian"], SCRIPTS, {"default-runtime": "simulated-runc"})
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
