# SPDX-License-Identifier: Apache-2.0
"""`make demo`: a container under a real runtime gets its GPUs because the installed hook ran.

    python3 tests/demo/run.py

On a host with an NVIDIA driver it uses that one, else the simulated node of tests/gpunode. Either
way all of it happens in a private mount namespace, with throw-away layers over what it writes to:
afterwards the machine is as it was.
Exit 0 only if the container's own nvidia-smi lists exactly the GPUs that were asked for.
Where a package has installed the hook, that one is shown, else this tree's.
Must not: use anything of the hook but what `make install` or a package puts in place.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NODE = f"{ROOT}/tests/gpunode/node.py"
DESCRIPTION = "h100x8"
DRIVER = "/proc/driver/nvidia/version"
SAVED = "/run/oci-gpu-hook"

COMMAND = "/usr/bin/oci-gpu-hook"
LIBRARY = "/usr/lib/oci-gpu-hook"
REGISTRATION = "/usr/share/containers/oci/hooks.d/oci-gpu-hook.json"
SIMULATION = "/usr/libexec/gpunode/hooks.d/00-gpunode-procdriver.json"
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")

NAME = f"oci-gpu-hook-demo-{os.getpid()}"
SHOWN_LINES = 5

# What an image that knows nothing of GPUs would have.
PROGRAMS = ("sh", "ls", "grep", "ldconfig")
GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
QUESTIONS = (
    "nvidia-smi",
    "ls /dev/nvidia*",
    "ls /proc/driver/nvidia/gpus",
    "ldconfig -p | grep -E 'libcuda.so.1|libnvidia-ml.so.1'",
)


class Failure(Exception):
    """The demo cannot go on, in one sentence."""


class Gpu(NamedTuple):
    number: int  # as NVML counts
    uuid: str
    model: str


def tell(text: str, heading: str = "") -> None:
    if heading:
        print(f"\n{heading}")
    for line in text.rstrip("\n").split("\n"):
        print(f"  {line}".rstrip().expandtabs(4))
    sys.stdout.flush()


def output_of(*command: str) -> str:
    """What a command prints; Failure, with its last words, where it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"'{' '.join(command)}' ended with {done.returncode}:\n{done.stderr or done.stdout}")
    return done.stdout


def main() -> int:
    """Choose the node, enter it, and start again inside."""
    if os.geteuid() != 0:
        print("make demo: needs root, for mounts and containers", file=sys.stderr)
        return 1
    inside = [sys.executable, os.path.abspath(__file__), "--inside"]
    # Made here, where it can be removed when the namespace has gone; inside, a tmpfs lies over it.
    with tempfile.TemporaryDirectory(prefix="oci-gpu-hook-demo-") as scratch:
        if os.access(DRIVER, os.R_OK):
            return on_this_host([*inside, "real", scratch])
        command = [sys.executable, NODE, "--description", DESCRIPTION, "--", *inside, "simulated", scratch]
        return subprocess.run(command).returncode


def on_this_host(command: list[str]) -> int:
    made = not os.path.isdir(SAVED)
    if made:
        os.mkdir(SAVED, 0o755)
    try:
        return subprocess.run(["unshare", "--mount", "--propagation", "private", *command]).returncode
    finally:
        if made:
            os.rmdir(SAVED)


def inside(kind: str, scratch: str) -> int:
    """The demo itself, in its own mount namespace."""
    output_of("mount", "-t", "tmpfs", "tmpfs", scratch)
    if kind == "real":
        # Throw-away layers over the two places that installing and running the hook write to.
        sys.path.insert(0, ROOT)
        from tests.gpunode.layers import Layer

        Layer("/usr", scratch).mount()
        output_of("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", SAVED)
    runtime = shutil.which("runc") or shutil.which("crun")
    if not runtime:
        raise Failure("there is neither runc nor crun here")
    title, installed = install()
    inventory = json.loads(output_of(COMMAND, "inventory", "refresh", "--json"))
    gpus = [Gpu(gpu["nvml_index"], gpu["uuid"], gpu["model"]) for gpu in inventory["gpus"]]
    if not gpus:
        raise Failure("the NVIDIA driver of this host drives no GPU")
    # Never all, where there is more than one.
    asked = [gpus[1], gpus[5]] if len(gpus) > 5 else gpus[:1]
    introduce(kind, runtime, str(inventory["driver_version"]), gpus)
    tell(installed, title)
    container = Container(scratch, runtime, kind, asked)
    before = show(container)
    plan = output_of(COMMAND, "plan", "--bundle", container.bundle, "--id", NAME)
    tell(shortened(plan), "What the hook put in, as 'oci-gpu-hook plan' tells it")
    return verdict(asked, before, container.run("nvidia-smi -L", hooked=True))


def install() -> tuple[str, str]:
    """What was done, and what `make install` says; it leaves a list where it was, and a package none."""
    if os.path.exists(COMMAND) and not os.path.exists(f"{LIBRARY}/installed-folders"):
        return "Installed already, by a package", f"{REGISTRATION} is there"
    installed = output_of("make", "--silent", "--no-print-directory", "-C", ROOT, "install", f"PYTHON={PYTHON}")
    return "Installed, in a throw-away layer over this machine", installed


def introduce(kind: str, runtime: str, driver: str, gpus: list[Gpu]) -> None:
    print("oci-gpu-hook: a container gets its GPUs")
    models = [gpu.model for gpu in gpus]
    counted = " and ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    where = "this host's own NVIDIA driver" if kind == "real" else "no NVIDIA driver here, so a simulated node"
    tell(f"node      {where}: {counted}, driver {driver}")
    tell(f"runtime   {output_of(runtime, '--version').splitlines()[0]}")


class Container:
    """One bundle, run with and without the registered hook."""

    def __init__(self, scratch: str, runtime: str, kind: str, asked: list[Gpu]) -> None:
        self.bundle = f"{scratch}/bundle"
        self.runtime = [runtime, "--root", f"{scratch}/state"]
        self.simulated = kind == "simulated"
        self.request = ",".join(str(gpu.number) for gpu in asked)
        make_root(f"{self.bundle}/rootfs")
        output_of(runtime, "spec", "--bundle", self.bundle)
        with open(f"{self.bundle}/config.json", encoding="utf-8") as file:
            self.config: dict[str, Any] = json.load(file)
        self.config["process"]["terminal"] = False
        words = (f"VISIBLE_DEVICES={self.request}", "DRIVER_CAPABILITIES=utility,compute")
        self.config["process"]["env"] += [f"NVIDIA_{word}" for word in words]
        # A network is nothing to this container, and making one takes longer than the hook does.
        self.config["linux"]["namespaces"] = [n for n in self.config["linux"]["namespaces"] if n["type"] != "network"]

    def run(self, script: str, *, hooked: bool) -> str:
        """Everything that a shell script in the container prints."""
        self.config["process"]["args"] = ["sh", "-c", f"exec 2>&1\n{script}"]
        self.config["hooks"] = hooks([SIMULATION] * self.simulated + [REGISTRATION] * hooked)
        with open(f"{self.bundle}/config.json", "w", encoding="utf-8") as file:
            json.dump(self.config, file)
        return output_of(*self.runtime, "run", "--bundle", self.bundle, NAME)


def hooks(registrations: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The `hooks` of config.json, as an engine makes them of registration files: oci-hooks(5)."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in registrations:
        with open(path, encoding="utf-8") as file:
            registration = json.load(file)
        if registration["when"] != {"always": True}:
            raise Failure(f"{path} has a condition that this demo does not know")
        for stage in registration["stages"]:
            found.setdefault(stage, []).append(registration["hook"])
    return found


def make_root(root: str) -> None:
    """A small glibc image out of this host's own programs; nothing of NVIDIA's is in it."""
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "dev", "proc", "sys", "tmp"):
        os.makedirs(f"{root}/{folder}")
    for name in ("bin", "sbin", "lib", "lib64"):
        os.symlink(f"usr/{name}", f"{root}/{name}")
    wanted = []
    for program in PROGRAMS:
        path = shutil.which(program, path="/usr/bin:/usr/sbin:/bin:/sbin")
        if not path:
            raise Failure(f"this host has no {program}")
        shutil.copy(path, f"{root}/usr/bin/{program}")
        wanted += libraries_of(path)
    libc = next(os.path.dirname(path) for path in wanted if path.endswith("/libc.so.6"))
    wanted += [f"{libc}/{name}" for name in GLIBC if os.path.exists(f"{libc}/{name}")]
    for path in sorted(set(wanted)):
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        shutil.copy(path, root + path)
    output_of("ldconfig", "-r", root)


def libraries_of(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True)
    return re.findall(r"(/\S+) \(0x", listed.stdout)


def show(container: Container) -> str:
    """The container without and with the hook, by the same questions; gives the first answer."""
    script = "\n".join(f"echo; echo {shlex.quote('$ ' + question)}; {question}" for question in QUESTIONS) + "\n:"
    before = container.run(script, hooked=False)
    title = f"A container that asks for NVIDIA_VISIBLE_DEVICES={container.request}, no hook registered"
    tell(before.strip("\n"), title)
    title = f"The same container, its hook taken from {REGISTRATION}"
    tell(container.run(script, hooked=True).strip("\n"), title)
    return before


def shortened(plan: str) -> str:
    """Long groups cut to their first lines."""
    groups = []
    for group in plan.rstrip("\n").split("\n\n"):
        lines = group.split("\n")
        left_out = len(lines) - 1 - SHOWN_LINES
        if left_out > 1:
            lines[1 + SHOWN_LINES :] = [f"  ... and {left_out} more"]
        groups.append("\n".join(lines))
    return "\n".join(groups)


def verdict(asked: list[Gpu], before: str, listed: str) -> int:
    found = re.findall(r"GPU-[0-9a-f-]{36}", listed)
    words = " and ".join(f"GPU {gpu.number} ({gpu.uuid})" for gpu in asked)
    print()
    if "GPU-" in before or sorted(found) != sorted(gpu.uuid for gpu in asked):
        print(f"failed: nvidia-smi in the container should list {words} alone:\n{listed}")
        return 1
    print(f"ok: with the hook the container's nvidia-smi lists {words} as allowed, and no other")
    return 0


def start() -> int:
    try:
        if sys.argv[1:2] == ["--inside"]:
            return inside(*sys.argv[2:])
        return main()
    except Failure as failure:
        print(f"make demo: {failure}", file=sys.stderr)
    except BrokenPipeError:
        # No program reads on, as in `make demo | head`; nor may the interpreter try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


if __name__ == "__main__":
    sys.exit(start())
