# SPDX-License-Identifier: Apache-2.0
"""``doctor --container``: why the GPU of one running container does or does not work.

Looks at the container from outside, below its root as one descriptor; opens its nodes from its own device cgroup, in a
process of its own that enters it, takes the container's user, and ends.  Starts no program, and nothing of the image.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import time
from typing import TYPE_CHECKING

from oci_gpu_hook import config as settings_of
from oci_gpu_hook import decision, hook, ipc, ldso, oci, request, sources
from oci_gpu_hook.diagnosis import FAIL, PASS, WARN, Finding
from oci_gpu_hook.diagnosis import container as judged
from oci_gpu_hook.errors import BundleError, HookError, UsageError
from oci_gpu_hook.host import kernel, libselinux, running
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import Device, Mount, mount_paths

if TYPE_CHECKING:
    from oci_gpu_hook.config import Config
    from oci_gpu_hook.host.running import Running
    from oci_gpu_hook.operations import Operation

_OPEN_SECONDS = 30
# The child writes at once what it has to say, which PIPE_BUF (pipe(7)) keeps whole.
_LARGEST_ANSWER = 1 << 16
_CACHE = "/etc/ld.so.cache"


def container(host: HostRoot, word: str, config: str | None) -> list[Finding]:
    """What is to say of the container that `word` names."""
    found = running.find(host, word)
    if not running.is_contained(found.pid):
        raise UsageError(
            f"the process {found.pid} is in no container: it sees the host's own mounts"
        )
    root = HostRoot(f"/proc/{found.pid}/root")
    restart = _restart(found)
    process = Finding("container", PASS, f"{found.id or 'of no known id'}, process {found.pid}")
    findings, operations = _wanted(host, root, found, config)
    if operations is None:
        if any([item.level == FAIL for item in findings]):
            return [process, *findings]
        seen = _seen(host, root, found.pid, ())
        return [process, *findings, *judged.opened_by_others(seen, restart)]
    seen = _seen(host, root, found.pid, operations)
    return [process, *findings, *judged.judge(operations, seen, restart)]


def _wanted(
    host: HostRoot, root: HostRoot, found: Running, config: str | None
) -> tuple[list[Finding], tuple[Operation, ...] | None]:
    """What it asks for, and what the hook would give it; None where it asks for nothing, or cannot be given it."""
    try:
        bundle = _bundle(host, found)
        inputs = hook.inputs_of(bundle, {})
        settings = settings_of.read(*hook.settings_file(config), inputs.annotations)
        asked, notes = _asked(bundle, inputs, settings)
        if asked is None:
            why = "".join([f"; {note}" for note in notes])
            text = f"it asks for no GPU: NVIDIA_VISIBLE_DEVICES names none{why}"
            return [
                Finding("request", WARN, text, "podman run --env NVIDIA_VISIBLE_DEVICES=all ...")
            ], None
        plan, _ = decision.decide(bundle, asked, settings, host, root.fd, id=found.id, pid=None)
    except HookError as err:
        return [Finding("request", FAIL, err.message, err.hint or "oci-gpu-hook doctor")], None
    text = f"{','.join(asked.devices)} with {','.join(asked.capabilities)}, by {asked.source}"
    return [Finding("request", PASS, text)], plan.operations


def _asked(
    bundle: oci.Bundle, inputs: sources.Inputs, settings: Config
) -> tuple[request.Request | None, tuple[str, ...]]:
    """As the hook reads it: where our CDI spec starts the hook, it asks by its nodes."""
    hooks = bundle.document.get("hooks")
    listed = hooks.get("createRuntime") if isinstance(hooks, dict) else None
    for item in listed if isinstance(listed, list) else ():
        words = item.get("args") if isinstance(item, dict) else None
        if isinstance(words, list) and "--cdi" in words[:-1]:
            capabilities = str(words[words.index("--cdi") + 1]).split(",")
            return request.of_nodes(inputs, settings, oci.linux_devices(bundle), capabilities)
    return request.parse(inputs, settings)


def _bundle(host: HostRoot, found: Running) -> oci.Bundle:
    """The bundle that it was started from; where that is not known, or gone, what its process was started with."""
    if found.bundle:
        try:
            return oci.read_bundle(f"{host.path.rstrip('/')}{found.bundle}")
        except BundleError:
            pass
    environment = running.environment(host, found.pid)
    return oci.Bundle("", {"process": {"env": environment}, "root": {"path": "/"}})


def _seen(
    host: HostRoot, root: HostRoot, pid: int, operations: tuple[Operation, ...]
) -> judged.Seen:
    nodes = [item.path for item in operations if isinstance(item, Device)]
    if not operations:
        nodes = [f"/dev/{name}" for name in root.names("/dev") if name.startswith("nvidia")]
    numbers = {path: _numbers(root, path) for path in nodes}
    present = [path for path, device in numbers.items() if device is not None]
    mounts = [item for item in operations if isinstance(item, Mount)]
    folders = {path.rpartition("/")[0] for item in mounts for path in mount_paths(item)}
    with_selinux = libselinux.is_there(host)
    return judged.Seen(
        nodes=numbers,
        opened=_opened(host, root, pid, present) if present else {},
        names={folder: _filled(root, folder) for folder in folders},
        cached=_cached(root),
        process_label=_text(host.read(f"/proc/{pid}/attr/current")) if with_selinux else "",
        shm_label=_label(root, "/dev/shm") if with_selinux else "",
    )


def _opened(host: HostRoot, root: HostRoot, pid: int, paths: list[str]) -> dict[str, int] | None:
    """errno of each open, made in the container's device cgroup as its user; None where that cannot be entered."""
    cgroup = running.device_cgroup(host, pid, kernel.look(host).cgroups)
    # Who enters a frozen cgroup stops there.
    if not cgroup or _text(host.read(f"{cgroup}/cgroup.freeze")) == "1":
        return None
    who = running.credentials(host, pid)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _open_all(root, cgroup, who, paths, writer)
        finally:
            os._exit(1)
    os.close(writer)
    try:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        said = os.read(reader, _LARGEST_ANSWER) if poll.poll(_OPEN_SECONDS * 1000) else b""
    finally:
        os.close(reader)
        _end(child)
    return json.loads(said) if said else None


def _end(child: int) -> None:
    """Kill the child; one that a hanging GPU holds in the kernel cannot be waited for, and is left to init."""
    os.kill(child, signal.SIGKILL)
    for _ in range(20):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.05)


def _open_all(
    root: HostRoot,
    cgroup: str,
    who: tuple[int, int, list[int]],
    paths: list[str],
    writer: int,
) -> None:
    """In the child: enter, become the container's user, open, tell."""
    user, group, groups = who
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write("0")
    os.setgroups(groups)
    os.setgid(group)
    os.setuid(user)
    told = {}
    for path in paths:
        try:
            status = root.stat(path)
            # MIG's capability devices are for reading only, and so their programs open them.
            access = os.O_RDWR if status and status.st_mode & 0o222 else os.O_RDONLY
            os.close(root.open(path, access | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
            told[path] = 0
        except OSError as err:
            told[path] = err.errno or 0
    os.write(writer, json.dumps(told).encode())


def _numbers(root: HostRoot, path: str) -> tuple[int, int] | None:
    status = root.stat(path)
    if status is None or not status.st_rdev:
        return None
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def _filled(root: HostRoot, folder: str) -> frozenset[str]:
    """The names in a folder, but for empty files: such are mount points that nothing is mounted on."""
    found = {name: root.stat(f"{folder}/{name}") for name in root.names(folder)}
    return frozenset([name for name, status in found.items() if status and status.st_size])


def _cached(root: HostRoot) -> frozenset[str] | None:
    try:
        entries = ldso.parse(root.read(_CACHE) or b"").entries
    except ldso.MalformedCache:
        return None
    return frozenset([entry.soname.decode("utf-8", "replace") for entry in entries])


def _label(root: HostRoot, path: str) -> str:
    try:
        fd = root.open(path)
    except OSError:
        return ""
    try:
        return ipc.label_of(fd)
    finally:
        os.close(fd)


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace").strip("\0\n ")


def _restart(found: Running) -> str:
    """The command that starts it anew, by whoever has started it."""
    if not found.runtime:
        return f"kill {found.pid}"
    if "/containers/storage/" in found.bundle:
        # A pod's container is started anew by the kubelet.
        return f"podman restart {found.id} || crictl stop {found.id}"
    bundle, id = shlex.quote(found.bundle), shlex.quote(found.id)
    return f"{found.runtime} delete --force {id} && {found.runtime} run --detach --bundle {bundle} {id}"
