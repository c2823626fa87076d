# SPDX-License-Identifier: Apache-2.0
"""Real engines on the simulated node, with the installed hook as its hooks.d file registers it.

Everything runs in the node's private mount namespace, whose /usr is a throw-away overlay: the hook is copied there
from one ``make install DESTDIR=``, and nothing is left on this machine.  Must not import the source tree's modules.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, NamedTuple

from tests.gpunode import boot

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = REPOSITORY / "tests/gpunode/node.py"
BOOT = REPOSITORY / "tests/gpunode/boot.py"
# A new procfs shows no simulated driver: this runtime puts it into the container's, and becomes runc or crun.
SIMULATED = REPOSITORY / "tests/docker/simulated_runtime.py"
PROCDRIVER = {
    "path": "/usr/libexec/gpunode/procdriver",
    "args": ["procdriver"],
    "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
}
# In seconds: far above what anything takes on a machine that is busy with other things.
HANGS = 1800
# Of the environment: the folder below which the session has installed the hook.
INSTALLED = "OCI_GPU_HOOK_INSTALLED"
# Words before a command: in a mount namespace of its own.
UNSHARED = ("unshare", "--mount", "--propagation", "private")
RUNTIMES = [("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2")]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    def printed(self) -> str:
        """What it printed on stdout: it must have succeeded."""
        assert self.code == 0, self.out + self.err
        return self.out


class Installed(NamedTuple):
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
    """A bundle with a root, which is a fresh copy of `pattern` if one is given, ready for runc and crun."""

    def __init__(self, path: Path, hooks: dict[str, list[dict[str, Any]]], pattern: Path | None = None) -> None:
        self.path = path
        self.rootfs = path / "rootfs"
        if pattern is not None:
            shutil.copytree(pattern, self.rootfs, symlinks=True)
        subprocess.run(["runc", "spec", "--bundle", str(path)], check=True)
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        self.config["hooks"] = hooks
        self.config["process"]["terminal"] = False
        self.config["root"]["readonly"] = False
        # The network namespace of a bare spec has no use here and costs time.
        self.config["linux"]["namespaces"].remove({"type": "network"})
        for kind in ("bounding", "effective", "permitted"):
            self.config["process"]["capabilities"][kind].append("CAP_MKNOD")

    def asks(self, devices: str | None, capabilities: str | None = None, **variables: str) -> Bundle:
        """Set the request, and nothing else of NVIDIA's."""
        env = [item for item in self.config["process"]["env"] if not item.startswith("NVIDIA_")]
        if devices is not None:
            env.append(f"NVIDIA_VISIBLE_DEVICES={devices}")
        if capabilities is not None:
            env.append(f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
        self.config["process"]["env"] = env + [f"{name}={it}" for name, it in variables.items()]
        return self

    @property
    def id(self) -> str:
        """The id that `start` gives its container, unless the test has another."""
        return f"gpu-{os.getpid()}-{self.path.name}"

    def of_crio(self, *, namespace: str = "", image: str = "", **more: str) -> Bundle:
        """Let annotations say these as CRI-O's do, which are known by the id."""
        self.config["annotations"] = {
            "io.kubernetes.cri-o.ContainerID": self.id,
            "io.kubernetes.cri-o.ImageName": image,
            "io.kubernetes.pod.namespace": namespace,
            **more,
        }
        return self

    def changed(self, lines: str, folder: str = "") -> Bundle:
        """Change the root by shell lines, which begin in this folder of it."""
        subprocess.run(["sh", "-euc", lines], check=True, cwd=self.rootfs / folder)
        return self

    def privileged(self) -> Bundle:
        self.config["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
        return self

    def runs(self, *arguments: str) -> Bundle:
        self.config["process"]["args"] = list(arguments)
        self.write()
        return self

    def mounts(self, source: str | Path, destination: str, *options: str) -> Bundle:
        self.config["mounts"].append(
            {"type": "bind", "source": str(source), "destination": destination, "options": ["rbind", *options]}
        )
        return self

    def without(self, *destinations: str) -> Bundle:
        """Leave out the mounts at these places, and what masks a part of /proc."""
        kept = [m for m in self.config["mounts"] if not m["destination"].startswith(destinations)]
        self.config["mounts"] = kept
        self.config["linux"]["maskedPaths"] = self.config["linux"]["readonlyPaths"] = []
        return self

    def in_user_namespace(self, root: int) -> Bundle:
        """Map the container's root to this user of the host, who gets its files."""
        mapping = [{"containerID": 0, "hostID": root, "size": 65_536}]
        # sysfs can be mounted in a user namespace only together with a network namespace.
        self.config["linux"]["namespaces"] += [{"type": "user"}, {"type": "network"}]
        self.config["linux"]["uidMappings"] = self.config["linux"]["gidMappings"] = mapping
        return self.owned_by(root)

    def owned_by(self, root: int) -> Bundle:
        """Give the root's files to this user of the host."""
        for path in (self.rootfs, *self.rootfs.rglob("*")):
            os.chown(path, root, root, follow_symlinks=False)
        # pytest's folders are its user's alone.
        for folder in (self.path, *list(self.path.parents)[:3]):
            folder.chmod(0o755)
        return self

    def told_to_the_driver(self) -> Bundle:
        """The simulated driver is told the bundle, where crun tells its hooks of none."""
        tells = f"""sed -E 's#"bundle": *"(\\\\)?/"#"bundle":"{self.path}"#' | {PROCDRIVER["path"]}"""
        first, *others = self.config["hooks"]["createRuntime"]
        assert first == PROCDRIVER
        first = {"path": "/bin/sh", "args": ["sh", "-c", tells]}
        self.config["hooks"] = {**self.config["hooks"], "createRuntime": [first, *others]}
        return self

    def write(self) -> None:
        (self.path / "config.json").write_text(json.dumps(self.config))


def installed() -> Installed:
    """Where the session has installed the hook."""
    return Installed(Path(os.environ[INSTALLED]))


def on_node(
    script: str,
    *,
    hook: bool = True,
    cgroup: str = "v2",
    description: str = "h100x8",
    faults: tuple[str, ...] = (),
    driver_root: str = "",
    layout: str = "host",
    settings: str = "",
    booted: bool = False,
    own_network: bool = False,
    vendors: tuple[str, ...] = (),
    platform: str = "",
    driver: str = "",
    packages: tuple[str | Path, ...] = (),
    timeout: int = HANGS,
) -> Outcome:
    """Run a shell script on a simulated node, with the session's hook installed or without one.

    Its standard input is a pipe with nothing in it: a runtime gives what it has there to a container's root, and the
    machine's /dev/null would be that user's from then on.

    driver_root, layout: where the node's driver lies; vendors: whose drivers it has beside it; platform: what it has in
    the place of NVIDIA's; driver: a real one's user space, as node.py takes it; packages: folders of Debian's packages
    that are installed; settings: what the administrator has written in our file; booted: the node has systemd as PID 1;
    own_network: and a network of its own.
    """
    line = [sys.executable, str(BOOT if booted else NODE), *(["--own-network"] if own_network else [])]
    one = {"description": description, "cgroup": cgroup, "driver-root": driver_root, "layout": layout}
    one |= {"platform": platform, "driver": driver}
    many = {"break": faults, "packages": packages, "vendor": vendors, **{name: [it] for name, it in one.items() if it}}
    line += [word for name, values in many.items() for it in values for word in (f"--{name}", str(it))]
    install = ""
    if hook:
        install = f"cp -a {shlex.quote(str(installed().tree))}/usr/. /usr/ && mkdir -p /run/oci-gpu-hook\n"
    if settings:
        install += f"printf %s {shlex.quote(settings)} >/etc/oci-gpu-hook.conf\n"
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    return _outcome([*line, "--"], install + script, timeout, environment)


def printed(*words: str | Path, **how: Any) -> str:
    """What a command of this machine's prints on stdout; it must have succeeded."""
    done = subprocess.run(words, check=False, capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def _outcome(line: list[str], script: str, timeout: int, environment: dict[str, str] | None = None) -> Outcome:
    words = [*line, "/bin/sh", "-eu", "-c", script]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, input="", env=environment, cwd="/", timeout=timeout
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def in_turn(scripts: dict[str, str], before: str = "", **node: Any) -> dict[str, list[str]]:
    """What each of several scripts prints that run one after another on one node."""
    parts = [f"echo {shlex.quote(f'== {name}')}\n(\n{text}\n)\n" for name, text in scripts.items()]
    done = on_node(before + "".join(parts), **node)
    assert done.code == 0, done.out + done.err
    assert "Traceback" not in done.err, done.err
    found = [part.split("\n") for part in done.out.split("== ")[1:]]
    return {name: [line for line in lines if line] for name, *lines in found}


# Runs the watch in the background, waits until it has said some words so often, and ends it as systemd does.
WATCH = """
>/tmp/said
oci-gpu-hook inventory watch --interval 0.2 {words} >/tmp/said 2>&1 & watch=$!
trap 'kill -KILL $watch' EXIT
until_said() {{
    for i in $(seq 6000); do [ $(grep -c "$1" /tmp/said) -lt ${{2:-1}} ] || return 0; sleep 0.1; done
    cat /tmp/said; return 1
}}
{steps}
trap - EXIT
kill -TERM $watch
wait $watch && echo "ended with $?"
cat /tmp/said
"""


def watched(steps: str, words: str = "", before: str = "", after: str = "", **node: Any) -> str:
    """What is printed by the steps, then the watch's end, then what it said, then what is printed after it."""
    done = on_node(before + WATCH.format(steps=steps, words=words) + after, **node)
    out = done.printed()
    assert "ended with 0\n" in out
    assert "Traceback" not in out + done.err
    return out


# A private view of the host whose /usr is a throw-away overlay, as the simulated node has one: with what is mounted
# below it, where a driver may lie.
HOST = """
mkdir -p /mnt /run/oci-gpu-hook && mount -t tmpfs none /mnt && mkdir /mnt/usr /mnt/upper /mnt/work
mount -t tmpfs -o mode=0755 none /run/oci-gpu-hook
mount --rbind /usr /mnt/usr
mount -t overlay -o lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work none /usr
while read -r _ _ _ _ point _; do
    case $point in /mnt/usr/*) mount --bind "$point" "${point#/mnt}" ;; esac
done </proc/self/mountinfo
"""


def on_host(installed: Installed, script: str, *, timeout: int = HANGS) -> Outcome:
    """Run a shell script on this very host and its driver, with the hook installed for as long as it runs."""
    install = f"cp -a {shlex.quote(str(installed.tree))}/usr/. /usr/\n"
    return _outcome([*UNSHARED], HOST + install + script, timeout)


def run_unshared(code: str, *namespaces: str) -> str:
    """What Python code prints that uses this tree's modules, in a mount namespace of its own."""
    return printed(*UNSHARED, *namespaces, sys.executable, "-c", code, cwd=REPOSITORY)


def until(holds: Callable[[], bool]) -> None:
    """Wait, however slow the machine is."""
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.1)
    raise TimeoutError


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Do this again and again, in a thread of its own."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            act()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def start(runtime: str, bundle: Bundle, name: str = "") -> str:
    return f"{runtime} run --bundle {shlex.quote(str(bundle.path))} {name or bundle.id}"


def run(runtime: str, cgroup: str, bundle: Bundle, **node: Any) -> Outcome:
    return on_node(start(runtime, bundle), cgroup=cgroup, **node)


def version(program: str) -> tuple[int, ...]:
    """That of an engine of this machine, for what differs between two of them; () if it is not there."""
    if not shutil.which(program):
        return ()
    return tuple(int(part) for part in re.findall("[0-9]+", printed(program, "--version"))[:3])


# podman from 5.4 on starts the hooks of CDI specs before those of hooks.d: the simulated driver is a device, too, and
# the first.
_CDI_FIRST = version("podman") >= (5, 4)
# runc from 1.4 on takes a limit of 0 for one.  That there is none a file says, which podman before 4.5 does not read.
_BY_FILE = version("podman") >= (4, 5)
NO_PIDS_LIMIT = "" if _BY_FILE else "--pids-limit=0"
_PODMAN = f"{'env CONTAINERS_CONF_OVERRIDE=/usr/libexec/gpunode/containers.conf ' if _BY_FILE else ''}podman"
_SPECS = "--cdi-spec-dir /etc/cdi --cdi-spec-dir /var/run/cdi --cdi-spec-dir /usr/libexec/gpunode/cdi"
_FIRST = ["gpunode.test/driver=proc"] if _CDI_FIRST else []


def cdi_devices(*devices: str) -> str:
    return " ".join(f"--device {it}" for it in [*_FIRST, *devices])


def podman(words: str, *, runtime: str, folder: Path, run: str = "/run/c", cgroups: str = "cgroupfs") -> str:
    """The shell command of podman with storage of its own and the hooks of a host; run: its state."""
    return (
        f"{_PODMAN} --root {folder}/storage --runroot {run} --storage-driver vfs --runtime {runtime} "
        f"--cgroup-manager={cgroups} --events-backend=none {_SPECS if _CDI_FIRST else ''} "
        f"--hooks-dir /usr/libexec/gpunode/hooks.d --hooks-dir /usr/share/containers/oci/hooks.d {words}"
    )


# Without CAP_SYS_RESOURCE no limit can be raised; and a network costs time.
PODMAN_RUN = (
    f"run {NO_PIDS_LIMIT} --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --network=none "
    "--cap-add=mknod --security-opt seccomp=unconfined"
)


def run_podman(
    root: Path, command: str, *, options: str = "", before: str = "", runtime: str = "runc", **node: Any
) -> Outcome:
    words = f"{PODMAN_RUN} --rm {options} --rootfs {root} {command}"
    return with_podman(before + podman(words, runtime=runtime, folder=root.parent), **node)


def with_podman(script: str, **node: Any) -> Outcome:
    """As on_node, for a script that starts podman, which from 6 on knows no cgroup v1."""
    if version("podman") >= (6,):
        node["cgroup"] = "v2"
    try:
        return on_node(script, **node)
    finally:
        remove_podmans_parents()


def remove_podmans_parents() -> None:
    """The parent of podman's cgroups outlives its containers, and cgroups are the machine's, not the node's.

    A booted node removes its own cgroup, with all in it, and does so while this looks around.
    """
    for parent, folders, _ in os.walk("/sys/fs/cgroup"):
        folders[:] = [folder for folder in folders if not folder.startswith("gpunode-boot-")]
        if parent.endswith("/libpod_parent"):
            folders.clear()
            boot.remove(parent)
