# SPDX-License-Identifier: Apache-2.0
"""GPUs that stay: containers in scopes of a real systemd, which puts its own device rules in force again and again.

The node is booted: systemd is PID 1, with a part of the cgroup tree of its own.  A node without a driver tells what the
device cgroup says: open gives ENXIO where it allows, EPERM where not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import PODMAN_RUN, REPOSITORY, Bundle, on_node, podman, version
from tests.integration.inside import ALLOWED, DENIED, node
from tests.integration.test_invariants import traced

GIVEN, OTHER = node(1), int(node(5)[len("/dev/nvidia") :])
NODES = (GIVEN, "/dev/nvidiactl", "/dev/not-asked-for")
STEPS = ("start", "update", "set-property", "daemon-reload", "update-again", "daemon-reexec")
CONTAINERS = ("runc", "crun", "newest", "podman", "untold", "free")

# What puts a scope's rules in force again.  Where the machine's controllers belong to cgroup v1, a runtime on v2 fails
# to write cpu.weight; by then it has told systemd of the new weight, and all that systemd does has been done.
SCRIPT = f"""
look() {{
    for container in {" ".join(CONTAINERS)}; do
        in_$container sh -c 'for node in {" ".join(NODES)}; do echo "$0 $1 $node $(cat $node 2>&1)"; done' $1 $container
    done
}}
update() {{ for container in {" ".join(CONTAINERS)}; do update_$container $1 || true; done; }}
look start
update 300; look update
for scope in /run/systemd/transient/*-stay-*.scope /run/systemd/transient/libpod-[0-9a-f]*.scope; do
    systemctl set-property --runtime ${{scope##*/}} CPUWeight=77
done
look set-property
systemctl daemon-reload; look daemon-reload
update 400; look update-again
systemctl daemon-reexec; look daemon-reexec
"""
# Without this socket systemctl and the runtimes speak to systemd over the message bus, and the hook to no service.
HIDE, SHOW = ("mv /run/systemd/private /run/systemd/hidden\n", "mv /run/systemd/hidden /run/systemd/private\n")
START = """
in_{name}() {{ {runtime} --systemd-cgroup exec stay-{name} "$@"; }}
update_{name}() {{ {runtime} --systemd-cgroup update --cpu-share $1 stay-{name}; }}
{runtime} --systemd-cgroup run --detach --bundle {bundle} stay-{name} >/tmp/out 2>&1 </dev/null ||
    {{ cat /tmp/out >&2; exit 1; }}
"""
END = """
{remove}
for try in $(seq 3000); do ls /run/systemd/transient/*stay* >/dev/null 2>&1 || break; sleep 0.2; done
ls /run/systemd/transient | grep stay || true
"""
SLEEP = f"mknod /dev/not-asked-for c 195 {OTHER}; sleep 1000"


def stays(made: Bundle, runtime: str, name: str) -> Bundle:
    """The bundle as an engine with the systemd manager writes it, with a node for a device that is not asked for."""
    made.asks("1", "utility")
    made.config["linux"]["cgroupsPath"] = f"system.slice:{runtime}:stay-{name}"
    return made.runs("/bin/sh", "-c", SLEEP)


# The last systemd that boots a cgroup v1 host is 257.
CGROUPS = ["v2", pytest.param("v1", marks=pytest.mark.skipif(version("systemctl") >= (258,), reason="systemd 258"))]


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_a_gpu_stays_and_no_other_comes(bundle: Maker, tmp_path: Path, root: Path, newest: Path, cgroup: str) -> None:
    """In containers of both runtimes and of podman; and what happens to others beside them.

    newest: crun from 1.28 on gives systemd a program, and its scope has another name than the container's id.

    untold: systemd was not told: with runc, which restricts the scope's devices through systemd; crun 1.8 leaves them
    to its own program.  free: it may open everything; a first entry in a scope that has none would close all others.
    """
    free = stays(bundle("busybox"), "runc", "free")
    free.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    free.write()
    made = {name: stays(bundle("busybox"), name, name) for name in ("runc", "crun")}
    made.update(free=free, untold=stays(bundle("busybox"), "runc", "untold"))
    made["newest"] = stays(bundle("busybox"), "named", "newest")
    made["newest"].config["linux"]["cgroupsPath"] += "-otherwise"
    made["newest"].write()
    script = "mount -t bpf none /sys/fs/bpf\n" if cgroup == "v2" else ""
    for name, each in made.items():
        runtime = {"crun": "crun", "newest": f"{newest}/crun"}.get(name, "runc")
        begin = START.format(name=name, runtime=runtime, bundle=each.path)
        script += f"{HIDE}{begin}{SHOW}" if name == "untold" else begin
    line = podman('"$@"', runtime="runc", folder=tmp_path, cgroups="systemd")
    script += f"""
podman() {{ command {line}; }}
in_podman() {{ podman exec stay "$@"; }}
update_podman() {{ podman update --cpu-shares $1 stay; }}
podman {PODMAN_RUN} --detach --name stay --log-driver=k8s-file --env NVIDIA_VISIBLE_DEVICES=1 \\
    --rootfs {root} sh -c '{SLEEP}' >/tmp/out 2>&1 </dev/null || {{ cat /tmp/out >&2; exit 1; }}
"""
    remove = "for name in runc free untold; do runc --systemd-cgroup delete --force stay-$name; done\n"
    remove += "crun --systemd-cgroup delete --force stay-crun; podman rm --force --time 0 stay >/dev/null\n"
    remove += f"{newest}/crun --systemd-cgroup delete --force stay-newest; ls /sys/fs/bpf/crun 2>/dev/null || true"
    out = on_node(script + SCRIPT + END.format(remove=remove), cgroup=cgroup, booted=True).printed()
    found: dict[str, dict[str, list[str]]] = {}
    lines = [line.split(maxsplit=3) for line in out.splitlines()]
    for row in lines:
        if row[0] in STEPS and len(row) == 4:
            answer = "".join(it for it in (*ALLOWED[:1], DENIED) if row[3].endswith(it))
            found.setdefault(row[1], {}).setdefault(row[0], []).append(answer)
    allowed = ALLOWED[0]
    given, free_answers, none = [allowed, allowed, DENIED], [allowed] * 3, [DENIED] * 3
    wanted = {name: dict.fromkeys(STEPS, given) for name in CONTAINERS}
    wanted["free"] = dict.fromkeys(STEPS, free_answers)
    wanted["untold"] = {**dict.fromkeys(STEPS, none), "start": given}
    assert found == wanted, out
    assert not [row for row in lines if "stay" in row[0]], "systemd kept something"


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_systemd_forgets_a_failed_start(bundle: Maker, tmp_path: Path, cgroup: str) -> None:
    made = traced(stays(bundle("busybox"), "runc", "no"), tmp_path / "trace", "-s", "4096")
    made.changed("mkdir dev proc sys").write()
    words = f"runc --systemd-cgroup run --bundle {made.path} stay-no"
    script = f"""
        mount --bind {made.rootfs} {made.rootfs} && mount -o remount,bind,ro {made.rootfs}
        ! {words} || exit 1
        {END.format(remove="")}
    """
    done = on_node(script, cgroup=cgroup, booted=True)
    assert done.code == 0, done.err
    assert "exit status 7" in done.err
    assert done.out == ""
    calls = (tmp_path / "trace").read_text()
    # The modules that say it are read too.
    told, withdrawn = [line for line in calls.splitlines() if "SetUnitProperties" in line and "pread64(" not in line]
    assert (told.count("/dev/char/195:"), told.count("/dev/char/1:3")) == (2, 0)
    assert (withdrawn.count("/dev/char/195:"), withdrawn.count("/dev/char/1:3")) == (0, 1)


# In a scope that systemd made: what systemd is told is withdrawn whole, and every refusal is a sentence.
TELLING = f"""
import errno, os, sys, time
sys.path.insert(0, "{REPOSITORY}")
from oci_gpu_hook.changes import scope
from oci_gpu_hook.container.devicecgroup import scope_of as find
from oci_gpu_hook.formats.devicerule import DeviceRule

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
found = find("/sys/fs/cgroup/system.slice/told.scope")
print("found", found.name, sorted(found.allowed))
seen = set()
for _ in range(50):
    fd = scope.tell(found.name, rules)
    scope.wait(fd)
    told = answers()
    scope.withdraw(fd, found.name, found.allowed)
    seen.add((told, answers()))
    os.close(fd)
print("at once", seen)
for _ in range(12000):
    if os.path.exists("/run/systemd/transient/memory.scope"):
        break
    time.sleep(0.05)
print("escaped", find("/sys/fs/cgroup/system.slice/_memory.scope"))
print("gone", find("/sys/fs/cgroup/system.slice/gone.scope"))
print("refused", refusal(scope.wait, scope.tell("gone.scope", rules)))
scope._SOCKET = "/run/systemd/gone"
print("unreachable", refusal(scope.tell, found.name, rules))
"""


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_systemd_says_why_not(tmp_path: Path, cgroup: str) -> None:
    (tmp_path / "scope.py").write_text(TELLING)
    scope = "systemd-run --quiet --scope --unit"
    script = f"""
        {scope} memory.scope --property=DevicePolicy=strict sleep 1000 &
        {scope} told.scope --property=DevicePolicy=strict --property='DeviceAllow=/dev/null rwm' \
            --property='DeviceAllow=char-pts rw' /usr/bin/python3 -ISB {tmp_path}/scope.py
    """
    out = on_node(script, cgroup=cgroup, booted=True).printed()
    assert out.splitlines() == [
        "found told.scope [('/dev/null', 'rwm'), ('char-pts', 'rw')]",
        "at once {('ENXIO', 'EPERM')}",
        "escaped ScopeUnit(name='memory.scope', allowed=(), pinned='')",
        "gone None",
        "refused systemd refuses: Unit gone.scope not found.",
        "unreachable connect /run/systemd/gone: No such file or directory",
    ]
