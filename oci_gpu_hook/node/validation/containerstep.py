# SPDX-License-Identifier: Apache-2.0
"""The step ``hook``: a throw-away container through the host's runtime, looked at from outside while it is held.

It needs no image: its root is empty, and its one program is the host's dynamic loader, which needs no library.  Between
the runtime's ``create`` and ``start`` the hook has run and the program has not.  The hook gets into config.json as
oci-gpu-runtime adds it.  Must leave nothing behind, whatever happens.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.errors import ConfigError, HookError, plain
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import FAIL, PASS, Finding
from oci_gpu_hook.node.diagnosis.remedy import DOCTOR, NOTHING, in_words
from oci_gpu_hook.node.engines import installed, registrations
from oci_gpu_hook.node.engines.containerrecords import Running
from oci_gpu_hook.node.machine import closing, libselinux
from oci_gpu_hook.node.machine.untrusted import ContainerRoot
from oci_gpu_hook.runtime import create as entry

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHECK = "container"
_PROGRAM = "/ld.so"
_CAPABILITIES = ("compute", "utility")
_LABEL = "system_u:object_r:container_file_t:s0"
_PROGRAM_LABEL = "system_u:object_r:bin_t:s0"
_LARGEST_TEXT = 1 << 16
_CGROUPS = "/sys/fs/cgroup"
_RUN = "/run"
_OUTPUT = "output"
_ENDING_SECONDS = 10
_KILLED_SECONDS = 1


class Asked(NamedTuple):
    """What the container is to have.

    runtime: the program; config: the administrator's file for the hook, None for the usual one; capabilities: of the
    request; is_privileged: whether the settings want that of a container that asks; gpus: the kernel's; seconds: how
    long each call of the runtime may take.
    """

    runtime: str
    config: str | None
    capabilities: tuple[str, ...]
    is_privileged: bool
    gpus: tuple[Gpu, ...]
    seconds: float


class _Failed(Exception):
    """The runtime has not done what it was asked; the sentence says why."""


def runtime(named: str) -> str:
    """The runtime by its path or name; "" is the first runc of PATH, else the first crun.  ConfigError for none."""
    for name in (named,) if named else ("runc", "crun"):
        found = shutil.which(name)
        if found:
            return os.path.abspath(found)
    if named:
        raise ConfigError(f"the runtime {named} is no program", "see 'runtime' in the settings")
    raise ConfigError("neither runc nor crun is in PATH", "install one, or set 'runtime'")


def capabilities(allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The driver capabilities to ask for, of those that the administrator allows."""
    return tuple([word for word in _CAPABILITIES if word in allowed]) or allowed[:1]


def run(root: HostRoot, asked: Asked, look: Callable[[Running], list[Finding]]) -> list[Finding]:
    """Make the container, have it looked at, let its program run, and remove it all."""
    try:
        with _folder(root) as folder:
            id = os.path.basename(folder)
            registration = _prepare(root, folder, id, asked)
            with _created(asked, folder, id) as pid:
                running = Running(id, pid, folder, os.path.basename(asked.runtime))
                seen = [_without_remedy(item) for item in look(running)]
                return [
                    Finding("registration", PASS, registration),
                    *seen,
                    *_gpus(root, pid, asked.gpus),
                    _started(asked, folder, id, pid),
                ]
    except _Failed as err:
        return [Finding(_CHECK, FAIL, str(err), DOCTOR)]
    except HookError as err:
        return [Finding(_CHECK, FAIL, err.message, in_words(err.hint) if err.hint else DOCTOR)]
    except OSError as err:
        return [Finding(_CHECK, FAIL, f"it cannot be made: {err.strerror or err}", DOCTOR)]


def config(id: str, asked: Asked, program: str, label: str) -> dict[str, Any]:
    """The container's config.json without hooks; program: the host's file; label: of its files, "" for none."""
    bounding = ["CAP_SYS_ADMIN"] if asked.is_privileged else []
    linux = {
        "cgroupsPath": f"/{id}",
        "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
    }
    if label:
        linux["mountLabel"] = label
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [_PROGRAM, "--version"],
            "env": [
                "PATH=/usr/bin:/bin",
                "NVIDIA_VISIBLE_DEVICES=all",
                f"NVIDIA_DRIVER_CAPABILITIES={','.join(asked.capabilities)}",
            ],
            "cwd": "/",
            "capabilities": {"bounding": bounding},
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
        "linux": linux,
    }


def _mount(kind: str, destination: str, source: str, *options: str) -> dict[str, Any]:
    return {"type": kind, "destination": destination, "source": source, "options": list(options)}


@contextmanager
def _folder(root: HostRoot) -> Iterator[str]:
    """A folder of its own for bundle and state, labelled as what engines keep in /run, which runtimes may use."""
    folder = tempfile.mkdtemp(prefix="oci-gpu-hook-validate-", dir=_RUN)
    try:
        _label(folder, libselinux.of_engines(root))
        yield folder
    finally:
        with _unbroken():
            shutil.rmtree(folder, ignore_errors=True)


def _prepare(root: HostRoot, folder: str, id: str, asked: Asked) -> str:
    """Write the bundle; gives the registration whose hook is in it."""
    os.mkdir(f"{folder}/rootfs", 0o755)
    # A copy: not every runtime's domain, in which its process stays, may start the host's own.
    program = f"{folder}/program"
    shutil.copyfile(_loader(), program)
    os.chmod(program, 0o755)
    label = _LABEL if libselinux.of_engines(root) else ""
    _label(f"{folder}/rootfs", label)
    _label(program, _PROGRAM_LABEL if label else "")
    file = f"{folder}/config.json"
    _write(file, config(id, asked, program, label))
    registration = _registration(root)
    entry.add_hook(file, registration)
    if asked.config is not None:
        with open(file, encoding="utf-8") as stream:
            document = json.load(stream)
        [hook] = document["hooks"]["createRuntime"]
        hook["args"] += ["--config", os.path.abspath(asked.config)]
        _write(file, document)
    return registration


def _label(path: str, label: str) -> None:
    if label:
        os.setxattr(path, "security.selinux", f"{label}\0".encode())


def _write(path: str, document: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)


def _loader() -> str:
    """The host's dynamic loader: the one that has loaded this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith("ld"):
                return f"/{path}"
    raise _Failed("the host's dynamic loader is not found")


def _registration(root: HostRoot) -> str:
    """The file that registers our hook with engines."""
    found = registrations.of_engines(root, installed.installed(root))
    ours = [item for item in found if item.kind == registrations.OURS and "createRuntime" in item.stages]
    if not ours:
        raise _Failed("the hook is not registered with any engine")
    return max(ours, key=lambda item: item.folder).path


@contextmanager
def _created(asked: Asked, folder: str, id: str) -> Iterator[int]:
    """The created container: the pid of its process."""
    try:
        _call(asked, folder, ("create", *_bundle(folder), id), _OUTPUT)
        with open(f"{folder}/pid", encoding="ascii") as file:
            pid = int(file.read())
        yield pid
    finally:
        with _unbroken():
            _delete(asked, folder, id)


@contextmanager
def _unbroken() -> Iterator[None]:
    """Signals wait until what was made is removed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _bundle(folder: str) -> tuple[str, ...]:
    return "--bundle", folder, "--pid-file", f"{folder}/pid"


def _started(asked: Asked, folder: str, id: str, pid: int) -> Finding:
    """Whether its program runs, and says what a dynamic loader says."""
    process = os.pidfd_open(pid)
    try:
        _call(asked, folder, ("start", id))
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if not poll.poll(asked.seconds * 1000):
            raise _Failed(f"its program did not end within {asked.seconds:g} seconds")
    finally:
        os.close(process)
    said = _read(f"{folder}/{_OUTPUT}")
    if not said.startswith(b"ld.so"):
        raise _Failed(f"its program did not run: {_shown(said) or 'it printed nothing'}")
    return Finding(_CHECK, PASS, f"{asked.runtime} made it, and its program ran")


def _gpus(root: HostRoot, pid: int, gpus: tuple[Gpu, ...]) -> list[Finding]:
    """Whether it has the nodes of exactly the GPUs that the kernel has."""
    inside = ContainerRoot(root, pid)
    with closing(inside.fd):
        names = [name[6:] for name in inside.names("/dev") if name.startswith("nvidia")]
    found = {int(word) for word in names if word.isdecimal()}
    wanted = {gpu.minor for gpu in gpus}
    if found == wanted:
        return [Finding("GPUs", PASS, f"the container has the nodes of all {len(wanted)}")]
    missing, others = sorted(wanted - found), sorted(found - wanted)
    wrong = [f"the container lacks /dev/nvidia{minor}" for minor in missing]
    wrong += [f"the container has /dev/nvidia{minor}, which is no GPU's" for minor in others]
    return [Finding("GPUs", FAIL, sentence, DOCTOR) for sentence in wrong]


def _without_remedy(item: Finding) -> Finding:
    """The container is gone before anybody can fix it: what is wrong is the host's."""
    return item._replace(remedy=DOCTOR if item.remedy else NOTHING)


def _call(asked: Asked, folder: str, words: tuple[str, ...], output: str = "stdout") -> None:
    """Call the runtime, whose states are in our folder; _Failed if it fails or takes too long.

    What it and the container print are files: a pipe would stay open as long as the container has it.
    """
    log, errors = f"{folder}/log", f"{folder}/stderr"
    options = ("--root", f"{folder}/state", "--log", log, "--log-format", "json")
    name = f"{os.path.basename(asked.runtime)} {words[0]}"
    with open(errors, "wb") as stderr, open(f"{folder}/{output}", "wb") as stdout:
        process = subprocess.Popen(
            [asked.runtime, *options, *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            start_new_session=True,
        )
        try:
            code = process.wait(asked.seconds)
        except BaseException as err:
            os.killpg(process.pid, signal.SIGKILL)
            # One that hangs in the kernel is left to init.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_SECONDS)
            if isinstance(err, subprocess.TimeoutExpired):
                raise _Failed(f"{name} did not end within {asked.seconds:g} seconds") from None
            raise
    if code:
        why = _logged(log) or _shown(_read(errors)) or f"it ended with {code}"
        raise _Failed(plain(f"{name} failed: {why}"))


def _logged(log: str) -> str:
    """The last error in a runtime's log."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = [json.loads(line) for line in file.read(_LARGEST_TEXT).splitlines() if line]
        said = [str(line["msg"]) for line in lines if line.get("level") in ("error", "fatal")]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ""
    return " ".join(said[-1].split()) if said else ""


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_LARGEST_TEXT)


def _shown(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return plain(lines[-1]) if lines else ""


def _delete(asked: Asked, folder: str, id: str) -> None:
    """Delete the container; if the runtime does not, end its processes and remove its cgroups."""
    try:
        seconds = min(_ENDING_SECONDS, asked.seconds)
        _call(asked._replace(seconds=seconds), folder, ("delete", "--force", id))
    except (_Failed, OSError):
        pass
    for cgroup in _cgroups(id):
        _kill(cgroup)
        for _ in range(20):
            try:
                os.rmdir(cgroup)
                break
            except OSError as err:
                if err.errno != errno.EBUSY:
                    break
                time.sleep(0.05)


def _cgroups(id: str) -> list[str]:
    """The container's cgroups that are left, of either version."""
    try:
        controllers = os.listdir(_CGROUPS)
    except OSError:
        return []
    paths = [f"{_CGROUPS}/{id}", *[f"{_CGROUPS}/{name}/{id}" for name in controllers]]
    return [path for path in paths if os.path.isdir(path)]


def _kill(cgroup: str) -> None:
    try:
        with open(f"{cgroup}/cgroup.procs", encoding="ascii") as file:
            for word in file.read().split():
                os.kill(int(word), signal.SIGKILL)
    except OSError:
        pass
