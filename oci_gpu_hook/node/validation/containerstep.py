# SPDX-License-Identifier: Apache-2.0
"""The step ``hook``: a throw-away container through the host's runtime, looked at from outside while it is held.

Its root is empty, and its one program is the host's dynamic loader, which needs no library.  Between the runtime's
``create`` and ``start`` the hook has run, as it is registered, and the program has not.  Must leave nothing behind.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any, Callable

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT
from oci_gpu_hook.driver.survey import list_gpus
from oci_gpu_hook.errors import ApplyError, ConfigError, HookError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.diagnosis import Finding, failed, passed
from oci_gpu_hook.node.diagnosis.remedy import DOCTOR, NOTHING, in_words
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.engines.containers import Running
from oci_gpu_hook.node.machine import childprocess, foreignfile, libselinux
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings

# What is seen of a container that runs, by the file of its hook's settings.
Look = Callable[[Running, str], list[Finding]]

_CHECK = "container"
_PROGRAM = "/ld.so"
_CAPABILITIES = ("compute", "utility")
_LABEL = "system_u:object_r:container_file_t:s0"
_PROGRAM_LABEL = "system_u:object_r:bin_t:s0"
_LARGEST_TEXT = 4096
_ENDING_SECONDS = 10
_WORDS = {"True": "yes", "False": "no"}


def runtime(named: str) -> str:
    """The runtime by its path or name; "" is the first runc of PATH, else the first crun.  ConfigError for none."""
    for name in (named,) if named else ("runc", "crun"):
        if found := shutil.which(name):
            return os.path.abspath(found)
    seen = f"the runtime {named} is not a program" if named else "neither runc nor crun is in PATH"
    raise ConfigError(seen, "install one, or see 'runtime' in the settings")


def run(host: HostRoot, settings: Settings, program: str, seconds: float, look: Look) -> list[Finding]:
    """program: the runtime; seconds: how long each call of the runtime may take."""
    try:
        with _Container(program, seconds) as made:
            registration = _prepare(host, made.folder, settings, made.config)
            pid = made.create()
            running = Running(made.id, pid, made.folder, os.path.basename(program))
            # It is gone before anybody can fix it: what is wrong is the host's.
            seen = [item._replace(remedy=DOCTOR if item.remedy else NOTHING) for item in look(running, made.config)]
            return [passed("registration", registration), *seen, *_gpus(host, pid), made.start(pid)]
    except HookError as err:
        return [failed(_CHECK, err.message, in_words(err.hint) if err.hint else DOCTOR)]
    except OSError as err:
        return [failed(_CHECK, f"it cannot be made: {err.strerror or err}", DOCTOR)]


class _Container:
    """One that is still to be made; signals wait until what was made of it is removed."""

    def __init__(self, runtime: str, seconds: float) -> None:
        self._runtime, self._seconds = runtime, seconds
        self.folder = tempfile.mkdtemp(prefix="oci-gpu-hook-validate-", dir="/run")
        self.id, self.config = os.path.basename(self.folder), f"{self.folder}/settings"

    def __enter__(self) -> _Container:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete it; if the runtime does not, end its processes and remove its cgroups, of either version."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        self._seconds = min(_ENDING_SECONDS, self._seconds)
        try:
            with suppress(HookError, OSError):
                self._call("delete", "--force", self.id)
            for cgroup in (*glob(f"{CGROUP_ROOT}/{self.id}"), *glob(f"{CGROUP_ROOT}/*/{self.id}")):
                _remove_cgroup(cgroup)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def create(self) -> int:
        self._call("create", "--bundle", self.folder, "--pid-file", f"{self.folder}/pid", self.id, output="output")
        return int(_said(f"{self.folder}/pid"))

    def start(self, pid: int) -> Finding:
        with closing(os.pidfd_open(pid)) as process:
            self._call("start", self.id)
            if not select.select([process], [], [], self._seconds)[0]:
                raise ApplyError(f"its program did not end within {self._seconds:g} seconds")
        said = _said(f"{self.folder}/output")
        if not said.startswith("ld.so"):
            raise ApplyError(f"its program did not run: {said or 'it printed nothing'}")
        return passed(_CHECK, f"{self._runtime} made it, and its program ran")

    def _call(self, *words: str, output: str = "stdout") -> None:
        """ApplyError if it fails or takes too long.  The container would hold a pipe open: both print to files."""
        errors = f"{self.folder}/stderr"
        # With a log beside it runc's stderr has no more than the sentence.
        options = ("--root", f"{self.folder}/state", "--log", f"{self.folder}/log")
        name = f"{os.path.basename(self._runtime)} {words[0]}"
        with open(errors, "wb") as stderr, open(f"{self.folder}/{output}", "wb") as stdout:
            every, none, at = [self._runtime, *options, *words], subprocess.DEVNULL, self.folder
            process = subprocess.Popen(every, stdin=none, stdout=stdout, stderr=stderr, cwd=at, start_new_session=True)
            try:
                code = process.wait(self._seconds)
            except BaseException as err:
                os.killpg(process.pid, signal.SIGKILL)
                childprocess.end(process)
                if isinstance(err, subprocess.TimeoutExpired):
                    raise ApplyError(f"{name} did not end within {self._seconds:g} seconds") from None
                raise
        if code:
            said = _said(errors).removeprefix(f"{name} failed: ")
            raise ApplyError(f"{name} failed: {said or f'it ended with {code}'}")


def _prepare(host: HostRoot, folder: str, settings: Settings, config: str) -> str:
    """Write the bundle; gives the registration of its hook."""
    os.mkdir(f"{folder}/rootfs", 0o755)
    # A copy: not every runtime's domain, in which its process stays, may start the host's own.
    program = f"{folder}/program"
    shutil.copy(_loader(), program)
    # As what engines keep in /run, which runtimes may use.
    engines = libselinux.of_engines(host)
    if engines:
        for path, label in ((folder, engines), (f"{folder}/rootfs", _LABEL), (program, _PROGRAM_LABEL)):
            os.setxattr(path, "security.selinux", f"{label}\0".encode())
    registration = _registration(host)
    hook = json.loads(foreignfile.read_file(host, registration) or b"{}")["hook"]
    Path(config).write_text(uncounted(settings), encoding="utf-8")
    hook["args"] = [*hook.get("args", ()), "--config", config]
    document = configuration(os.path.basename(folder), settings, program, _LABEL if engines else "")
    document["hooks"] = {"createRuntime": [hook]}
    Path(folder, "config.json").write_text(json.dumps(document), encoding="utf-8")
    return registration


def uncounted(settings: Settings) -> str:
    """As a file, for a container that takes no GPU from another, and tests those that are not healthy."""
    found = settings._replace(gpu_holders=0, gpu_memory="off", unhealthy="give")._asdict()
    # An empty list allows nothing, and an empty text says nothing.
    rows = [(key, it) for key in settingsfile.KINDS if (it := found[key.replace("-", "_")]) != ""]
    texts = [(key, ", ".join(it) if isinstance(it, tuple) else _WORDS.get(str(it), str(it))) for key, it in rows]
    return "".join([f"{key} = {text}\n" for key, text in texts])


def configuration(id: str, settings: Settings, program: str, label: str) -> dict[str, Any]:
    """The container's config.json without hooks; program: the host's file; label: of its files, "" for none."""
    allowed = settings.allowed_capabilities
    capabilities = [word for word in _CAPABILITIES if word in allowed] or allowed[:1]
    must_be_privileged = settings.accept_environment != "always"
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [_PROGRAM, "--version"],
            # youki starts no program without PATH.
            "env": ["PATH=/", "NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={','.join(capabilities)}"],
            "cwd": "/",
            "capabilities": {"bounding": ["CAP_SYS_ADMIN"] if must_be_privileged else []},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs"},
        "mounts": [
            _mount("proc", "/proc", "proc"),
            _mount("tmpfs", "/dev", "tmpfs", "nosuid", "mode=755", "size=65536k"),
            _mount("tmpfs", "/dev/shm", "shm", "nosuid", "noexec", "nodev", "mode=1777"),
            _mount("mqueue", "/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
            # /run may be noexec.
            _mount("bind", _PROGRAM, program, "bind", "ro", "exec"),
        ],
        "linux": {
            "cgroupsPath": f"/{id}",
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            **({"mountLabel": label} if label else {}),
        },
    }


def _mount(kind: str, destination: str, source: str, *options: str) -> dict[str, Any]:
    return {"type": kind, "destination": destination, "source": source, "options": list(options)}


def _loader() -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith("ld"):
                return f"/{path}"
    raise ApplyError("the host's dynamic loader is not found")


def _registration(host: HostRoot) -> str:
    engines = installed.installed(host)
    found = installed.of_engines(host, engines)
    taken = [item for engine in engines for item in installed.effective(engine, found)] if engines else found
    if broken := [item for item in taken if item.fault]:
        raise ApplyError(f"{broken[0].path} stops every container: {broken[0].fault}")
    ours = [item for item in taken if item.kind == installed.OURS and "createRuntime" in item.stages]
    if not ours:
        raise ApplyError("the hook is not registered with any engine")
    return ours[-1].path


def _gpus(host: HostRoot, pid: int) -> list[Finding]:
    inside = foreignfile.ContainerRoot(host, pid)
    with closing(inside.fd):
        names = [name[6:] for name in inside.names("/dev") if name.startswith("nvidia")]
    found = {int(word) for word in names if word.isdecimal()}
    wanted = {gpu.minor for gpu in list_gpus(host)}
    if found == wanted:
        return [passed("GPUs", f"the container has the nodes of all {len(wanted)}")]
    wrong = [f"lacks /dev/nvidia{minor}" for minor in sorted(wanted - found)]
    wrong += [f"has /dev/nvidia{minor}, which is not a GPU's" for minor in sorted(found - wanted)]
    return [failed("GPUs", f"the container {it}", DOCTOR) for it in wrong]


def _remove_cgroup(cgroup: str) -> None:
    with suppress(OSError), open(f"{cgroup}/cgroup.procs", encoding="ascii") as file:
        for word in file.read().split():
            os.kill(int(word), signal.SIGKILL)
    for _ in range(20):
        with suppress(OSError):
            os.rmdir(cgroup)
        if not os.path.exists(cgroup):
            break
        time.sleep(0.05)


def _said(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return " ".join(file.read(_LARGEST_TEXT).split())
