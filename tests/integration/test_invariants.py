# SPDX-License-Identifier: Apache-2.0
"""The design's invariants, seen from outside: strace on the installed hook, mountinfo, the root before and after."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, on_node, start
from tests.integration.inside import mounted

HOOK = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
SEARCH = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


def traced(made: Bundle, log: Path, *options: str) -> Bundle:
    (ours,) = [hook for hook in made.config["hooks"]["createRuntime"] if hook["path"] == HOOK]
    words = ["strace", "-f", "-y", "-o", str(log), *options, HOOK, *ours["args"][1:]]
    ours.update(path="/usr/bin/strace", args=words)
    return made


def planned(made: Bundle, output: Path) -> Bundle:
    """The bundle with `plan` run on the very container before the hook is."""
    script = (
        f"pid=$(sed 's/.*\"pid\": *\\([0-9]*\\).*/\\1/'); exec /usr/bin/oci-gpu-hook plan --bundle {made.path} "
        f"--pid $pid --id {made.path.name} --json >{output}"
    )
    hook = {"path": "/bin/sh", "args": ["sh", "-c", script], "env": SEARCH}
    made.config["hooks"]["createRuntime"].insert(1, hook)
    return made


def lines(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "= -1 " not in line]


@pytest.mark.parametrize("warm", [True, False], ids=["saved inventory", "no inventory"])
def test_no_program_starts_and_no_gpu_opens(bundle: Maker, tmp_path: Path, warm: bool) -> None:
    made = traced(bundle("debian").asks("1,5"), tmp_path / "trace").runs("/bin/sh", "-c", "true")
    prepare = "oci-gpu-hook inventory refresh\n" if warm else ""
    on_node(prepare + start("runc", made)).printed()
    calls = (tmp_path / "trace").read_text().splitlines()
    executed = [line for line in calls if re.search(r"\bexec(ve|veat)\(", line)]
    entry, interpreter = executed
    assert HOOK in entry
    assert '"-ISB"' in interpreter  # in the same process
    assert not [line for line in calls if re.search(r"\b(clone3?|v?fork)\(", line)]
    # O_PATH gives a name for a file and does not open it (open(2)); O_CREAT makes an empty file to mount on.
    opened = [line for line in calls if re.search(r"\bopen(at|at2)?\(", line)]
    opened = [line for line in opened if "O_PATH" not in line and "O_CREAT" not in line]
    assert not [line for line in opened if "/dev/nvidia" in line]
    if warm:
        assert not [line for line in opened if "libnvidia-ml" in line or "libcuda" in line]
    assert not [line for line in calls if "mmap" in line and "nvidia" in line]


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_what_the_plan_says_is_done(bundle: Maker, tmp_path: Path, cgroup: str) -> None:
    show = (
        "cat /proc/self/mountinfo; for n in /dev/nvidia*; do stat -c 'node %n %t:%T %a %u:%g' $n; done; ldconfig -p;"
        "find /usr /etc -type l -exec stat -c 'link %N' {} +"
    )
    plain = bundle("debian").runs("/bin/sh", "-c", "cat /proc/self/mountinfo")
    made = planned(bundle("debian").asks("1,5"), tmp_path / "plan.json")
    made = traced(made, tmp_path / "trace").runs("/bin/sh", "-c", show)
    # The node's own hook mounts on /proc/driver, with a request or without.
    out = on_node(
        f"{start('runc', plain)} >{tmp_path}/plain\n{start('runc', made, made.path.name)}", cgroup=cgroup
    ).printed()
    plan = json.loads((tmp_path / "plan.json").read_text())
    operations = plan["operations"]
    calls = lines(tmp_path / "trace")

    kinds = {operation["op"] for operation in operations}
    assert kinds == {"device", "mount", "service", "symlink", "tmpfs", "ldcache", "cgroup"}
    # The image's own link, /lib, leads to /usr/lib.
    mounts = [
        (point.replace("/lib/firmware", "/usr/lib/firmware"), it)
        for it in operations
        if it["op"] in ("mount", "service", "tmpfs", "ldcache")
        for point in [it.get("target", it.get("path")), *([it["configuration"]] if "configuration" in it else [])]
    ]
    points = [point for point, _ in mounts]
    shown, before = mounted(out), mounted((tmp_path / "plain").read_text())
    assert set(shown) - set(before) == set(points)
    for point, operation in mounts:
        assert set(operation.get("options", ())) <= shown[point], point

    # In the order of the plan: move_mount's second descriptor is the target.
    moved = re.findall(r'move_mount\(\d+<[^>]*>, "", \d+<([^>]*)>', "\n".join(calls))
    root = str(made.rootfs)
    targets = [path[len(root) :].replace(" (deleted)", "") for path in moved if path != root]
    assert targets == points

    nodes = re.findall(r"node (\S+) (\w+):(\w+) (\d+) (\d+):(\d+)", out)
    wanted = [
        (o["path"], f"{o['major']:x}", f"{o['minor']:x}", o["mode"].lstrip("0"), str(o["uid"]), str(o["gid"]))
        for o in operations
        if o["op"] == "device"
    ]
    assert sorted(nodes) == sorted(wanted)
    # Mount points are made by it too.
    made_nodes = re.findall(r'mknodat\(\d+<[^>]*>, "([^"]+)", S_IFCHR', "\n".join(calls))
    assert [f"/dev/{name}" for name in made_nodes] == [operation[0] for operation in wanted]

    (rules,) = [operation["rules"] for operation in operations if operation["op"] == "cgroup"]
    assert [(f"{r['major']:x}", f"{r['minor']:x}", r["access"]) for r in rules] == [(o[1], o[2], "rw") for o in wanted]
    if cgroup == "v1":
        written = re.findall(r'write\(\d+<[^>]*devices.allow>, "([^"\\]+)', "\n".join(calls))
        assert written == [f"c {rule['major']}:{rule['minor']} rw" for rule in rules]
    else:
        assert len([call for call in calls if "BPF_PROG_ATTACH" in call]) == 1

    links = {(it["path"], it["to"]) for it in operations if it["op"] == "symlink"}
    assert links <= set(re.findall(r"^link '([^']+)' -> '([^']+)'$", out, re.MULTILINE))

    listed = set(re.findall(r"^\t(\S+) \(.*\) => (\S+)$", out, re.MULTILINE))
    (entries,) = [operation["entries"] for operation in operations if operation["op"] == "ldcache"]
    assert {(entry["soname"], entry["path"]) for entry in entries} <= listed
