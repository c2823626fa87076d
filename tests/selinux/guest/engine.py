# SPDX-License-Identifier: Apache-2.0
"""A container engine in small: prepares root, mounts and labels as CRI-O and podman do, and starts runc or crun.

Runs in an engine's domain and reads requests from stdin, one JSON line each; answers with one line each.
    {"row": NUMBER, "runtime": "runc"}   ->   [{"seen": {...}, "code": 0, "error": "...", "after": "..."}, ...]
    an empty line                        ->   an empty line, once the row's containers are gone
Must not judge: it tells what was seen.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
from typing import Any

from ..files import read, write
from . import policy, traps
from .cases import BUILT, OTHER, Container, Row
from .hostile import ROWS
from .mounting import bind_from, label, mount, set_label, unmount

STORAGE = "/var/lib/containers/storage/overlay"
LAYER = f"{STORAGE}/app/diff"
# As CRI-O names its containers' folders: what an engine tells a hook is where it looks.
STATE = "/run/containers/storage/overlay-containers"
REGISTRATIONS = "/usr/share/containers/oci/hooks.d"
BEFORE = "/usr/lib/e2e/bin/before"
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
# A busy machine takes minutes for dask.
SECONDS = 900


def _mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": options}


_PROC = _mount("/proc", "proc")
_DEV = _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k")
_PTS = _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620")
_MQUEUE = _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev")
_SHM = _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k")
_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_ADMIN")


def file_context(level: str) -> str:
    return f"system_u:object_r:container_file_t:{level}"


class Start:
    """One container of a row: its folders, its mounts, its process."""

    def __init__(self, group: Group, container: Container, number: int) -> None:
        self.group = group
        self.container = container
        self.id = f"{group.name}-{number}"
        self.bundle = f"{STATE}/{self.id}/userdata"
        if group.row.buildkit:
            self.bundle = f"{policy.HERE.executor}/{BUILT}"
        self.trap = group.row.trap or traps.Trap()
        # The folder above a root that is moved is a user's.
        self.above = f"{STORAGE}/{self.id}/above" if self.trap.moved else f"{STORAGE}/{self.id}"
        self.rootfs = f"{self.above}/merged"
        self.shm = f"{STATE}/{self.id}/userdata/shm"
        self.output = ""
        self.errors = ""

    def prepare(self) -> None:
        """Everything that an engine does before it calls the runtime."""
        for folder in (self.bundle, self.shm, self.rootfs, f"{STORAGE}/{self.id}/diff", f"{STORAGE}/{self.id}/work"):
            os.makedirs(folder, exist_ok=True)
        context = file_context(self.container.level)
        layers = f"lowerdir={LAYER},upperdir={STORAGE}/{self.id}/diff,workdir={STORAGE}/{self.id}/work"
        self.mount("overlay", self.rootfs, "overlay", 0, f'{layers},context="{context}"')
        self.trap.prepare_image(self.rootfs)
        if self.trap.moved:
            os.chown(self.above, traps.USER, traps.USER)
        self.mount_shm()
        self.output = self.stream("out")
        self.errors = self.stream("err")
        write(f"{self.bundle}/config.json", json.dumps(self.config()))

    def mount(self, source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
        mount(source, target, kind, flags, options)
        self.group.mounted.append(target)

    def mount_shm(self) -> None:
        kind = self.container.shm
        options = "mode=1777" + (f',context="{file_context(OTHER)}"' if kind == "context-other" else "")
        if kind in ("other", "engine", "context-other"):
            self.mount("shm", self.shm, "tmpfs", 0, options)
        if kind == "other":
            set_label(self.shm, file_context(OTHER))

    def stream(self, name: str) -> str:
        """A file for the container to print into, with its label: a pipe has the engine's."""
        path = f"{self.bundle}/{name}"
        write(path, "", 0o666)
        set_label(path, file_context(self.container.level))
        return path

    def config(self) -> dict[str, Any]:
        container = self.container
        command = container.command or ("/app/probe", *(("hold",) if container.hold else container.expect))
        env = [PATH, "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1"]
        asks = dict(container.asks)
        if container.gpu:
            asks["NVIDIA_VISIBLE_DEVICES"] = container.devices
            asks["NVIDIA_DRIVER_CAPABILITIES"] = container.capabilities
        env += [f"{flag}={devices}" for flag, devices in asks.items()]
        granted = list(_CAPABILITIES) if container.privileged else []
        capabilities = dict.fromkeys(("bounding", "effective", "permitted"), granted)
        specification: dict[str, Any] = {
            "cgroupsPath": f"system.slice:e2e:{self.id}" if self.group.row.scope else f"/e2e/{self.id}",
            "namespaces": [{"type": "pid"}, {"type": "uts"}, {"type": "mount"}, *self.group.ipc_namespace(container)],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        }
        if container.mapped:
            specification["namespaces"].append({"type": "user"})
            mapping = [{"containerID": 0, "hostID": container.mapped, "size": 65_536}]
            specification["uidMappings"] = specification["gidMappings"] = mapping
        if container.labelled:
            specification["mountLabel"] = file_context(container.level)
        return {
            "ociVersion": "1.0.2",
            "root": {"path": self.rootfs, "readonly": container.agent},
            "hostname": "container",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0} if container.privileged or container.agent else {"uid": 1000, "gid": 1000},
                "args": list(command),
                "env": env,
                "cwd": "/",
                "capabilities": capabilities,
                "noNewPrivileges": not container.privileged,
                "selinuxLabel": f"system_u:system_r:{container.type}:{container.level}",
            },
            "mounts": [self.proc(), _DEV, _PTS, *self.mounts()],
            "annotations": self.group.annotations(self),
            "hooks": self.hooks(),
            "linux": specification,
        }

    def proc(self) -> dict[str, Any]:
        """A new one is refused to a user namespace while a part of the host's is hidden, as the driver's is here."""
        return _bind("/proc", "/proc") if self.container.mapped else _PROC

    def mounts(self) -> list[dict[str, Any]]:
        container = self.container
        if container.shm == "host":
            binds = [_bind(path, path) for path in ("/dev/shm", "/dev/mqueue")]
        elif container.shm == "runtime":
            binds = [_MQUEUE, _SHM]
        else:
            binds = [_MQUEUE, _bind(self.group.shm if container.shm == "pod" else self.shm, "/dev/shm")]
        binds += [_bind(source, f"/victim/{name}") for name, source in self.group.victim.items()]
        for words in container.mounts:
            source, _, target = words.partition(":")
            binds.append(_bind(source, target or source))
        if self.trap.tmpfs:
            binds.append({**_DEV, "destination": self.trap.tmpfs})
        if self.trap.volume:
            binds.append(_bind(self.trap.place, self.trap.volume))
        return binds

    def hooks(self) -> dict[str, list[dict[str, Any]]]:
        """The registered hooks, after the one that completes the simulation."""
        container = self.container
        before = [BEFORE, *([file_context(OTHER)] if container.mqueue == "other" else [])]
        found: dict[str, list[dict[str, Any]]] = {"prestart": [{"path": BEFORE, "args": before, "env": [PATH]}]}
        if self.trap.covers_root():
            # The container's own /proc cannot be reached by its path any more.
            found["prestart"] = []
        if self.trap.moved:
            found["prestart"] += [
                {"path": f"/usr/bin/{words[0]}", "args": words, "env": [PATH]} for words in self.trap.moving(self.above)
            ]
        if not container.hook:
            return found
        for name in sorted(glob.glob(f"{REGISTRATIONS}/*.json")):
            with open(name, encoding="utf-8") as file:
                registration = json.load(file)
            for stage in registration["stages"]:
                found.setdefault(stage, []).append(registration["hook"])
        return found

    def run(self) -> dict[str, Any]:
        """Start it, wait for its end (or for what a holding one says first), and tell what was seen."""
        manager = ["--systemd-cgroup"] if self.group.row.scope else []
        log = ["--log", f"{os.path.dirname(self.bundle)}/runc-log.json"]
        told = [*manager, *(log if self.group.row.buildkit else [])]
        words = [self.group.runtime, *told, "run", "--bundle", self.bundle]
        if self.container.hold:
            words += ["--detach"]
        words += [self.id]
        before = time.monotonic()
        with open(self.output, "ab") as out, open(self.errors, "ab") as errors:
            # oci-gpu-runtime's domain has no use for a container's files: BuildKit gives it pipes.
            piped = subprocess.PIPE if self.group.row.buildkit else None
            streams: dict[str, Any] = {"stdout": piped or out, "stderr": piped or errors}
            try:
                done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, timeout=SECONDS, **streams)
                code = done.returncode
                out.write(done.stdout or b"")
                errors.write(done.stderr or b"")
            except subprocess.TimeoutExpired:
                code = -1
        holds = self.container.hold and code == 0
        if holds:
            self.group.holding.append(self)
            self.wait_for_first_words()
        seen = dict(line.split("=", 1) for line in read(self.output).splitlines() if "=" in line)
        if holds:
            seen["labels"] = " ".join(sorted(set(self.labels())))
        error, after = " ".join(read(self.errors).split())[-1500:], self.shm_label()
        return {"seen": seen, "code": code, "error": error, "after": after, "seconds": time.monotonic() - before}

    def labels(self) -> list[str]:
        """Of what a hook makes in a container: nodes, files of its own, what it covers."""
        root = f"/proc/{self.pid()}/root"
        found = []
        for pattern in (
            "dev/nvidia*",
            "dev/kfd",
            "dev/dri/*",
            "dev/infiniband/*",
            "dev/onload*",
            # Without a GPU these are the node's.
            *(["proc/driver/nvidia", "proc/driver/nvidia/*"] if self.container.gpu else []),
            "etc/ld.so.cache",
            "dev/mqueue",
        ):
            found += [label(path) for path in glob.glob(f"{root}/{pattern}")]
        return found

    def wait_for_first_words(self) -> None:
        end = time.monotonic() + SECONDS
        last = ("hold=", "stay=")
        while not any(it in read(self.output) for it in last) and time.monotonic() < end:
            time.sleep(0.1)

    def shm_label(self) -> str:
        kind = self.container.shm
        if kind == "runtime":
            return ""
        return label({"pod": self.group.shm, "host": "/dev/shm"}.get(kind, self.shm))

    def pid(self) -> int:
        words = [self.group.runtime, "state", self.id]
        return int(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["pid"])


class Group:
    """One row under one runtime: what its containers share."""

    def __init__(self, row: Row, runtime: str, name: str) -> None:
        self.row = row
        self.runtime = runtime
        self.name = name
        self.shm = ""
        self.mounted: list[str] = []
        self.starts: list[Start] = []
        self.holding: list[Start] = []
        self.victim: dict[str, str] = {}

    def run(self) -> list[dict[str, Any]]:
        found = []
        for number, container in enumerate(self.row.containers):
            start = Start(self, container, number)
            self.starts.append(start)
            if container.shm == "pod" and not self.shm:
                self.make_pod_shm(start)
            start.prepare()
            found.append(start.run())
            if container.hold and start not in self.holding:
                break  # the others would have nothing to share
            # An agent has left nothing: its root is read-only.
            if container.hold and not self.row.pod and not container.agent:
                self.expose(start)
        return found

    def make_pod_shm(self, start: Start) -> None:
        """The pod's shared memory, as CRI-O makes it: beside the sandbox, with the sandbox's label."""
        self.shm = f"{STATE}/{start.id}/userdata/shm"
        os.makedirs(self.shm)
        mount("shm", self.shm, "tmpfs", 0, "mode=1777")
        self.mounted.append(self.shm)
        set_label(self.shm, file_context(start.container.level))

    def ipc_namespace(self, container: Container) -> list[dict[str, str]]:
        if container.shm == "host":
            return []
        if self.row.pod and self.holding:
            return [{"type": "ipc", "path": f"/proc/{self.holding[0].pid()}/ns/ipc"}]
        return [{"type": "ipc"}]

    def annotations(self, start: Start) -> dict[str, str]:
        if not self.row.pod:
            return {}
        sandbox = self.holding[0] if self.holding else start
        return {
            "io.kubernetes.cri-o.ContainerID": start.id,
            "io.kubernetes.cri-o.ContainerType": "container" if self.holding else "sandbox",
            "io.kubernetes.cri-o.SandboxID": sandbox.id,
            "io.kubernetes.cri-o.ShmPath": self.shm,
        }

    def expose(self, start: Start) -> None:
        """Give the next container what this one left, as an engine might by mistake."""
        for name, path in (("secret", "/tmp/secret"), ("shm", "/dev/shm"), ("mqueue", "/dev/mqueue")):
            target = f"{STATE}/{start.id}/{name}-exposed"
            if name == "secret":
                write(target, "")
            else:
                os.mkdir(target)
            bind_from(start.pid(), path, target)
            self.mounted.append(target)
            self.victim[name] = target

    def end(self) -> None:
        for start in reversed(self.holding):
            subprocess.run([self.runtime, "delete", "--force", start.id], check=False, capture_output=True)
        for start in self.starts:
            start.trap.move_back(start.above)
        for target in reversed(self.mounted):
            unmount(target)


def _bind(source: str, target: str) -> dict[str, Any]:
    return {"destination": target, "type": "bind", "source": source, "options": ["rbind", "rw"]}


def main() -> int:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        request = json.loads(line)
        group = Group(ROWS[request["row"]], request["runtime"], f"{request['runtime']}-{request['row']}")
        try:
            answer = group.run()
        except (OSError, subprocess.SubprocessError) as error:
            answer = [{"seen": {}, "code": -2, "error": f"the engine failed: {error!r}", "after": "", "seconds": 0}]
        print(json.dumps(answer), flush=True)
        # What is held stays until the asker has looked at the host.
        sys.stdin.readline()
        group.end()
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
