# SPDX-License-Identifier: Apache-2.0
"""oci-gpu-runtime in front of the real runtimes, in bundles that name no hook of ours: by `run`, and step by step."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import PROCDRIVER, RUNTIMES, Bundle, on_node
from tests.integration.inside import ALLOWED, node

SERVES = "runtime = /usr/bin/{}\n"
LOOK = "for n in 0 1 2 3 4 5 6 7; do echo /dev/nvidia$n $({ true </dev/nvidia$n; } 2>&1); done; sleep $1"


def made(bundle: Maker, devices: str | None, seconds: int = 0) -> Bundle:
    it = bundle("debian").asks(devices)
    it.config["hooks"] = {"createRuntime": [PROCDRIVER]}
    return it.runs("/bin/sh", "-c", LOOK, "sh", str(seconds))


def given(out: str) -> set[str]:
    return {line.split()[0] for line in out.splitlines() if line.endswith(ALLOWED)}


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_it_adds_the_hook_and_becomes_the_runtime(bundle: Maker, runtime: str, cgroup: str) -> None:
    one, none = made(bundle, "1,5"), made(bundle, None)
    before = (none.path / "config.json").read_bytes()
    script = "".join([f"oci-gpu-runtime run -b {it.path} {it.path.name}\n" for it in (one, none)])
    out = on_node(script, cgroup=cgroup, settings=SERVES.format(runtime)).printed()
    assert given(out) == {node(1), node(5)} and out.count("nvidia7:") == 2
    # A second start of the same bundle finds the hook there.
    after = json.loads((one.path / "config.json").read_text())
    assert [hook["path"] for hook in after["hooks"]["createRuntime"]] == [
        PROCDRIVER["path"],
        "/usr/libexec/oci-gpu-hook-start",
    ]
    assert (none.path / "config.json").read_bytes() == before
    assert not [path for path in one.path.iterdir() if "oci-gpu-runtime" in path.name]


# As containerd's shim sends an update: all resources of config.json, and what has changed.
UPDATE = """
echo ==
printf '%s\\n' '{{"devices":{devices},"memory":{{}},"cpu":{cpu}}}' >/run/resources
{words} update --resources {how} life </run/resources
echo shares $(cat $(find /sys/fs/cgroup -path '*/life/cpu.shares' | head -n 1) /dev/null)
{words} exec life /bin/sh -c '{look}'
"""


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_an_engines_update_leaves_the_gpu(bundle: Maker, runtime: str, cgroup: str) -> None:
    """containerd's own list of devices is not set again; another's list is."""
    it = made(bundle, "1", seconds=100)
    devices = it.config["linux"]["resources"]["devices"]
    fuse = [*devices, {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"}]
    words = "oci-gpu-runtime --root /run/own --log /run/log.json --log-format json"
    each = [(512, "-", devices), (300, "/run/resources", devices), (700, "-", fuse)]
    look = "for node in /dev/nvidia*; do echo $node $({ true <$node; } 2>&1); done"
    updates = ""
    for shares, how, listed in each:
        # No controller of v2 is the tests' here.
        cpu = json.dumps({"shares": shares} if cgroup == "v1" else {})
        updates += UPDATE.format(devices=json.dumps(listed), cpu=cpu, words=words, how=how, look=look)
    script = f"{words} create --bundle {it.path} life >/run/out\n{words} start life\n"
    script += f"{updates}{words} delete --force life\n"
    out = on_node(script, cgroup=cgroup, settings=SERVES.format(runtime)).printed()
    _, first, second, others = out.split("==\n")
    own = {node(1), "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    for shares, out in ((512, first), (300, second)):
        assert given(out) == own, out
        assert cgroup == "v2" or f"shares {shares}" in out
    assert given(others) == (own if runtime == "runc" else set()), others
