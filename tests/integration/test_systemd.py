# SPDX-License-Identifier: Apache-2.0
"""GPUs that stay: containers in scopes of a real systemd, which puts its own device rules in force again and again.

The node is booted: systemd is PID 1, with a part of the cgroup tree of its own.  A node without a driver tells what the
device cgroup says: open gives ENXIO where it allows, EPERM where not.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, Bundle, Installed, Outcome, on_node
from tests.integration.test_invariants import traced
from tests.integration.test_main_job import ALLOWED, DENIED, minors

GIVEN, OTHER = minors(1, 5)
STEPS = ("start", "update", "set-property", "daemon-reload", "update again", "daemon-reexec")

# What puts a scope's rules in force anew; `exec_in` and `update` are the engine's.
SCRIPT = """
look() {{
    for node in /dev/nvidia{given} /dev/nvidiactl /dev/not-asked-for; do
        echo "$1: $node: $(exec_in cat $node 2>&1 || true)"
    done
}}
unit=$(cd /run/systemd/transient && echo *{name}*.scope)
look start
update 300; look update
systemctl set-property --runtime $unit CPUWeight=77; look set-property
systemctl daemon-reload; look daemon-reload
update 400; look "update again"
systemctl daemon-reexec; look daemon-reexec
"""

# Where the machine's controllers belong to cgroup v1, a runtime on v2 fails to write cpu.weight; by then it has told
# systemd of the new weight, and all that systemd does has been done.
RUNTIME = """
exec_in() {{ {runtime} exec stay "$@"; }}
update() {{ {runtime} update --cpu-share $1 stay || true; }}
{before}
{runtime} run --detach --bundle {bundle} stay >/tmp/stay-out 2>&1 </dev/null || {{ cat /tmp/stay-out >&2; exit 1; }}
"""
RUNTIME_END = """
{runtime} delete --force stay
for try in $(seq 50); do ls /run/systemd/transient/*stay* >/dev/null 2>&1 || break; sleep 0.2; done
ls /run/systemd/transient
"""

# systemctl and the runtimes speak to systemd over the message bus then, and the hook to nobody.
UNTOLD = "mv /run/systemd/private /run/systemd/hidden"


def opened(done: Outcome) -> dict[str, dict[str, str]]:
    """By step and node, what open() said."""
    assert done.code == 0, done.out + done.err
    found: dict[str, dict[str, str]] = {}
    for line in done.out.splitlines():
        step, _, rest = line.partition(": ")
        if step in STEPS:
            node, _, said = rest.partition(": ")
            found.setdefault(step, {})[node] = said.rpartition(": ")[2]
    assert tuple(found) == STEPS, done.out + done.err
    return found


def stays(made: Bundle, runtime: str) -> Bundle:
    """The bundle as an engine with the systemd manager writes it, with a node for a device that is not asked for."""
    made.asks("1", "utility")
    made.config["linux"]["cgroupsPath"] = f"system.slice:{runtime}:stay"
    return made.runs("/bin/sh", "-c", f"mknod /dev/not-asked-for c 195 {OTHER}; sleep 1000")


def run(installed: Installed, made: Bundle, runtime: str, cgroup: str, before: str = "") -> Outcome:
    words = f"{runtime} --systemd-cgroup"
    script = RUNTIME.format(runtime=words, bundle=made.path, before=before)
    script += SCRIPT.format(given=GIVEN, name="stay") + RUNTIME_END.format(runtime=words)
    return on_node(installed, script, cgroup=cgroup, booted=True)


def legacy() -> bool:
    """Whether this systemd still boots a cgroup v1 host: the last is 257."""
    said = subprocess.run(["systemctl", "--version"], check=True, capture_output=True, text=True)
    return int(said.stdout.split()[1]) < 258


CGROUPS = ["v2", pytest.param("v1", marks=pytest.mark.skipif(not legacy(), reason="systemd 258"))]


@pytest.mark.parametrize("cgroup", CGROUPS)
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_gpu_stays_and_no_other_comes(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str
) -> None:
    done = run(installed, stays(bundle("busybox"), runtime), runtime, cgroup)
    for step, said in opened(done).items():
        assert said == {
            f"/dev/nvidia{GIVEN}": ALLOWED,
            "/dev/nvidiactl": ALLOWED,
            "/dev/not-asked-for": DENIED,
        }, step
    assert "stay" not in done.out.rpartition("daemon-reexec")[2], "systemd kept something"


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_without_a_word_to_systemd_it_is_lost(
    installed: Installed, bundle: Maker, cgroup: str
) -> None:
    """With runc, who restricts the scope's devices through systemd: crun 1.8 leaves them to its own program."""
    done = run(installed, stays(bundle("busybox"), "runc"), "runc", cgroup, UNTOLD)
    steps = opened(done)
    assert steps.pop("start")[f"/dev/nvidia{GIVEN}"] == ALLOWED
    for step, said in steps.items():
        assert set(said.values()) == {DENIED}, step


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_a_container_that_may_open_everything_still_may(
    installed: Installed, bundle: Maker, cgroup: str
) -> None:
    """A first entry in a scope that has none would close all that is not listed."""
    made = stays(bundle("busybox"), "runc")
    made.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    made.write()
    for step, said in opened(run(installed, made, "runc", cgroup)).items():
        assert set(said.values()) == {ALLOWED}, step


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_a_start_that_fails_is_withdrawn_from_systemd(
    installed: Installed, bundle: Maker, tmp_path: Path, cgroup: str
) -> None:
    made = traced(stays(bundle("busybox"), "runc"), tmp_path / "trace", "-s", "4096")
    for name in ("dev", "proc", "sys"):
        (made.rootfs / name).mkdir()
    made.write()
    words = f"runc --systemd-cgroup run --bundle {made.path} stay"
    script = f"""
        mount --bind {made.rootfs} {made.rootfs} && mount -o remount,bind,ro {made.rootfs}
        ! {words} || exit 1
        {RUNTIME_END.format(runtime="true")}
    """
    done = on_node(installed, script, cgroup=cgroup, booted=True)
    assert done.code == 0, done.err
    assert "exit status 7" in done.err
    assert done.out == ""
    calls = (tmp_path / "trace").read_text()
    # The rooms that say it are read too.
    told, withdrawn = [
        line for line in calls.splitlines() if "SetUnitProperties" in line and "pread64(" not in line
    ]
    assert (told.count("/dev/char/195:"), told.count("/dev/char/1:3")) == (2, 0)
    assert (withdrawn.count("/dev/char/195:"), withdrawn.count("/dev/char/1:3")) == (0, 1)


PODMAN = """
podman() {{ command podman --root {storage} --runroot /run/stay --storage-driver vfs --runtime {runtime} \
    --cgroup-manager=systemd --events-backend=none --hooks-dir /usr/libexec/gpunode/hooks.d \
    --hooks-dir /usr/share/containers/oci/hooks.d "$@"; }}
exec_in() {{ podman exec stay "$@"; }}
update() {{ podman update --cpu-shares $1 stay || true; }}
podman run --detach --name stay --pids-limit=-1 --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --network=none \
    --log-driver=k8s-file --cap-add=mknod --security-opt seccomp=unconfined --env NVIDIA_VISIBLE_DEVICES=1 \
    --rootfs {root} sh -c 'mknod /dev/not-asked-for c 195 {other}; sleep 1000' >/tmp/stay-out 2>&1 </dev/null ||
    {{ cat /tmp/stay-out >&2; exit 1; }}
"""


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_a_gpu_stays_in_a_container_of_podmans(
    installed: Installed, tmp_path: Path, patterns: dict[str, Path], cgroup: str
) -> None:
    shutil.copytree(patterns["busybox"], tmp_path / "root", symlinks=True)
    script = PODMAN.format(
        storage=tmp_path / "storage", root=tmp_path / "root", runtime="runc", other=OTHER
    )
    script += SCRIPT.format(given=GIVEN, name="libpod-[0-9a-f]")
    done = on_node(installed, script, cgroup=cgroup, booted=True)
    for step, said in opened(done).items():
        assert said[f"/dev/nvidia{GIVEN}"] == said["/dev/nvidiactl"] == ALLOWED, step
        assert said["/dev/not-asked-for"] == DENIED, step


# The room itself, in a scope that systemd made: what is told is withdrawn whole, and every refusal is a sentence.
ROOM = f"""
import errno, os, subprocess, sys, time
sys.path.insert(0, "{REPOSITORY}")
from oci_gpu_hook.container import scope
from oci_gpu_hook.oci import DeviceRule

def has():
    words = ["systemctl", "show", "--value", "--property=DeviceAllow", "told.scope"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return sorted(said.split("\\n"))

def refusal(function, *arguments):
    try:
        function(*arguments)
    except OSError as err:
        return str(err)

def answers():
    try:
        os.close(os.open("/dev/nvidia0", os.O_RDWR))
    except OSError as err:
        return errno.errorcode[err.errno]

rules = [DeviceRule("c", 195, minor, "rw") for minor in (0, 255)]
found = scope.find("/sys/fs/cgroup/system.slice/told.scope")
print("found", found.name, sorted(found.allowed))
before = has()
fd = scope.tell(found.name, rules)
scope.answer(fd)
print("added", [line for line in has() if line not in before])
scope.withdraw(fd, found.name, found.allowed)
print("withdrawn", has() == before)
seen = set()
for _ in range(50):
    fd = scope.tell(found.name, rules)
    scope.answer(fd)
    told = answers()
    scope.withdraw(fd, found.name, found.allowed)
    seen.add((told, answers()))
    os.close(fd)
print("at once", seen)
for _ in range(100):
    if os.path.exists("/run/systemd/transient/memory.scope"):
        break
    time.sleep(0.05)
print("escaped", scope.find("/sys/fs/cgroup/system.slice/_memory.scope"))
print("unrestricted", scope.find("/sys/fs/cgroup/system.slice/free.scope"))
print("gone", scope.find("/sys/fs/cgroup/system.slice/gone.scope"))
print("refused", refusal(scope.answer, scope.tell("gone.scope", rules)))
scope._SOCKET = "/run/systemd/gone"
print("unreachable", refusal(scope.tell, found.name, rules))
"""


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_the_room_adds_withdraws_and_says_why_not(
    installed: Installed, tmp_path: Path, cgroup: str
) -> None:
    (tmp_path / "room.py").write_text(ROOM)
    scope = "systemd-run --quiet --scope --unit"
    script = f"""
        {scope} free.scope sleep 100 &
        {scope} memory.scope --property=DevicePolicy=strict sleep 100 &
        {scope} told.scope --property=DevicePolicy=strict --property='DeviceAllow=/dev/null rwm' \
            --property='DeviceAllow=char-pts rw' /usr/bin/python3 -ISB {tmp_path}/room.py
    """
    done = on_node(installed, script, cgroup=cgroup, booted=True)
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "found told.scope [('/dev/null', 'rwm'), ('char-pts', 'rw')]",
        "added ['/dev/char/195:0 rw', '/dev/char/195:255 rw']",
        "withdrawn True",
        "at once {('ENXIO', 'EPERM')}",
        "escaped ScopeUnit(name='memory.scope', allowed=())",
        "unrestricted None",
        "gone None",
        "refused systemd refuses: Unit gone.scope not found.",
        "unreachable connect /run/systemd/gone: No such file or directory",
    ]
