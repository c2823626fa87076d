# SPDX-License-Identifier: Apache-2.0
"""Attacks on the commands that root runs, by a local user and by containers: each plays on the simulated node.

node.py ... -- python -m tests.hostile.commands KIT RUNTIME NAME...

An attack prepares what a user or a container can make, runs commands as root, and gives a line for each thing that got
out: a file that was opened, a text to paste, a lie that was believed, a limit that was passed.
"""

from __future__ import annotations

import json
import os
import pty
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Callable, NamedTuple

from tests.hostile import linux
from tests.hostile.scene import ENVIRONMENT, FUSE, Kit
from tests.integration import roots
from tests.integration.engines import Bundle, until

USER = 64_123
PROGRAM = "/usr/bin/oci-gpu-hook"
CONTAINERS = ("containers", "--json")
METRICS = ("metrics", "--gpus")
DOCTOR = ("doctor",)
# By a clock and by a bare interpreter, as the machine may be busy; and in KiB.
SECONDS, INTERPRETERS, MEMORY = 5.0, 300, 64 << 10
# How long a command runs that would not end by itself.
ENDLESS_SECONDS = 3.0
SLEEPS = ("/bin/sh", "-c", "while :; do sleep 1; done")
ID = "c0ffee" * 10 + "0123"
KINDS = ("device", "fifo", "pty", "kmsg")


class Done(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float
    memory: int  # KiB

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The containers that `containers` has told."""
        return [*self._document.get("containers", ())]

    @property
    def free(self) -> list[str]:
        return [it["name"] for it in self._document.get("free", ())]

    @property
    def _document(self) -> dict[str, Any]:
        return dict(json.loads(self.out)) if self.out.startswith("{") else {}


class Host:
    """The node, a user who has a session on it, and its containers."""

    def __init__(self, kit: Kit, runtime: str, name: str) -> None:
        self.kit, self.runtime, self.name = kit, runtime, name
        # The node's own /run, which every user may enter.
        self.work = Path("/run/hostile") / name
        self.work.mkdir(parents=True)
        self.session = Path(f"/run/user/{USER}")
        self.session.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"uid={USER},mode=0700", "none", str(self.session))
        self.watch = linux.Watch()
        self.watch.add("/proc/kmsg")
        self._servers: list[int] = []
        # What was done to the node is taken back at the end, the last first.
        self._end = ExitStack()
        self.later = self._end.callback
        began = time.monotonic()
        _run("/usr/bin/python3", "-IS", "-c", "pass")
        self.most_seconds = SECONDS + INTERPRETERS * (time.monotonic() - began)
        self.plain = self.runs("--version")

    def runs(self, *words: str, ends: bool = True, seconds: float = 0) -> Done:
        """One command of root's, in a session of its own without a terminal.

        ends: whether it ends by itself; seconds: how long it may take, if not as long as any other.
        """
        began = time.monotonic()
        with TemporaryFile() as out, TemporaryFile() as err:
            child = subprocess.Popen(
                [PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=ENVIRONMENT,
                start_new_session=True, cwd="/",
            )  # fmt: skip
            timeout = time.monotonic() + (seconds or 4 * self.most_seconds)
            while (status := os.wait4(child.pid, os.WNOHANG))[0] == 0 and time.monotonic() < timeout:
                time.sleep(0.01)
                if not ends and time.monotonic() > began + ENDLESS_SECONDS:
                    os.kill(child.pid, signal.SIGTERM)
            if not status[0]:
                child.kill()
                # What waits for a filesystem that never answers is ended by that one's end alone.
                self.end_servers()
                status = os.wait4(child.pid, 0)
            took = time.monotonic() - began
            child.returncode = os.waitstatus_to_exitcode(status[1])
            for file in (out, err):
                file.seek(0)
            said, told = [file.read().decode(errors="replace") for file in (out, err)]
        return Done(child.returncode, said, told, took, status[2].ru_maxrss)

    def wrong(self, done: Done, *codes: int) -> list[str]:
        found = []
        if done.code not in (codes or (0, 1)):
            found.append(f"ended with {done.code}: {done.err[-300:]}")
        if "Traceback" in done.err or "internal error" in done.err:
            found.append(f"our bug: {done.err[-500:]}")
        if done.seconds > self.plain.seconds + self.most_seconds:
            found.append(f"took {done.seconds:.1f} s")
        if done.memory > self.plain.memory + MEMORY:
            found.append(f"took {(done.memory - self.plain.memory) >> 10} MiB more than plain")
        return found

    def all_of(self, *commands: tuple[str, ...]) -> list[str]:
        return [f"{' '.join(it)}: {line}" for it in commands for line in self.wrong(self.runs(*it))]

    def trap(self, place: Path, kind: str) -> None:
        """Put something at `place` that must not be opened, and watch it."""
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        if kind == "kmsg":
            place.symlink_to("/proc/kmsg")
            return
        if kind == "device":
            os.mknod(place, 0o020666, os.makedev(1, 7))
        elif kind == "fifo":
            os.mkfifo(place, 0o666)
        else:
            master, slave = pty.openpty()
            self.later(lambda: os.close(master))
            place.symlink_to(os.ttyname(slave))
            os.close(slave)
        self.watch.add(str(place))

    def gives(self, path: str, content: str | bytes | Path) -> Path:
        """A file of the user's in his session, or a link there."""
        place = self.session / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            place.symlink_to(content)
        else:
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.owned(place)
        return place

    def owned(self, place: Path) -> None:
        for each in (place, *place.parents):
            if self.session in (each, *each.parents):
                os.lchown(each, USER, USER)

    def starts(self, *words: str, argv0: str = "", root: bool = False) -> int:
        """A process of the user's, or of root's; argv0: what it calls itself."""
        who: dict[str, Any] = {} if root else {"user": USER, "group": USER, "extra_groups": []}
        child = subprocess.Popen(
            [argv0 or words[0], *words[1:]], executable=shutil.which(words[0]), env=ENVIRONMENT,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **who,
        )  # fmt: skip
        self.later(child.wait)
        self.later(child.kill)
        return child.pid

    def serves(self) -> Path:
        """The folder of a FUSE filesystem of root's, which answers until `silence` is called."""
        folder = self.work / "served"
        folder.mkdir()
        words = [sys.executable, FUSE, str(folder), "allow_other"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.later(server.wait)
        self.later(lambda: _run("umount", "-l", str(folder)))
        self._servers.append(server.pid)
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        return folder

    def users_server(self, place: Path) -> None:
        """The FUSE filesystem whose process a user has written to a file."""
        until(place.exists)
        self._servers.append(int(place.read_text()))

    def silence(self) -> None:
        for pid in self._servers:
            os.kill(pid, signal.SIGUSR1)

    def end_servers(self) -> None:
        for pid in self._servers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._servers.clear()

    def contained(self, count: int = 1, before: str = ":") -> int:
        """Processes of the user's, each in a user namespace that he made, with other mounts and another root.

        before: what he does there before he enters that root, whose path is $ROOT.
        """
        script = f"{before}\nexec chroot $ROOT {shlex.join(SLEEPS)}"
        pids = [self.in_namespace(script) for _ in range(count)]
        until(lambda: all([is_contained(pid) for pid in pids]))
        return pids[0]

    def in_namespace(self, script: str) -> int:
        """A shell of the user's in a user namespace that he made, with mounts of his own; $ROOT is a root for it."""
        root = self.work / "users-root"
        if not root.exists():
            shutil.copytree(self.kit.patterns["busybox"], root, symlinks=True)
            subprocess.run(["chown", "-R", str(USER), str(root)], check=True)
        words = ("unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-ec")
        return self.starts(*words, f"ROOT={root}\n{script}")

    def container(
        self, id: str, asks: str | None, edit: Callable[[Bundle], object] = lambda it: None,
        state: str = "", root: str = "busybox", runs: tuple[str, ...] = SLEEPS,
    ) -> int:  # fmt: skip
        """A container of root's that runs; state: the folder of its runtime's states, "" for the usual one."""
        folder = self.work / f"bundle-{id}"
        bundle = Bundle(folder, self.kit.hooks, self.kit.patterns[root]).asks(asks)
        edit(bundle)
        bundle.runs(*runs)
        runtime = [self.runtime, *(["--root", state] if state else [])]
        self.later(lambda: subprocess.run([*runtime, "delete", "--force", id], capture_output=True, env=ENVIRONMENT))
        file = self.work / "pid"
        words = [*runtime, "run", "--detach", f"--pid-file={file}"]
        with open(self.work / "started", "wb") as said, open(os.devnull) as null:
            done = subprocess.run(
                [*words, "--bundle", str(folder), id],
                stdin=null, stdout=said, stderr=said, env=ENVIRONMENT,
            )  # fmt: skip
        if done.returncode:
            raise RuntimeError((self.work / "started").read_text())
        return int(file.read_text())

    @property
    def libraries(self) -> str:
        """The folder in which a container of the pattern debian has its libraries."""
        multiarch = f"/usr/lib/{roots.MULTIARCH}"
        return multiarch if (self.kit.patterns["debian"] / multiarch[1:]).exists() else "/usr/lib64"

    def gives_cgroups(self, pid: int, *cgroups: Path) -> None:
        """Cgroups of the user's, each in the one before it, the last with this process of his."""
        self.later(lambda: until(lambda: removed(*reversed(cgroups))))
        self.later(lambda: os.kill(pid, signal.SIGKILL))
        for folder in cgroups:
            folder.mkdir()
            os.chown(folder, USER, USER)
        (cgroups[-1] / "cgroup.procs").write_text(str(pid))

    def inside(self, pid: int, script: str) -> None:
        _run("nsenter", "-t", str(pid), "-m", "/bin/busybox", "sh", "-ec", script)

    def end(self) -> list[str]:
        self.end_servers()
        self._end.close()
        opened = [f"opened: {path}" for path in self.watch.opened()]
        _run("umount", "-l", str(self.session))
        self.session.rmdir()
        shutil.rmtree(self.work)
        return opened


def is_contained(pid: int) -> bool:
    return os.stat(f"/proc/{pid}/root").st_ino != os.stat("/").st_ino


def removed(*cgroups: Path) -> bool:
    """Whether these are gone now; a process of one may be on its way out."""
    try:
        for folder in [it for it in cgroups if it.exists()]:
            folder.rmdir()
    except OSError:
        return False
    return True


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _run(*words: str) -> None:
    subprocess.run(words, check=True, env=ENVIRONMENT, stdin=subprocess.DEVNULL)


def main() -> None:
    from tests.hostile import beliefs, limits, matrix

    attacks = {**beliefs.ATTACKS, **limits.ATTACKS, **matrix.ATTACKS}
    file, runtime, *names = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kit = Kit.read(file)
    for name in names:
        host = Host(kit, runtime, name)
        try:
            wrong = attacks[name](host)
        except Exception as err:
            wrong = [f"the attack itself: {err!r}"]
        finally:
            opened = host.end()
        print(json.dumps([name, [*wrong, *opened]]), flush=True)


if __name__ == "__main__":
    main()
