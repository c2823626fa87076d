# SPDX-License-Identifier: Apache-2.0
"""Real engines on the simulated node, with the installed hook as its hooks.d file registers it.

Everything runs in the node's private mount namespace, whose /usr is a throw-away overlay: the hook is copied there
from one ``make install DESTDIR=``, and nothing is left on this machine.  Must not import the source tree's modules.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = REPOSITORY / "tests/gpunode/node.py"
BOOT = REPOSITORY / "tests/gpunode/boot.py"
PROCDRIVER = {
    "path": "/usr/libexec/gpunode/procdriver",
    "args": ["procdriver"],
    "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
}
RUNTIMES = [("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2")]


class Outcome(NamedTuple):
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


class Installed(NamedTuple):
    """One installation below a folder."""

    tree: Path

    def hooks(self, *, simulated: bool = True) -> dict[str, list[dict[str, Any]]]:
        """The hooks of config.json as an engine that reads hooks.d writes them; a simulated node's own goes first."""
        found: dict[str, list[dict[str, Any]]] = {}
        for file in sorted((self.tree / "usr/share/containers/oci/hooks.d").glob("*.json")):
            document = json.loads(file.read_text())
            assert document["when"] == {"always": True}
            for stage in document["stages"]:
                found.setdefault(stage, [PROCDRIVER] if simulated else []).append(document["hook"])
        return found


class Bundle:
    """A bundle with a root, ready for runc and crun."""

    def __init__(self, path: Path, hooks: dict[str, list[dict[str, Any]]]) -> None:
        self.path = path
        self.rootfs = path / "rootfs"
        subprocess.run(["runc", "spec", "--bundle", str(path)], check=True)
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        self.config["hooks"] = hooks
        self.config["process"]["terminal"] = False
        self.config["root"]["readonly"] = False
        # The network namespace of a bare spec has no use here and costs time.
        self.config["linux"]["namespaces"].remove({"type": "network"})
        for kind in ("bounding", "effective", "permitted"):
            self.config["process"]["capabilities"][kind].append("CAP_MKNOD")

    def asks(self, devices: str | None, capabilities: str | None = None) -> Bundle:
        """Set the request."""
        env = [item for item in self.config["process"]["env"] if not item.startswith("NVIDIA_")]
        if devices is not None:
            env.append(f"NVIDIA_VISIBLE_DEVICES={devices}")
        if capabilities is not None:
            env.append(f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
        self.config["process"]["env"] = env
        return self

    def runs(self, *arguments: str) -> Bundle:
        """Set the container's process."""
        self.config["process"]["args"] = list(arguments)
        self.write()
        return self

    def write(self) -> None:
        """Write config.json."""
        (self.path / "config.json").write_text(json.dumps(self.config))


def on_node(
    installed: Installed,
    script: str,
    *,
    cgroup: str = "v2",
    description: str = "h100x8",
    faults: tuple[str, ...] = (),
    driver_root: str = "",
    layout: str = "host",
    settings: str = "",
    booted: bool = False,
    timeout: int = 300,
) -> Outcome:
    """Run a shell script on a simulated node that has the hook installed.

    driver_root, layout: where the node's driver lies; settings: what the administrator has written in our file; booted:
    the node has systemd as PID 1.
    """
    line = [sys.executable, str(BOOT if booted else NODE)]
    line += ["--description", description, "--cgroup", cgroup]
    line += ["--driver-root", driver_root, "--layout", layout]
    for fault in faults:
        line += ["--break", fault]
    install = (
        f"cp -a {shlex.quote(str(installed.tree))}/usr/. /usr/ && mkdir -p /run/oci-gpu-hook\n"
    )
    if settings:
        install += f"printf %s {shlex.quote(settings)} >/etc/oci-gpu-hook.conf\n"
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    done = subprocess.run(
        [*line, "--", "/bin/sh", "-eu", "-c", install + script],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        timeout=timeout,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


# A private view of the host whose /usr is a throw-away overlay, as the simulated node has one.
HOST = """
mkdir -p /mnt && mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work
mount -t overlay -o lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work none /usr
"""


def on_host(installed: Installed, script: str, *, timeout: int = 300) -> Outcome:
    """Run a shell script on this very host and its driver, with the hook installed for as long as it runs."""
    install = f"cp -a {shlex.quote(str(installed.tree))}/usr/. /usr/\n"
    line = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-eu", "-c"]
    done = subprocess.run(
        [*line, HOST + install + script],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=timeout,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def start(runtime: str, bundle: Bundle, name: str = "") -> str:
    """The shell command that runs a bundle's container."""
    name = name or f"gpu-{os.getpid()}-{bundle.path.name}"
    return f"{runtime} run --bundle {shlex.quote(str(bundle.path))} {name}"


def run(installed: Installed, runtime: str, cgroup: str, bundle: Bundle, **node: Any) -> Outcome:
    """Run a bundle's container on a node, to its end."""
    return on_node(installed, start(runtime, bundle), cgroup=cgroup, **node)
