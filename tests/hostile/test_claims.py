# SPDX-License-Identifier: Apache-2.0
"""What an image says of itself: that sections are its own, that a volume is its pod's memory.

podman before 4.6 (containers/podman, change 18542) hands the annotations of an image's manifest to the runtime as the
container's own, and Debian 12's does: real podman pulls these images.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.hostile.scene import BOTH
from tests.integration import images, roots
from tests.integration.engines import PODMAN_RUN, REPOSITORY, on_node, podman, remove_podmans_parents

# All that ever told an image, a namespace or an engine.
IMAGES = ("org.opencontainers.image.ref.name", "io.container.image", "io.kubernetes.cri-o.ImageName")
NAMESPACES = ("pod.namespace", "cri-o.Namespace", "cri.sandbox-namespace")
CLAIMS = {
    **dict.fromkeys([*IMAGES, "io.kubernetes.cri.image-name"], "trusted/x"),
    **{f"io.kubernetes.{key}": "trusted" for key in NAMESPACES},
    "io.kubernetes.cri-o.ContainerID": "c0a7" * 16,
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.container.manager": "cri-o",
}
HARDENED = "accept-environment = privileged\n[{}]\naccept-environment = always\n"
LOOK = "ls /dev | grep nvidia >/dev/shm/seen; echo seen $(cat /dev/shm/seen)"


def gpus_of(tmp_path: Path, runtime: str, name: str, settings: str) -> list[str]:
    """The nodes of a container of the image that `tmp_path` has, called `name` when it is pulled."""
    line = partial(podman, runtime=runtime, folder=tmp_path)
    script = f"""
{line(f"pull --quiet oci:{tmp_path}/image")} >/run/pulled
{line("tag")} $(cat /run/pulled) {name}
{line(f"{PODMAN_RUN} --rm --volume {tmp_path}/out:/out {name} sh -c '{LOOK} >/out/seen'")}"""
    (tmp_path / "out").mkdir(exist_ok=True)
    try:
        on_node(script, settings=settings).printed()
    finally:
        remove_podmans_parents()
    word, *nodes = (tmp_path / "out/seen").read_text().split()
    assert word == "seen"
    return nodes


def image(tmp_path: Path, annotations: dict[str, str]) -> None:
    root = roots.busybox(tmp_path / "root")
    env = ("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all")
    images.layout(tmp_path / "image", root, annotations=annotations, env=env)


@pytest.mark.parametrize("scope", ["image trusted/*", "namespace trusted"])
@pytest.mark.parametrize("runtime", BOTH)
def test_no_image_says_which_section_is_its_own(tmp_path: Path, runtime: str, scope: str) -> None:
    image(tmp_path, CLAIMS)
    settings = HARDENED.format(scope)
    assert gpus_of(tmp_path, runtime, "localhost/stranger", settings) == []


@pytest.mark.parametrize("runtime", BOTH)
def test_podmans_own_record_says_which_it_is(tmp_path: Path, runtime: str) -> None:
    """The same image, by the name by which its user runs it: in its section, whatever it says of itself."""
    image(tmp_path, {**CLAIMS, "io.kubernetes.cri-o.ImageName": "stranger"})
    settings = HARDENED.format("image registry.example.com/render/*")
    name = "registry.example.com/render/x:1"
    assert "nvidiactl" in gpus_of(tmp_path, runtime, name, settings)
    assert gpus_of(tmp_path, runtime, "localhost/render/x:1", settings) == []


# Started in turn; each is told whose its /dev/shm is.
PODS = """
echo claimed $({run} --name claimed --volume {volume}/memory:/dev/shm {image} >/run/claimed; whose claimed)
echo own $({run} --name own {image} >/run/own; whose own)
echo joined $({run} --name joined --ipc container:own {image} >/run/joined; whose joined)
echo host $({run} --name hosts --ipc host {image} >/run/hosts; whose hosts)
"""


@pytest.mark.parametrize("runtime", BOTH)
def test_no_image_makes_a_volume_its_pods(tmp_path: Path, runtime: str) -> None:
    """To be relabelled.  A container's own memory, and one that two share, are still known as such."""
    sandbox = {f"io.kubernetes.{key}": "memory" for key in ("cri-o.SandboxID", "cri.sandbox-id")}
    image(tmp_path, {**CLAIMS, **sandbox})

    line = partial(podman, runtime=runtime, folder=tmp_path)
    script = f"""
whose() {{
    set -- $({line("inspect --format '{{.Id}} {{.State.Pid}}'")} $1)
    {sys.executable} {REPOSITORY}/tests/integration/whose.py {tmp_path}/storage/vfs-containers/$1/userdata $1 $2
}}
remove() {{
    for name in joined claimed own hosts; do
        {line("rm --force --ignore $name")}
    done >/run/removed
}}
trap remove EXIT
mkdir -p {tmp_path}/memory && mount -t tmpfs none {tmp_path}/memory
{line(f"pull --quiet oci:{tmp_path}/image")} >/run/pulled
read -r image </run/pulled
"""
    script += PODS.format(
        run=line(f"{PODMAN_RUN} --detach --stop-signal KILL"), volume=tmp_path, image="$image sh -c 'sleep 1000'"
    )
    try:
        out = on_node(script).printed()
    finally:
        remove_podmans_parents()
    told = [line.split()[:2] for line in out.splitlines()]
    assert told == [["claimed", "volume"], ["own", "pod"], ["joined", "pod"], ["host", "host"]]
