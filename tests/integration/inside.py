# SPDX-License-Identifier: Apache-2.0
"""What a container has, seen from inside it: its device nodes, what its cgroup lets it open, mounts, /proc, libraries.

The container tries every device of the host, also those that it was not given, by a node of its own making: a node that
is not there hides nothing from a process that may make one.  Must not import the source tree's modules.
"""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from tests.integration import roots
from tests.integration.engines import REPOSITORY, Bundle, Outcome, on_node, run_podman, start

DENIED = "Operation not permitted"
# The kernel's answers for a device that has no driver behind it: the cgroup has let the open through.
ALLOWED = ("No such device or address", "No such device")
FAMILIES = (
    "/dev/nvidia* /dev/dri/* /dev/infiniband/* /dev/gdrdrv /dev/kfd /dev/accel/* /dev/neuron* "
    "/dev/onload* /dev/sfc_char /dev/xclmgmt* "
    "/dev/nvhost-* /dev/nvgpu/*/* /dev/nvmap /dev/host1x-fence /dev/v4l2-nvdec /dev/fb0 /dev/dxg"
)
CONTROL = "/dev/nvidiactl"
COMPUTE = {CONTROL, "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
REFRESH = "oci-gpu-hook inventory refresh >/dev/null\n"

# On the node: the drivers' devices by number, for the containers to try, and the nodes that MIG's capabilities have.
_HOST = f"""
for node in $(find {FAMILIES} -type c 2>/dev/null); do
    set -- $(stat -c '%t %T' $node); echo $node $((0x$1)) $((0x$2))
done >/run/host-nodes
if cd /proc/driver/nvidia/capabilities 2>/dev/null; then
    for file in $(find . -type f); do
        read -r key minor <$file; echo "capability ${{file#./}} $minor"
    done
    cd /
fi
"""
# In the shell's own words where it can be: each program costs a container's start more than all else here.
_INSIDE = f"""
echo started
find /dev -type c -o -type l | while read -r node; do
    case $node in {FAMILIES.replace(" ", "|")}) echo "node $node $({{ true <$node; }} 2>&1)" ;; esac
done
busybox mkdir /dev/tried
while read -r node major minor; do
    mknod /dev/tried/$major-$minor c $major $minor
    echo "host $node $({{ true </dev/tried/$major-$minor; }} 2>&1)"
done </host-nodes
find /proc/driver/nvidia | while read -r path; do echo "proc $path"; done
test ! -x /sbin/ldconfig || /sbin/ldconfig -p | while read -r line; do echo "library $line"; done
cat /proc/self/mountinfo
echo looked
"""


@functools.lru_cache
def gpus(description: str = "h100x8") -> list[dict[str, Any]]:
    path = REPOSITORY / f"tests/gpunode/descriptions/{description}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["gpus"]
    return sorted(found, key=lambda item: str(item["bus_id"]))


def node(index: int, description: str = "h100x8") -> str:
    return f"/dev/nvidia{gpus(description)[index]['minor']}"


class Seen(NamedTuple):
    """One container.

    nodes: its own device nodes, and what open() says of each; allowed, denied: the host's nodes by whether the device
    cgroup lets their numbers be opened; capabilities: MIG's node by the path of its capability file; libraries: paths
    by the name and word size that ld.so.cache gives them, in its order; printed: by the test's own commands.
    """

    nodes: dict[str, str]
    allowed: set[str]
    denied: set[str]
    mounts: dict[str, set[str]]
    proc: set[str]
    capabilities: dict[str, str]
    libraries: dict[tuple[str, int], list[str]]
    printed: str

    def has_exactly(self, *nodes: str) -> None:
        """These nodes are there and can be opened; every other device of the host is denied, however it is tried."""
        wanted = set(nodes)
        assert set(self.nodes) == wanted
        assert self.allowed == wanted, sorted(self.allowed ^ wanted)
        assert self.denied, "every device of the host was asked for: nothing was shown"
        for path, answer in self.nodes.items():
            assert not answer or answer.endswith(ALLOWED), f"{path}: {answer}"

    def capability_nodes(self, *paths: str) -> set[str]:
        """The device nodes of MIG capabilities, by their paths below /proc/driver/nvidia/capabilities."""
        return {self.capabilities[path] for path in paths}

    def shown(self, folder: str) -> set[str]:
        top = f"/proc/driver/nvidia/{folder}/"
        return {path[len(top) :] for path in self.proc if path.startswith(top)}


class Attempt(NamedTuple):
    """One container that was to be started; capabilities: as `Seen` has them; before: its root before that."""

    bundle: Bundle
    outcome: Outcome
    capabilities: dict[str, str]
    before: dict[str, tuple[str, int]]

    def seen(self) -> Seen:
        return _seen(self.outcome, self.capabilities)

    def refusal(self) -> str:
        """What is said of one that must not start; its process has not run and its root is as it was."""
        assert self.outcome.code != 0
        assert "started" not in self.outcome.out
        after = roots.listing(self.bundle.rootfs)
        # What the runtime itself leaves in a root, mount points with their parents; and our list.
        points = [PurePath(mount["destination"].lstrip("/")) for mount in self.bundle.config["mounts"]]
        others = {str(path) for point in points for path in (point, *point.parents)} | {"host-nodes"}
        assert {name: after[name] for name in after if name not in others} == self.before
        return sentence(self.outcome.err)


def attempt(
    *bundles: Bundle, commands: str = "true", runtime: str = "runc", refresh: bool = True, before: str = "", **node: Any
) -> list[Attempt]:
    """Start containers on one node, each of which shows what it has and runs the test's commands.

    before: commands on the node.
    """
    found = [roots.listing(bundle.rootfs) for bundle in bundles]
    script = f"{REFRESH if refresh else ''}{before}\n{_HOST}"
    for bundle in bundles:
        bundle.runs("/bin/sh", "-c", f"{_INSIDE}\n{commands}")
        path = shlex.quote(str(bundle.path))
        line = start(runtime, bundle)
        script += f"cp /run/host-nodes {path}/rootfs/\n"
        script += f"code=0; {line} >{path}/out 2>{path}/err || code=$?; echo $code >{path}/code\n"
    rows = _rows(on_node(script, **node).printed().splitlines(), "capability")
    capabilities = {path: f"/dev/nvidia-caps/nvidia-cap{minor}" for path, minor in rows.items()}
    return [Attempt(bundle, _outcome(bundle.path), capabilities, listing) for bundle, listing in zip(bundles, found)]


def look(bundle: Bundle, commands: str = "true", **how: Any) -> Seen:
    return attempt(bundle, commands=commands, **how)[0].seen()


def look_podman(root: Path, options: str, commands: str = "true", *, before: str = "", **how: Any) -> Seen:
    (root / "look").write_text(f"{_INSIDE}\n{commands}")
    script = f"{before}\n{_HOST}\ncp /run/host-nodes {root}/\n"
    # To a file: podman may end before it has passed on the last of a container's output.
    done = run_podman(root, "/bin/sh -c '/bin/sh /look >/out 2>&1'", options=options, before=script, **how)
    assert done.code == 0, done.out + done.err
    out = Outcome(0, (root / "out").read_text(), done.err)
    for name in ("look", "out", "host-nodes"):
        (root / name).unlink()
    return _seen(out, {})


def refused(bundle: Bundle, **how: Any) -> str:
    return attempt(bundle, **how)[0].refusal()


def plan(bundle: Bundle, *, refresh: bool = False, **node: Any) -> str:
    """What ``plan`` says of a bundle: a runtime keeps a successful hook's words."""
    bundle.write()
    done = on_node(f"{REFRESH if refresh else ''}oci-gpu-hook plan --bundle {bundle.path}", **node)
    assert done.code == 0, done.err
    return done.out + done.err


def sentence(text: str) -> str:
    """Our sentence within what a runtime says of a start that has failed."""
    lines = [line for line in text.splitlines() if "oci-gpu-hook: " in line]
    assert lines, text
    assert "Traceback" not in text
    return lines[-1].replace("\\n", "").replace('\\"', '"')


def added(root: Path, before: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """What is new in a root, but for our list; what was there is as it was."""
    after = roots.listing(root)
    assert {name: kind for name, kind in after.items() if name in before} == before
    return {name: kind for name, kind in after.items() if name not in before and name != "host-nodes"}


def mounted(text: str) -> dict[str, set[str]]:
    """Mount points and their options, from a mountinfo among other lines."""
    rows = [line.split() for line in text.splitlines() if " - " in line]
    return {row[4]: set(row[5].split(",")) for row in rows}


def _seen(outcome: Outcome, capabilities: dict[str, str]) -> Seen:
    assert outcome.code == 0, outcome.out + outcome.err
    first, _, printed = outcome.out.partition("\nlooked\n")
    lines = first.splitlines()
    nodes = _rows(lines, "node")
    host = _rows(lines, "host")
    assert host, "this node has no devices"
    # A Jetson has a node that is /dev/null by another name.
    assert all(not answer or answer.endswith((DENIED, *ALLOWED)) for answer in host.values()), host
    denied = {path for path, answer in host.items() if answer.endswith(DENIED)}
    return Seen(
        nodes={path: answer for path, answer in nodes.items() if "/by-path/" not in path},
        allowed=set(host) - denied,
        denied=denied,
        mounts=mounted(first),
        proc=set(_rows(lines, "proc")),
        capabilities=capabilities,
        libraries=_libraries(lines),
        printed=printed,
    )


def _outcome(path: Path) -> Outcome:
    code, out, err = ((path / name).read_text() for name in ("code", "out", "err"))
    return Outcome(int(code), out, err)


def _rows(lines: list[str], word: str) -> dict[str, str]:
    """The lines that begin with `word`: what follows it, by the first of that."""
    rows = [line[len(word) + 1 :] for line in lines if line.startswith(f"{word} ")]
    return {name: rest for name, _, rest in (row.partition(" ") for row in rows)}


def _libraries(lines: list[str]) -> dict[tuple[str, int], list[str]]:
    """``ldconfig -p``: ``libc.so.6 (libc6,x86-64) => /lib/...``."""
    found: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        if line.startswith("library ") and " => " in line:
            name, flags = line.split()[1:3]
            bits = 32 if flags.rstrip(",)") == "(libc6" else 64
            found.setdefault((name, bits), []).append(line.rpartition(" => ")[2])
    return found
