# SPDX-License-Identifier: Apache-2.0
"""``doctor`` on hosts with containerd, and with Docker alone.

What is planted there is named, and what is right passes.
"""

from __future__ import annotations

import json

import pytest

from tests.integration.engines import Installed, in_turn
from tests.integration.test_doctor import DOCTOR, REINSTALL, RUNTIMES, SET_UP, Planted, judge

# Programs are moved away, as no package may be; /etc/containerd is what each row makes.
BEFORE = """
command -v containerd >/dev/null || install -m 0755 /bin/true /usr/bin/containerd
PROGRAMS="/usr/bin/podman /usr/sbin/dockerd /usr/bin/dockerd /usr/bin/containerd"
without() { for it in $PROGRAMS; do case $it in *$1) [ ! -e $it ] || mv $it $it.away ;; esac; done; }
again() {
    for it in $PROGRAMS; do [ ! -e $it.away ] || mv $it.away $it; done
    rm -rf /etc/containerd /etc/docker/daemon.json /opt/* /usr/bin/kubelet /usr/bin/nvidia-container-runtime
    mkdir -p /etc/containerd
}
runs() {
    plugin='[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%s.options]'
    printf "$plugin\\nBinaryName = \\"%s\\"\\n" $1 $2 >/etc/containerd/config.toml
}
"""
ALONE = "without podman; without dockerd\n"
FILE = "/etc/containerd/config.toml"
CONFIGURE = "oci-gpu-hook configure containerd --set-as-default"
# fmt: off
FAULTS = {
    ALONE:
        Planted("warn", "containerd", "no runtime of containerd's is oci-gpu-runtime", CONFIGURE),
    "install -m 0755 /bin/true /usr/bin/kubelet":
        Planted("warn", "containerd", "no runtime of containerd's is oci-gpu-runtime", CONFIGURE),
    f"{ALONE}runs runc /usr/bin/nothing":
        Planted("fail", "containerd",
            f"{FILE} has /usr/bin/nothing as the runtime runc, the default, and it is not there", f"vi {FILE}"),
    f"{ALONE}runs gpu /opt/oci-gpu-runtime":
        Planted("fail", "containerd", f"{FILE} has /opt/oci-gpu-runtime as the runtime gpu, and it is not there",
            REINSTALL),
    "install -m 0755 /bin/true /usr/bin/nvidia-container-runtime; runs runc /usr/bin/nvidia-container-runtime":
        Planted("warn", "other hooks", f"{FILE} has NVIDIA's runtime as runc, the default",
            f"sed -i '/^ *default_runtime_name *=/d' {FILE}"),
    f"{ALONE}without containerd":
        Planted("warn", "engines", "neither podman, CRI-O, Docker nor containerd is installed", "apt install podman"),
    "echo 'foo = bar' >/etc/oci-gpu-hook.conf":
        Planted("fail", "settings", "unknown key 'foo'", "vi +1 /etc/oci-gpu-hook.conf"),
}
LINKED = "ln -s oci-gpu-runtime /usr/bin/nvidia-container-runtime; "
# Check and text of what passes, and there is nothing else to say.
RIGHT = {
    f"{ALONE}runs runc /usr/bin/oci-gpu-runtime":
        ("containerd", f"{FILE} has /usr/bin/oci-gpu-runtime as the runtime runc, the default"),
    f"{ALONE}runs gpu oci-gpu-runtime":
        ("containerd", f"{FILE} has oci-gpu-runtime as the runtime gpu"),
    f"{ALONE}mkdir -p /opt/nri/plugins; : >/opt/nri/plugins/10-hook-injector":
        ("containerd", "/opt/nri/plugins/10-hook-injector reads hooks.d, for pods, while it runs"),
    "without podman":
        ("Docker", "/usr/bin/nvidia-container-runtime-hook leads to our hook, for 'docker run --gpus'"),
    # What `docker info` must show where an editor looks for NVIDIA's.
    f"{LINKED}printf '{RUNTIMES}' /usr/bin/nvidia-container-runtime >$JSON":
        ("Docker", "daemon.json has /usr/bin/nvidia-container-runtime as the runtime gpu, the default"),
    f"{LINKED}runs runc /usr/bin/nvidia-container-runtime":
        ("containerd", f"{FILE} has /usr/bin/nvidia-container-runtime as the runtime runc, the default"),
}
# fmt: on


@pytest.fixture(scope="module")
def said(installed: Installed) -> dict[str, str]:
    """What doctor says of each."""
    rows = [*FAULTS, *RIGHT]
    scripts = {str(n): f"again\n(\n{row}\n) >&2\n{DOCTOR}rm -f /etc/oci-gpu-hook.conf" for n, row in enumerate(rows)}
    found = in_turn(installed, scripts, SET_UP + BEFORE)
    return dict(zip(rows, [lines[0] for lines in found.values()]))


@pytest.mark.parametrize("row", FAULTS)
def test_a_fault_of_an_engine_is_named(said: dict[str, str], row: str) -> None:
    judge(FAULTS[row], said[row])


@pytest.mark.parametrize("row", RIGHT)
def test_what_is_right_passes(said: dict[str, str], row: str) -> None:
    check, seen = RIGHT[row]
    findings = json.JSONDecoder().raw_decode(said[row])[0]["findings"]
    assert [item for item in findings if item["level"] != "pass"] == []
    assert [item for item in findings if item["check"] == check and seen in item["seen"]], findings
