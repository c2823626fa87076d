# SPDX-License-Identifier: Apache-2.0
"""What an attack is, and its scene: a bundle with its root, a volume, a canary of the host's; one real container start.

Everything happens on the simulated node.  Must not: know one attack from another.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import secrets
import shlex
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, NamedTuple

from tests.hostile import canary, linux
from tests.integration import roots
from tests.integration.engines import Bundle

STAGE = "createRuntime"
NAIVE = Path(__file__).with_name("naive.py")
FUSE = str(Path(__file__).with_name("silent.py"))
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
# Of the container, for a driver's libraries.
OWN_LIBRARIES = "/usr/local/nvidia/lib64"
LABEL = b"system_u:object_r:user_home_t:s0"
USER = 64_123
# The naive injector does hang; ours is only slow, on a machine that is busy with other things.
NAIVES_SECONDS, SECONDS = 30, 1200

# Keeps what the hook says and how it ends, and passes both on.
KEPT = "cat >{0}/state; {1} <{0}/state 2>{0}/said; code=$?; echo $code >{0}/code; cat {0}/said >&2; exit $code"


class Kit(NamedTuple):
    """What is made once for all attacks: below one folder of /tmp."""

    work: Path
    patterns: dict[str, Path]
    hooks: dict[str, list[dict[str, Any]]]  # as the registration in hooks.d says
    preload: Path  # a library that, once loaded, makes the file that its folder is named for

    @property
    def file(self) -> Path:
        return self.work / "kit"

    @staticmethod
    def read(file: str) -> Kit:
        return Kit(*pickle.loads(Path(file).read_bytes()))


class Outcome(NamedTuple):
    """What came of one attack.

    escapes: a line for each thing that got out; code: of the hook, None if it did not run; left: what the root holds
    that it may not; exchanges: how often a race has exchanged two names.
    """

    escapes: list[str]
    code: int | None
    said: str
    out: str
    err: str
    left: list[str]
    exchanges: int = 0


class Scene:
    def __init__(self, kit: Kit, name: str, runtime: str, root: str) -> None:
        self.kit = kit
        self.name = name
        self.runtime = runtime
        self.path = kit.work / name
        for folder in ("bundle", "host", "host/private", "volume"):
            (self.path / folder).mkdir(parents=True)
        (self.path / "host/private").chmod(0o700)
        self.bundle = Bundle(self.path / "bundle", {}, kit.patterns[root])
        self.bundle.asks("0", "all")
        for kind in ("bounding", "effective", "permitted"):
            # As podman and Docker give them.
            self.config["process"]["capabilities"][kind] += ["CAP_DAC_OVERRIDE", "CAP_FOWNER"]
        self.root = self.bundle.rootfs
        self.host = self.path / "host"
        self.volume = self.path / "volume"
        self.token = f"secret-{secrets.token_hex(8)}"
        # What the hosts's files say, what a container may only make.
        self.probe = "true"
        self.edit_state = ""
        self.before_hook: list[str] = []
        self.after_hook: list[str] = []
        self.processes: set[int] = set()
        self.exchanges = 0
        self.registered = False
        self.checks = False
        self.watch = linux.Watch()
        self.escaped: Callable[[str], list[str]] = lambda out: []
        # What was done to the node is taken back, the last first.
        self._end = ExitStack()
        self.later = self._end.callback
        for file, mode in (("private/secret", 0o600), ("file", 0o644)):
            (self.host / file).write_text(f"{self.token}\n")
            (self.host / file).chmod(mode)
            os.setxattr(self.host / file, canary.LABEL, LABEL)

    @property
    def config(self) -> dict[str, Any]:
        return self.bundle.config

    @property
    def libraries(self) -> str:
        there = (self.root / f"usr/lib/{roots.MULTIARCH}/libc.so.6").exists()
        return f"usr/lib/{roots.MULTIARCH}" if there else "usr/lib64"

    def link(self, path: str, text: str | Path) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() or place.is_file():
            place.unlink()
        elif place.is_dir():
            place.rename(place.with_name(f"real-{place.name}"))
        place.symlink_to(text)

    def hosts(self, name: str) -> Path:
        (self.host / name).mkdir(parents=True, exist_ok=True)
        return self.host / name

    def owned(self) -> Path:
        """A folder of another's, into which the root is moved, and whose names the host has, too."""
        above = self.path / "owned"
        above.mkdir()
        self.root.rename(above / "rootfs")
        self.bundle.rootfs = self.root = above / "rootfs"
        self.config["root"]["path"] = str(self.root)
        for name in ("etc", "dev", "usr/local", "usr/lib64", "usr/bin"):
            self.hosts(f"rootfs/{name}")
        return above

    def mount(self, *words: str | Path) -> None:
        subprocess.run(["mount", *map(str, words)], check=True)
        self.later(subprocess.run, ["umount", "-l", str(words[-1])])

    def play(self, injector: str) -> Outcome:
        """One start with an injector, and the host before and after it."""
        for name in ("dev", "proc", "sys"):
            if not os.path.lexists(self.root / name):
                (self.root / name).mkdir()
        self._write(injector)
        try:
            canaries = [self.host, self.volume]
            before = canary.look(canaries, self.path, self._id)
            out, err = self._run(NAIVES_SECONDS if injector == "naive" else SECONDS)
            escapes = canary.differences(before, canary.look(canaries, self.path, self._id))
            escapes += canary.children(self.processes)
        finally:
            self._end.close()
        escapes += [f"opened: {path}" for path in self.watch.opened()]
        escapes += [f"leaked: {self.token}"] if self.token in out else []
        escapes += self.escaped(out)
        code = self.kept("code")
        left = self._left(injector, stopped=code != "0")
        return Outcome(escapes, int(code) if code else None, self.kept("said"), out, err, left, self.exchanges)

    @property
    def _id(self) -> str:
        return f"hostile-{os.getpid()}-{self.name}"

    def kept(self, name: str) -> str:
        """What the hook has said, or its code."""
        path = self.path / name
        return path.read_text(errors="replace").strip("\n") if path.exists() else ""

    def _write(self, injector: str) -> None:
        """config.json, with the injector where the registration has it, or where its CVE was."""
        node, ours = self.kit.hooks[STAGE]
        words = shlex.join([ours["path"], *ours["args"][1:]])
        hooks = {STAGE: [node]}
        if injector == "naive":
            words = f"/usr/bin/python3 -S {NAIVE} {STAGE}" + (" --checks" if self.checks else "")
        if self.edit_state:
            words = f"sed {shlex.quote(self.edit_state)} | {words}"
        script = KEPT.format(self.path, f"sh -c {shlex.quote(words)}")
        # What the runtime has made of the image by then.
        listing = f"find {self.root} -printf '%P\\t%y\\t%s\\n' >{self.path}/image 2>/dev/null || :"
        hooks[STAGE] += [self._without_state(line) for line in (listing, *self.before_hook)]
        if not self.registered:
            hooks[STAGE].append({**self._shell(script), "env": ours["env"], "timeout": 20})
        elif injector == "naive":
            # CVE-2025-23266: without an env of its own, at a stage inside the container.
            args = ["python3", "-S", str(NAIVE), "createContainer"]
            hooks["createContainer"] = [{"path": "/usr/bin/python3", "args": args}]
        elif injector == "ours":
            hooks = self.kit.hooks
        hooks.setdefault(STAGE, []).extend(self._without_state(line) for line in self.after_hook)
        self.config["hooks"] = hooks
        self.bundle.runs("/bin/sh", "-c", f"echo started; {{ {self.probe}; }} 2>&1; true")

    def _without_state(self, line: str) -> dict[str, Any]:
        # crun fails the start where a hook ends before the state is written: a broken pipe.
        return self._shell(f"cat >/dev/null; {line}")

    def _shell(self, line: str) -> dict[str, Any]:
        return {"path": "/bin/sh", "args": ["sh", "-c", line], "env": [f"PATH={ENVIRONMENT['PATH']}"]}

    def _run(self, seconds: int) -> tuple[str, str]:
        line = [self.runtime, "run", "--bundle", str(self.bundle.path), self._id]
        try:
            done = subprocess.run(line, capture_output=True, timeout=seconds, env=ENVIRONMENT)
            out, err = done.stdout, done.stderr
        except subprocess.TimeoutExpired as expired:
            out, err = expired.stdout or b"", b"the start hangs"
        delete = [self.runtime, "delete", "--force", self._id]
        subprocess.run(delete, capture_output=True, env=ENVIRONMENT)
        return out.decode(errors="replace"), err.decode(errors="replace")

    def _left(self, injector: str, *, stopped: bool) -> list[str]:
        """What the root holds beyond empty mount points and links to them; nothing of ours where we stopped it."""
        # In a race two names of the image are what they were only together.
        if injector != "ours" or self.registered or self.exchanges:
            return []
        words = ["find", str(self.root), "-printf", "%P\\t%y\\t%s\\n"]
        now = subprocess.run(words, capture_output=True, check=True).stdout.decode(errors="replace")
        image = self.kept("image").splitlines()
        new = [line for line in now.splitlines() if line not in image and "\td\t" not in line]
        empty = re.compile(r"\t(f\t0|[cls]\t\d+)$")
        return new if stopped else [line for line in new if not empty.search(line)]

    def remove(self) -> None:
        """Take the scene away, and what an injector has mounted on the host."""
        for process in ("self", "1"):
            points = [line.split()[4] for line in canary.mounts(process)]
            for point in reversed([it for it in points if it.startswith(f"{self.path}/")]):
                line = ["nsenter", f"--mount=/proc/{process}/ns/mnt", "umount", "-l", point]
                # One that lies below another may be hidden by it.
                subprocess.run(line, check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.path)


def shown(outcome: Outcome) -> str:
    return json.dumps(outcome._asdict(), indent=1)


BOTH = ("runc", "crun")
# How the hook may end: it finds the right place, or it stops the start with a sentence.
EITHER = (0, 7)
SERVES = (0,)
BAD_STATE = (3,)


class Attack(NamedTuple):
    """why: its CVE, or its row of what was seen; make: fills the scene in; root: the kind of image; codes: how our hook
    may end; says: what its sentence must hold; bites: the runtimes under which the naive injector is caught; cgroup:
    the host's.
    """

    name: str
    why: str
    make: Callable[[Scene], object]
    root: str = "busybox"
    codes: tuple[int, ...] = EITHER
    says: str = ""
    bites: tuple[str, ...] = BOTH
    runtimes: tuple[str, ...] = BOTH
    cgroup: str = "v2"
