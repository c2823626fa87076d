# SPDX-License-Identifier: Apache-2.0
"""Where the bench plays: the simulated node with the installed hook, roots, and bundles with fresh layers.

Everything lies in one temporary folder and in mount namespaces that end with their processes.
Must not: know what is measured, or use anything of the hook but what `make install` puts in place.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, Callable, NamedTuple

from tests.bench.variants import BARE, BUSYBOX, KNOWN, LARGE, NEWER, OURS, SMALL, TRUE, Variant
from tests.gpunode import linux, node
from tests.gpunode.content import NOMEMLOCK, Content
from tests.integration import cdiedits, roots
from tests.integration.engines import PROCDRIVER, REPOSITORY, Bundle, Installed
from tests.unit.libcudas import R575, library, said

DESCRIPTION = "h100x8"
LIBRARIES = 1050
SAVED = Path("/run/oci-gpu-hook")
COMMAND = "/usr/bin/oci-gpu-hook"
ENTRY = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
STAGE = "createRuntime"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}

_TIMEOUT = 60  # valgrind's takes seconds
_STUB_NUMBER = "libbench0000"


class Hook(NamedTuple):
    """What the runtime is to start: a program and its words, the first of which is its name."""

    program: str
    words: list[str]
    environment: list[str]


class Kit(NamedTuple):
    """What is made once, before any node: everything below one temporary folder."""

    scratch: Path
    timer: Path
    installed: Installed
    patterns: dict[str, Path]
    hooks: dict[str, Hook]  # by a variant's kind of hook


def quiet(*command: str) -> None:
    """Run a command that must succeed and has nothing to say."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def make_kit(scratch: Path, python: str) -> Kit:
    """Compile, install, and lay out the roots."""
    timer = scratch / "timer"
    quiet("cc", "-O2", "-Wall", "-static", "-o", str(timer), str(Path(__file__).with_name("timer.c")))
    installed = Installed(scratch / "installed")
    make = ("make", "--silent", "--no-print-directory", "-C", str(REPOSITORY))
    quiet(*make, "install", f"DESTDIR={installed.tree}", f"PYTHON={python}")
    registered = installed.hooks(simulated=False)[STAGE][0]
    built = node.prepare(DESCRIPTION, []).files[NOMEMLOCK]
    driver = Path(built).parents[1]
    small = roots.debian(scratch / "roots" / SMALL, driver)
    patterns = {
        SMALL: small,
        BUSYBOX: roots.busybox(scratch / "roots" / BUSYBOX),
        LARGE: _large(scratch / "roots" / LARGE, small),
        NEWER: _newer(scratch / "roots" / NEWER, small),
    }
    hooks = {
        TRUE: Hook("/bin/true", ["true"], registered["env"]),
        BARE: Hook(python, ["python3", "-IS", "-c", "pass"], registered["env"]),
        OURS: Hook(registered["path"], registered["args"], registered["env"]),
        # As oci-gpu-runtime adds it.
        KNOWN: Hook("/usr/libexec/oci-gpu-hook-start", registered["args"], [registered["env"][0], "LC_ALL=C"]),
    }
    return Kit(scratch, timer, installed, patterns, hooks)


def _large(root: Path, small: Path) -> Path:
    """The small root with as many libraries as a full CUDA image has, all of them in its cache."""
    shutil.copytree(small, root, symlinks=True)
    folder = root / "usr/lib" / roots.MULTIARCH
    stub = folder / f"{_STUB_NUMBER}.so.1"
    link = ["cc", "-shared", "-nostdlib", f"-Wl,-soname,{stub.name}", "-x", "c", "/dev/null"]
    quiet(*link, "-o", str(stub))
    data = stub.read_bytes()
    for number in range(1, LIBRARIES):
        name = f"libbench{number:04}"
        (folder / f"{name}.so.1").write_bytes(data.replace(_STUB_NUMBER.encode(), name.encode()))
    quiet("/sbin/ldconfig", "-r", str(root))
    return root


def _newer(root: Path, small: Path) -> Path:
    """The small root with a libcuda for the node's driver, as CUDA's images have it for older ones."""
    shutil.copytree(small, root, symlinks=True)
    folder = root / "usr/local/cuda/compat"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.999.1.1").write_bytes(library(said({**R575, "driver": [580]})))
    (folder / "libcuda.so.1").symlink_to("libcuda.so.999.1.1")
    return root


def on_node(kit: Kit, content: Content, cgroup: str, work: Callable[[], Any]) -> Any:
    """What `work` gives, as JSON has it, when done on a node of that content; the node ends with it."""
    answer = kit.scratch / "answer.json"
    answer.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir("/")
            node.set_up(content, cgroup)
            quiet("cp", "-a", f"{kit.installed.tree}/usr/.", "/usr/")
            SAVED.mkdir(exist_ok=True)
            answer.write_text(json.dumps(work()))
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        # Whatever ends us ends the node first: what lies in the folder is still mounted in it.
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
    if status:
        raise RuntimeError("the simulated node ended early, see above")
    return json.loads(answer.read_text())


class Scene:
    """One bundle, whose root gets a fresh layer for every start, as an engine gives it one."""

    def __init__(self, kit: Kit, variant: Variant, name: str) -> None:
        self.kit = kit
        self.name = name
        self.lower = kit.patterns[variant.root]
        self.path = kit.scratch / "bundles" / name
        self.record = self.path / "record"
        self.errors = self.path / "errors"
        # FHS keeps /tmp's content in memory on some hosts, and /var/tmp's never.
        self.disk = Path(tempfile.mkdtemp(prefix="oci-gpu-hook-bench-", dir="/var/tmp")) if variant.disk else None
        self.layer = self.disk or self.path / "layer"
        (self.path / "rootfs").mkdir(parents=True)
        self.layer.mkdir(exist_ok=True)
        hook = kit.hooks.get(variant.hook)
        spec = None
        if variant.cdi:
            words = [COMMAND, "cdi", "generate", "--capabilities", str(variant.capabilities)]
            spec = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, env=ENVIRONMENT).stdout)
            (started,) = spec["containerEdits"].pop("hooks")
            hook = Hook(started["path"], started["args"], started["env"])
        hooks = [PROCDRIVER] + ([self._timed(hook)] if hook else [])
        self.bundle = Bundle(self.path, {STAGE: hooks})
        if spec:
            self.bundle.asks(None)
            cdiedits.inject(self.bundle.config, spec, str(variant.devices))
        else:
            self.bundle.asks(variant.devices, variant.capabilities)
        seen = ("-c", "/dev/nvidiactl") if variant.devices else ("-d", "/dev")
        self.bundle.runs("/bin/busybox", "test", *seen)

    def _timed(self, hook: Hook) -> dict[str, Any]:
        args = ["timer", str(self.record), hook.program, *hook.words]
        return {"path": str(self.kit.timer), "args": args, "env": hook.environment, "timeout": _TIMEOUT}

    def lay(self) -> None:
        """A root in which nothing has been started yet."""
        if not self.disk:
            linux.mount("none", str(self.layer), "tmpfs")
        upper, work = self.layer / "upper", self.layer / "work"
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir={self.lower},upperdir={upper},workdir={work}"
        linux.mount("none", str(self.path / "rootfs"), "overlay", options=options)

    def clear(self) -> None:
        """Take the root's layer away, with all that was written to it."""
        linux.unmount(str(self.path / "rootfs"))
        if not self.disk:
            linux.unmount(str(self.layer))
            return
        for name in ("upper", "work"):
            shutil.rmtree(self.layer / name)

    def remove(self) -> None:
        shutil.rmtree(self.path)
        if self.disk:
            shutil.rmtree(self.disk)
