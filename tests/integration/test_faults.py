# SPDX-License-Identifier: Apache-2.0
"""Bad input and broken hosts: the documented exit code, one sentence, nothing left behind, no traceback."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, Outcome, on_node, run

HOOK = "/usr/libexec/oci/hooks.d/oci-gpu-hook"


def one_sentence(text: str, words: str) -> None:
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 1, text
    assert lines[0].startswith("oci-gpu-hook: "), text
    assert words in lines[0], text
    assert "Traceback" not in text


def hook(
    installed: Installed, state: str | dict[str, Any], stage: str = "createRuntime", **node: Any
) -> Outcome:
    text = state if isinstance(state, str) else json.dumps(state)
    return on_node(installed, f"printf %s {shlex.quote(text)} | {HOOK} {stage} || exit $?", **node)


STATE = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "bundle": "/nowhere"}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("no json", "is no JSON"),
        ("", "is no JSON"),
        ("[]", "is no JSON object"),
        ({**STATE}, "has no 'pid'"),
        ({"pid": 1}, "as 'bundle'"),
        ({**STATE, "pid": 1}, "cannot open /nowhere/config.json"),
    ],
    ids=repr,
)
def test_a_bad_state_is_exit_3(
    installed: Installed, state: str | dict[str, Any], words: str
) -> None:
    done = hook(installed, state)
    assert done.code == 3
    one_sentence(done.err, words)


def test_a_dead_pid_is_exit_3(installed: Installed, bundle: Maker) -> None:
    made = bundle("busybox").asks("0").runs("/bin/sh")
    done = hook(installed, {**STATE, "pid": 4194304, "bundle": str(made.path)})
    assert done.code == 3
    one_sentence(done.err, "process 4194304 cannot be looked into")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"process": {"env": "NVIDIA_VISIBLE_DEVICES=0"}}', "process.env is no list"),
        ('{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}', "root.path is missing"),
        (
            '{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}, "root": {"path": "gone"}}',
            "cannot be opened",
        ),
    ],
)
def test_a_bad_config_is_exit_3(installed: Installed, bundle: Maker, text: str, words: str) -> None:
    made = bundle("busybox")
    (made.path / "config.json").write_text(text)
    state = json.dumps({**STATE, "bundle": str(made.path)})[:-1]
    script = f"printf '%s, \"pid\": %s}}' {shlex.quote(state)} $$ | {HOOK} createRuntime || exit $?"
    done = on_node(installed, script)
    assert done.code == 3
    one_sentence(done.err, words)


def in_runtime(installed: Installed, made: Bundle, **node: Any) -> tuple[Outcome, dict[str, Any]]:
    """Start a container that must not start; gives the outcome and the root as it was before."""
    made.runs("/bin/sh", "-c", "echo started")
    before = roots.listing(made.rootfs)
    done = run(installed, "runc", "v2", made, **node)
    assert done.code != 0
    assert "started" not in done.out
    assert "Traceback" not in done.err
    return done, before


def left_behind(made: Bundle, before: dict[str, Any]) -> set[str]:
    return set(roots.listing(made.rootfs)) - set(before) - {"dev", "proc", "sys"}


@pytest.mark.parametrize(
    ("devices", "capabilities", "faults", "code", "words"),
    [
        ("9", None, (), 5, "unknown device '9'"),
        ("nonsense", None, (), 5, "unknown device 'nonsense'"),
        ("0", "nonsense", (), 5, "unknown capability"),
        ("0", None, ("library-version",), 6, "libcuda is there as"),
        ("0", None, ("no-libcuda",), 6, "libcuda is missing"),
        ("0", None, ("no-proc-driver",), 6, "kernel module is not loaded"),
        ("0", None, ("no-uvm",), 6, "modprobe nvidia-uvm"),
        ("0", None, ("no-gpus",), 6, "drives no GPU"),
    ],
)
def test_a_request_that_cannot_be_met_stops_the_start(
    installed: Installed,
    bundle: Maker,
    devices: str,
    capabilities: str | None,
    faults: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    made = bundle("debian").asks(devices, capabilities)
    done, before = in_runtime(installed, made, faults=faults)
    assert f"exit status {code}" in done.err, done.err
    assert words in done.err
    assert left_behind(made, before) == set()


@pytest.mark.parametrize(
    "faults",
    [
        ("library-version",),
        ("no-libcuda",),
        ("no-libraries",),
        ("no-proc-driver",),
        ("no-uvm",),
        ("no-nodes",),
    ],
)
def test_no_fault_of_the_host_stops_a_container_without_a_request(
    installed: Installed, bundle: Maker, faults: tuple[str, ...]
) -> None:
    made = bundle("busybox").runs("/bin/sh", "-c", "echo started")
    done = run(installed, "runc", "v2", made, faults=faults)
    assert (done.code, done.out) == (0, "started\n"), done.err


def test_a_namespace_in_doubt_stops_only_gpu_containers(
    installed: Installed, bundle: Maker
) -> None:
    said = {"io.kubernetes.pod.namespace": "other", "io.kubernetes.cri-o.Namespace": "trusted"}
    script = "echo '[namespace trusted]' >/etc/oci-gpu-hook.conf\n"
    script += "echo 'disable-requirements = yes' >>/etc/oci-gpu-hook.conf\n"
    for name, made in (("a", bundle("busybox").asks("0")), ("b", bundle("busybox"))):
        made.config["annotations"] = said
        made.runs("/bin/sh", "-c", "echo started")
        script += f"runc run --bundle {made.path} {name} || true\n"
    done = on_node(installed, script)
    assert (done.code, done.out) == (0, "started\n"), done.err
    assert "exit status 5" in done.err
    assert "the annotations name several namespaces, 'other' and 'trusted'" in done.err


def test_a_bad_configuration_is_exit_4_and_stops_only_gpu_containers(
    installed: Installed, bundle: Maker
) -> None:
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", "echo started")
    plain = bundle("busybox").runs("/bin/sh", "-c", "echo started")
    script = (
        "echo 'device-cgroup = perhaps' >/etc/oci-gpu-hook.conf\n"
        f"runc run --bundle {made.path} a || true\nrunc run --bundle {plain.path} b"
    )
    done = on_node(installed, script)
    assert (done.code, done.out) == (0, "started\n")
    assert "exit status 4" in done.err
    assert "/etc/oci-gpu-hook.conf:1: device-cgroup is 'perhaps'" in done.err


def test_nodes_that_the_host_lacks_are_made_in_the_container(
    installed: Installed, bundle: Maker
) -> None:
    made = bundle("busybox").asks("0").runs("/usr/bin/nvidia-smi")
    done = run(installed, "runc", "v2", made, faults=("no-uvm-nodes",))
    assert done.code == 0, done.out + done.err


def test_a_full_disk_stops_the_start_and_leaves_nothing(
    installed: Installed, bundle: Maker
) -> None:
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", "echo started")
    root = made.rootfs
    script = (
        f"mount -t tmpfs -o size=8m,nr_inodes=60 none {root}/../small && cp -a {root}/. {root}/../small/ "
        f"&& cd {root}/.. && mkdir small/dev small/proc small/sys && find small >before && "
        f"{{ runc run --bundle {made.path} full || true; }} && find small >after && cmp before after"
    )
    (made.path / "small").mkdir()
    made.config["root"]["path"] = "small"
    made.write()
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    assert "exit status 7" in done.err
    assert "No space left on device" in done.err


def test_a_root_on_a_read_only_filesystem_stops_the_start(
    installed: Installed, bundle: Maker
) -> None:
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", "echo started")
    for name in ("dev", "proc", "sys"):
        (made.rootfs / name).mkdir()
    script = (
        f"mount --bind {made.rootfs} {made.rootfs} && mount -o remount,bind,ro {made.rootfs} && "
        f"runc run --bundle {made.path} ro"
    )
    before = roots.listing(made.rootfs)
    done = on_node(installed, script)
    assert done.code != 0
    assert "exit status 7" in done.err
    assert "Read-only file system" in done.err
    assert roots.listing(made.rootfs) == before


def test_a_wrong_node_in_the_containers_dev_is_an_error(
    installed: Installed, bundle: Maker
) -> None:
    made = bundle("busybox").asks("0")
    made.config["linux"]["devices"] = [
        {
            "path": "/dev/nvidiactl",
            "type": "c",
            "major": 1,
            "minor": 3,
            "fileMode": 438,
            "uid": 0,
            "gid": 0,
        }
    ]
    done, before = in_runtime(installed, made)
    assert "/dev/nvidiactl is there as 1:3, it must be 195:255" in done.err
    assert left_behind(made, before) == set()


def test_a_right_node_in_the_containers_dev_is_left(installed: Installed, bundle: Maker) -> None:
    made = bundle("busybox").asks("0")
    made.config["linux"]["devices"] = [
        {
            "path": "/dev/nvidiactl",
            "type": "c",
            "major": 195,
            "minor": 255,
            "fileMode": 384,
            "uid": 7,
            "gid": 0,
        }
    ]
    done = run(
        installed, "runc", "v2", made.runs("/bin/sh", "-c", "stat -c '%u %a' /dev/nvidiactl")
    )
    assert (done.code, done.out) == (0, "7 600\n"), done.err


@pytest.mark.parametrize(("runtime", "cgroup"), [("runc", "v1"), ("runc", "v2"), ("crun", "v2")])
def test_two_of_our_hooks_at_once_give_what_one_gives(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str
) -> None:
    """As where an engine reads two folders, and the registrations have two names: the second finds its work done."""
    look = "cut -d' ' -f5 /proc/self/mountinfo | sort -u; ls -l /dev; nvidia-smi -L"
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", look)
    once = run(installed, runtime, cgroup, made)
    hooks = made.config["hooks"]["createRuntime"]
    hooks += [hook for hook in hooks if "oci-gpu-hook" in hook["path"]]
    made.write()
    twice = run(installed, runtime, cgroup, made)
    assert once.code == twice.code == 0, once.err + twice.err
    # But for the minute in which they were made.
    assert [re.sub(r" ..:..", "", out) for out in (once.out, once.err)] == [
        re.sub(r" ..:..", "", out) for out in (twice.out, twice.err)
    ]
    assert "GPU 0: " in twice.out
