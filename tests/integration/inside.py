# SPDX-License-Identifier: Apache-2.0
"""What a container has, told from inside it: its device nodes, what its cgroup lets it open, mounts, /proc, libraries.

The container tries every device of the host, also those that nobody gave it, by a node of its own making: a node that
is not there hides nothing from a process that may make one.  Must not import the source tree's modules.
"""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Any, NamedTuple

from tests.integration import roots
from tests.integration.engines import Bundle, Installed, Outcome, on_node, start

DENIED = "Operation not permitted"
# The kernel's answers for a device that has no driver behind it: the cgroup has let the open through.
ALLOWED = ("No such device or address", "No such device")
FAMILIES = "/dev/nvidia* /dev/dri/* /dev/infiniband/* /dev/gdrdrv"
CONTROL = "/dev/nvidiactl"
COMPUTE = {CONTROL, "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
# Which devices the host has: the script below puts it into the container's root.
HOST_NODES = "host-nodes"

# On the node: the driver's devices by number, for the container to try, and the nodes that MIG's capabilities have.
_HOST = """
for node in $(find /dev/nvidia* /dev/dri /dev/infiniband /dev/gdrdrv -type c 2>/dev/null); do
    set -- $(stat -c '%t %T' $node); echo $node $((0x$1)) $((0x$2))
done >{root}/host-nodes
cd /proc/driver/nvidia/capabilities
for file in $(find . -type f); do
    read -r key minor <$file; echo "capability ${{file#./}} $minor"
done
cd /
"""

_INSIDE = f"""
echo started
find /dev -type c -o -type l | while read -r node; do
    case $node in {FAMILIES.replace(" ", "|")}) echo "node $node $(head -c1 $node 2>&1)" ;; esac
done
while read -r node major minor; do
    mknod /dev/tried c $major $minor
    echo "host $node $(head -c1 /dev/tried 2>&1)"
    busybox rm /dev/tried
done </host-nodes
find /proc/driver/nvidia | while read -r path; do echo "proc $path"; done
test ! -x /sbin/ldconfig || /sbin/ldconfig -p | while read -r line; do echo "library $line"; done
cat /proc/self/mountinfo
echo told
"""


class Seen(NamedTuple):
    """One container.

    nodes: its own device nodes, and what open() says of each; allowed, denied: the host's nodes by whether the device
    cgroup lets their numbers be opened; capabilities: MIG's node by the path of its capability file; libraries: paths
    by the name and word size that ld.so.cache gives them, in its order; told: what the test's own commands printed.
    """

    nodes: dict[str, str]
    allowed: set[str]
    denied: set[str]
    mounts: dict[str, set[str]]
    proc: set[str]
    capabilities: dict[str, str]
    libraries: dict[tuple[str, int], list[str]]
    told: str

    def has_exactly(self, *nodes: str) -> None:
        """These nodes are there and can be opened; every other device of the host is denied, however it is tried."""
        wanted = set(nodes)
        assert set(self.nodes) == wanted
        assert self.allowed == wanted, sorted(self.allowed ^ wanted)
        assert self.denied, "every device of the host was asked for: nothing was shown"
        for node, answer in self.nodes.items():
            assert answer.endswith(ALLOWED), f"{node}: {answer}"

    def capability_nodes(self, *paths: str) -> set[str]:
        """The device nodes of MIG capabilities, by their paths below /proc/driver/nvidia/capabilities."""
        return {self.capabilities[path] for path in paths}

    def shown(self, folder: str) -> set[str]:
        """Everything below a folder of /proc/driver/nvidia."""
        top = f"/proc/driver/nvidia/{folder}/"
        return {path[len(top) :] for path in self.proc if path.startswith(top)}


def asks(bundle: Bundle, capabilities: str = "utility,compute", **variables: str) -> Bundle:
    """The bundle with a request: the variables of NVIDIA's that are named here, and none that it had."""
    bundle.asks(None, capabilities)
    bundle.config["process"]["env"] += [f"{name}={value}" for name, value in variables.items()]
    return bundle


def attempt(
    installed: Installed,
    bundle: Bundle,
    commands: str = "true",
    *,
    runtime: str = "runc",
    refresh: bool = True,
    before: str = "",
    **node: Any,
) -> Outcome:
    """Start the container, which tells what it has and runs the test's commands; before: commands on the node."""
    bundle.runs("/bin/sh", "-c", f"{_INSIDE}\n{commands}")
    script = _HOST.format(root=shlex.quote(str(bundle.rootfs)))
    if refresh:
        script = f"oci-gpu-hook inventory refresh >/dev/null\n{script}"
    return on_node(installed, f"{before}\n{script}{start(runtime, bundle)}", **node)


def look(installed: Installed, bundle: Bundle, commands: str = "true", **how: Any) -> Seen:
    """The same of a container that starts."""
    done = attempt(installed, bundle, commands, **how)
    assert done.code == 0, done.err
    first, _, told = done.out.partition("\ntold\n")
    lines = first.splitlines()
    nodes = _rows(lines, "node")
    host = _rows(lines, "host")
    assert host, "this node has no devices"
    assert all(answer.endswith((DENIED, *ALLOWED)) for answer in host.values()), host
    denied = {node for node, answer in host.items() if answer.endswith(DENIED)}
    mounts = [line.split() for line in lines if " - " in line]
    caps = _rows(lines, "capability")
    return Seen(
        nodes={node: answer for node, answer in nodes.items() if "/by-path/" not in node},
        allowed=set(host) - denied,
        denied=denied,
        mounts={row[4]: set(row[5].split(",")) for row in mounts},
        proc=set(_rows(lines, "proc")),
        capabilities={path: f"/dev/nvidia-caps/nvidia-cap{minor}" for path, minor in caps.items()},
        libraries=_libraries(lines),
        told=told,
    )


def refused(installed: Installed, bundle: Bundle, **how: Any) -> str:
    """What is said of a container that must not start; its process has not run and its root is as it was."""
    before = roots.listing(bundle.rootfs)
    done = attempt(installed, bundle, **how)
    assert done.code != 0
    assert "started" not in done.out
    after = roots.listing(bundle.rootfs)
    assert {name: after[name] for name in after if name not in _not_ours(bundle)} == before
    told = [line for line in done.err.splitlines() if "oci-gpu-hook: " in line]
    assert told, done.err
    assert "Traceback" not in done.err
    return told[-1].replace("\\n", "").replace('\\"', '"')


def _not_ours(bundle: Bundle) -> set[str]:
    """What the runtime itself leaves in a root, mount points with their parents; and our list."""
    points = [PurePath(mount["destination"].lstrip("/")) for mount in bundle.config["mounts"]]
    return {str(path) for point in points for path in (point, *point.parents)} | {HOST_NODES}


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
