# SPDX-License-Identifier: Apache-2.0
"""oci-gpu-runtime in front of the real runtimes, in bundles that name no hook of ours: by `run`, and step by step."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import PROCDRIVER, RUNTIMES, Bundle, Installed, on_node
from tests.integration.inside import ALLOWED, node

SERVES = "runtime = /usr/bin/{}\n"
LOOK = "for n in 0 1 2 3 4 5 6 7; do echo /dev/nvidia$n $({ true </dev/nvidia$n; } 2>&1); done; sleep $1"


def made(bundle: Maker, devices: str | None, seconds: int = 0) -> Bundle:
    """A bundle without a hook of ours."""
    it = bundle("debian").asks(devices)
    it.config["hooks"] = {"createRuntime": [PROCDRIVER]}
    return it.runs("/bin/sh", "-c", LOOK, "sh", str(seconds))


def given(out: str) -> set[str]:
    """The GPUs that could be opened."""
    return {line.split()[0] for line in out.splitlines() if line.endswith(ALLOWED)}


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_it_adds_the_hook_and_becomes_the_runtime(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str
) -> None:
    one, none = made(bundle, "1,5"), made(bundle, None)
    before = (none.path / "config.json").read_bytes()
    script = "".join([f"oci-gpu-runtime run -b {it.path} {it.path.name}\n" for it in (one, none)])
    seen = on_node(installed, script, cgroup=cgroup, settings=SERVES.format(runtime))
    assert seen.code == 0, seen.err
    assert given(seen.out) == {node(1), node(5)} and seen.out.count("nvidia7:") == 2
    # A second start of the same bundle finds the hook there.
    after = json.loads((one.path / "config.json").read_text())
    assert [hook["path"] for hook in after["hooks"]["createRuntime"]] == [
        PROCDRIVER["path"],
        "/usr/libexec/oci/hooks.d/oci-gpu-hook",
    ]
    assert (none.path / "config.json").read_bytes() == before
    assert not [path for path in one.path.iterdir() if "oci-gpu-runtime" in path.name]


def test_a_containers_life(installed: Installed, bundle: Maker) -> None:
    """create, start, exec, update, pause, resume, kill and delete, as Docker's shim calls them, under runc."""
    it = made(bundle, "1", seconds=60)
    words = "oci-gpu-runtime --root /run/own --log /run/log.json --log-format json"
    script = f"""
{words} create --bundle {it.path} --pid-file /run/pid life >/run/out
{words} start life
{words} update --cpu-share 512 life
{words} pause life && {words} resume life
{words} exec life /bin/sh -c 'echo /dev/nvidiactl $({{ true </dev/nvidiactl; }} 2>&1)'
{words} state life | grep -o '"status": "running"'
{words} kill life KILL
until {words} delete life 2>/dev/null; do sleep 0.05; done
{words} list -q
cat /run/out
"""
    seen = on_node(installed, script, cgroup="v1", settings=SERVES.format("runc"))
    assert seen.code == 0, seen.err
    assert '"status": "running"' in seen.out
    assert given(seen.out) == {"/dev/nvidiactl", node(1)}


# As containerd's shim sends an update: all resources of config.json, and what has changed.
UPDATE = """
echo ==
printf '%s\\n' '{{"devices":{devices},"memory":{{}},"cpu":{cpu}}}' >/run/resources
{words} update --resources {how} life </run/resources
echo shares $(cat $(find /sys/fs/cgroup -path '*/life/cpu.shares' | head -n 1) /dev/null)
{words} exec life /bin/sh -c '{look}'
"""


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_an_engines_update_leaves_the_gpu(installed: Installed, bundle: Maker, runtime: str, cgroup: str) -> None:
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
    seen = on_node(installed, script, cgroup=cgroup, settings=SERVES.format(runtime))
    assert seen.code == 0, seen.err
    _, first, second, others = seen.out.split("==\n")
    own = {node(1), "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    for shares, out in ((512, first), (300, second)):
        assert given(out) == own, out
        assert cgroup == "v2" or f"shares {shares}" in out
    assert given(others) == (own if runtime == "runc" else set()), others


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_what_stops_a_container_is_in_the_runtimes_log(installed: Installed, bundle: Maker, runtime: str) -> None:
    it = made(bundle, "77")
    broken = made(bundle, "0")
    (broken.path / "config.json").write_text('{"NVIDIA_')
    words = "oci-gpu-runtime --log /run/$name.json --log-format json run --bundle"
    script = f"""
set +e
name=hook; {words} {it.path} a; echo $?
name=json; {words} {broken.path} b; echo $?
mount -t tmpfs -o size=4k none {broken.path} && head -c 4000 /dev/zero | tr '\\0' ' ' >{broken.path}/config.json
echo '{{"process":{{"env":["NVIDIA_VISIBLE_DEVICES=0"]}}}}' 1<>{broken.path}/config.json
name=full; {words} {broken.path} c; echo $?
ls {broken.path}
cat /run/hook.json /run/json.json /run/full.json
"""
    seen = on_node(installed, script, settings=SERVES.format(runtime))
    codes, lines = seen.out.split("config.json\n")
    assert codes.split()[1:] == ["3", "7"] and codes.split()[0] != "0"
    said = "".join([json.loads(line)["msg"] for line in lines.splitlines()])
    assert "oci-gpu-hook: unknown device '77'" in said
    assert "config.json is not JSON" in said
    assert "config.json.oci-gpu-runtime" in said and "No space left on device" in said
