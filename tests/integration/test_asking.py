# SPDX-License-Identifier: Apache-2.0
"""Who asks, for what, and what the record says of it: the annotations, devices and settings that engines hand over.

CRI-O's containers are bundles as it writes them (tests/crio.py), under its two runtimes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import crio
from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, in_turn, run_podman, start

PRIVILEGED = "accept-environment = privileged\n"
NOT_ACCEPTED = "the request in NVIDIA_VISIBLE_DEVICES is not accepted from a container without CAP_SYS_ADMIN"
LOOK = "ls /dev | grep '^nvidia[0-9]' || echo none"


def container(made: Maker, annotations: dict[str, str], devices: str | None = None) -> Bundle:
    """A container that says which GPUs it has."""
    found = made("busybox").asks(devices).runs("/bin/sh", "-c", LOOK)
    found.config["annotations"] = annotations
    found.write()
    return found


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_pods_cdi_annotation_gives_its_containers_nothing(installed: Installed, bundle: Maker, runtime: str) -> None:
    """Under CRI-O, which hands the pod's annotations to hooks at each container; a container's own count."""
    pod = {"cdi.k8s.io/all": "nvidia.com/gpu=all"}
    own = {"cdi.k8s.io/nvidia-device-plugin_a": "nvidia.com/gpu=5"}
    containers = {"sandbox": crio.sandbox(pod), "silent": crio.container(pod, {}), "own": crio.container(pod, own)}
    scripts = {
        name: start(runtime, container(bundle, annotations), f"pod-{name}") for name, annotations in containers.items()
    }
    seen = in_turn(installed, scripts)
    # On this node the GPU of index 5 has the minor number 4.
    assert seen == {"sandbox": ["none"], "silent": ["none"], "own": ["nvidia4"]}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_an_old_image_gets_the_devices_that_it_was_given(installed: Installed, bundle: Maker, runtime: str) -> None:
    """And without any, all that it always got; the device cgroup is open for no others."""
    made = container(bundle, {})
    made.config["process"]["env"].append("CUDA_VERSION=9.0")
    cgroup = "mknod /tmp/other c 195 4 && cat /tmp/other"
    made.runs("/bin/sh", "-c", f"{LOOK}; {cgroup} 2>&1 | grep -o 'Operation not permitted'")
    scripts = {"none": start(runtime, made, "old-none")}
    given = [{"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}]
    made = container(bundle, {})
    made.config["process"]["env"].append("CUDA_VERSION=9.0")
    made.config["linux"]["devices"] = given
    made.runs("/bin/sh", "-c", f"{LOOK}; {cgroup} 2>&1 | grep -o 'Operation not permitted'")
    scripts["one"] = start(runtime, made, "old-one")
    seen = in_turn(installed, {name: f"{line} || true" for name, line in scripts.items()})
    assert seen["one"] == ["nvidia1", "Operation not permitted"]
    assert seen["none"] == [f"nvidia{minor}" for minor in range(8)]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_request_that_is_not_accepted_is_refused_where_the_settings_say_so(
    installed: Installed, bundle: Maker, runtime: str
) -> None:
    ignored = f"{start(runtime, container(bundle, {}, '1'), 'ignored')}\n"
    made = container(bundle, {"run.oci.hooks.stderr": "/run/said"}, "1")
    refused = f"{start(runtime, made, 'refused')} 2>>/run/said || echo refused\ncat /run/said\n"
    scripts = {
        "ignored": ignored,
        "refused": f"touch /run/said; echo unaccepted-requests = refuse >>/etc/oci-gpu-hook.conf\n{refused}",
        "void": start(runtime, container(bundle, {}, "void"), "void"),
    }
    seen = in_turn(installed, scripts, settings=PRIVILEGED)
    assert (seen["ignored"], seen["void"]) == (["none"], ["none"])
    assert seen["refused"][0] == "refused"
    said = f"oci-gpu-hook: {NOT_ACCEPTED} (the administrator decides"
    assert any(said in line for line in seen["refused"])


def test_podman_tells_its_user_of_a_request_that_is_not_accepted(installed: Installed, tmp_path: Path) -> None:
    root = roots.busybox(tmp_path / "root")
    settings = f"{PRIVILEGED}unaccepted-requests = refuse\n"
    options = "--env NVIDIA_VISIBLE_DEVICES=1"
    done = run_podman(installed, root, "true", options=options, settings=settings)
    assert done.code != 0
    assert f"oci-gpu-hook: {NOT_ACCEPTED}" in done.err


SECTIONS = """
[image registry.example.com/closed]
accept-environment = privileged
[namespace team]
allowed-capabilities = utility
"""
UNSAID = "the engine does not say the container's image"


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_sections_hold_also_for_a_container_whose_engine_does_not_say_what_it_is(
    installed: Installed, bundle: Maker, runtime: str
) -> None:
    """Docker's bundles have no annotations; CRI-O's say all."""
    refuse = "unmatched-sections = refuse\n"
    asked = {"docker": container(bundle, {}, "1"), "crio": container(bundle, crio.container({}, {}), "1")}
    ids = {"docker": "docker", "crio": crio.ID}
    scripts = {name: start(runtime, made, ids[name]) for name, made in asked.items()}
    plain = start(runtime, container(bundle, {}), "plain")
    rewritten = f"sed -i '1i {refuse.strip()}' /etc/oci-gpu-hook.conf"
    seen = in_turn(
        installed,
        {
            **scripts,
            "docker refused": f"{rewritten}\n{scripts['docker']} 2>/dev/null || echo refused",
            "crio refused": scripts["crio"],
            "plain": plain,
        },
        settings=SECTIONS,
    )
    assert seen["docker"] == ["none"]
    assert seen["crio"] == seen["crio refused"] == ["nvidia0"]
    assert (seen["docker refused"], seen["plain"]) == (["refused"], ["none"])


def test_podman_says_no_image_and_its_containers_are_in_no_namespace(installed: Installed, tmp_path: Path) -> None:
    root = roots.busybox(tmp_path / "root")
    options = "--env NVIDIA_VISIBLE_DEVICES=1"
    for settings, said in (
        (f"unmatched-sections = refuse\n{SECTIONS}", f"oci-gpu-hook: {UNSAID}, by which settings"),
        ("unmatched-sections = refuse\n[namespace a]\nrecords = no\n", ""),
    ):
        command = "/bin/sh -c true"
        done = run_podman(installed, root, command, options=options, settings=settings)
        assert (said in done.err, done.code != 0) == (True, bool(said)), done.err
