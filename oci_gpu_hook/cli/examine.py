# SPDX-License-Identifier: Apache-2.0
"""``doctor --container``: why the GPU of one running container does or does not work.

It reads the container from outside, below a descriptor of its root.  To open the nodes it makes a child process, which
enters the container's device cgroup, becomes the container's user, and ends.  Starts no program, and nothing of the
image.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from oci_gpu_hook.container import ipc
from oci_gpu_hook.container.rootfs import Rootfs
from oci_gpu_hook.diagnosis import FAIL, PASS, WARN, Finding, advice
from oci_gpu_hook.diagnosis import container as judged
from oci_gpu_hook.driver.stamp import LD_SO_CACHE
from oci_gpu_hook.errors import BundleError, HookError, UsageError, quoted
from oci_gpu_hook.formats.ldcache import MalformedCache
from oci_gpu_hook.formats.ldcache_entries import parse as parse_cache
from oci_gpu_hook.host import containers, docker, kernel, libselinux
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations.device import Device
from oci_gpu_hook.operations.mount import Mount
from oci_gpu_hook.planning import decide
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.bundle import Bundle, read_bundle
from oci_gpu_hook.request.bycdi import of_nodes, of_vendor
from oci_gpu_hook.request.parse import Request, parse
from oci_gpu_hook.request.settings import read_settings
from oci_gpu_hook.vendors import current

if TYPE_CHECKING:
    from oci_gpu_hook.host.containers import Running
    from oci_gpu_hook.operations.operation import Operation
    from oci_gpu_hook.request.settings import Settings
    from oci_gpu_hook.request.vendors import Known

_SHORT_ID = 12
_OPEN_SECONDS = 30
# The child makes one write, which the pipe keeps whole (PIPE_BUF, pipe(7)).
_LARGEST_ANSWER = 1 << 16


def container(host: HostRoot, word: str, config: str | None) -> list[Finding]:
    """The findings about the container that `word` names."""
    return running(host, containers.find(host, word), config)


def running(host: HostRoot, found: Running, config: str | None) -> list[Finding]:
    """The findings about a container."""
    who = _patient(found)
    name = quoted(found.shown)[1:-1] or "of no known id"
    if not found.pid:
        raise UsageError(f"the container {name} does not run", advice.start(who))
    if not containers.is_contained(found.pid):
        raise UsageError(
            f"the process {found.pid} is in no container: it sees the host's own mounts"
        )
    root = HostRoot(f"/proc/{found.pid}/root")
    process = Finding("container", PASS, f"{name}{_by(found)}, process {found.pid}")
    findings, operations = _wanted(host, root, found, config)
    if operations is None:
        if any([item.level == FAIL for item in findings]):
            return [process, *findings]
        seen = _seen(host, root, found.pid, ())
        return [process, *findings, *judged.judge_without_request(seen, who)]
    seen = _seen(host, root, found.pid, operations)
    return [process, *findings, *judged.judge(operations, seen, who)]


def _patient(found: Running) -> advice.Patient:
    known = found.called
    word = known.full or known.name or found.id
    is_pods = bool(known.pod)
    return advice.Patient(
        known.engine, word, found.id, is_pods, found.pid, found.bundle, found.runtime
    )


def _by(found: Running) -> str:
    """The id where a name was shown, and who runs it."""
    id = (
        f" ({found.id[:_SHORT_ID]})"
        if found.id and found.called.shown not in ("", found.id)
        else ""
    )
    engine = found.called.engine or found.runtime
    return f"{id} of {engine}" if engine else id


def _wanted(
    host: HostRoot, root: HostRoot, found: Running, config: str | None
) -> tuple[list[Finding], tuple[Operation, ...] | None]:
    """The finding about its request, and the operations of its plan; None where there is no plan."""
    try:
        bundle = _bundle(host, found)
        inputs = docker.with_request(sources.inputs_of(bundle, {}), bundle, host.path)
        settings = read_settings(config, inputs.annotations)
        known = current.known(host, remember=False)
        request, notes = _request(bundle, inputs, settings, known)
        if request is None:
            return [_unasked(_patient(found), bundle, inputs, settings, notes, known)], None
        there = Rootfs(root.fd, ())
        plan, _ = decide.decide(bundle, request, settings, host, there, id=found.id, process=None)
    except HookError as err:
        return [Finding("request", FAIL, err.message, err.hint or "oci-gpu-hook doctor")], None
    return [Finding("request", PASS, _asked(request))], plan.operations


def _asked(request: Request) -> str:
    """The request in words, first NVIDIA's."""
    words = []
    if request.devices:
        capabilities = ",".join(request.capabilities)
        words.append(f"{','.join(request.devices)} with {capabilities}, by {request.source}")
    words += [f"{it.flag}={','.join(it.devices)}, by {it.source}" for it in request.vendors]
    return "; ".join(words)


def _unasked(
    who: advice.Patient,
    bundle: Bundle,
    inputs: sources.Inputs,
    settings: Settings,
    notes: tuple[str, ...],
    known: tuple[Known, ...] = (),
) -> Finding:
    """Why there is no request: nothing asks, or what asks is not accepted."""
    for key, was, instead in (
        (
            "accept-environment",
            settings.accept_environment,
            settings._replace(accept_environment="always"),
        ),
        ("accept-volume-mounts", "no", settings._replace(accept_volume_mounts=True)),
    ):
        if instead != settings and _would_ask(bundle, inputs, instead, known):
            text = f"it asks for a GPU, which {key} = {was} does not accept: {'; '.join(notes)}"
            return Finding("request", WARN, text, advice.accepted(who))
    why = "".join([f"; {note}" for note in notes])
    others = ", and no vendor's flag anything" if known else ""
    text = f"it asks for no GPU: NVIDIA_VISIBLE_DEVICES names none{others}{why}"
    return Finding("request", WARN, text, advice.ask(who))


def _would_ask(
    bundle: Bundle, inputs: sources.Inputs, settings: Settings, known: tuple[Known, ...]
) -> bool:
    try:
        return _request(bundle, inputs, settings, known)[0] is not None
    except HookError:
        return False


def _request(
    bundle: Bundle, inputs: sources.Inputs, settings: Settings, known: tuple[Known, ...]
) -> tuple[Request | None, tuple[str, ...]]:
    """The request, as the hook reads it: where CDI specs of ours start the hook, the container's nodes are requests."""
    asked, notes = parse(inputs, settings, known)
    nodes = bundle.device_paths()
    for _, words in bundle.hooks("createRuntime"):
        options = dict(zip(words, words[1:]))
        given: Request | None = None
        if "--cdi" in options:
            given, notes = of_nodes(inputs, settings, nodes, options["--cdi"].split(","))
        elif "--cdi-vendor" in options:
            given = of_vendor(options["--cdi-vendor"], known, nodes)
        if given and given.devices:
            asked = given._replace(vendors=asked.vendors if asked else ())
        elif given:
            asked = asked._replace(vendors=asked.vendors + given.vendors) if asked else given
    return asked, notes


def _bundle(host: HostRoot, found: Running) -> Bundle:
    """The bundle that it was started from; without one, a bundle with the environment of its process."""
    if found.bundle:
        try:
            return read_bundle(f"{host.path.rstrip('/')}{found.bundle}")
        except BundleError:
            pass
    environment = containers.environment(host, found.pid)
    return Bundle("", {"process": {"env": environment}, "root": {"path": "/"}})


def _seen(
    host: HostRoot, root: HostRoot, pid: int, operations: tuple[Operation, ...]
) -> judged.Seen:
    """What the container has of the things that the plan's operations give; of all nodes where there is no plan."""
    nodes = [item.path for item in operations if isinstance(item, Device)]
    if not operations:
        nodes = [f"/dev/{name}" for name in root.names("/dev") if name.startswith("nvidia")]
    numbers = {path: _numbers(root, path) for path in nodes}
    present = [path for path, device in numbers.items() if device is not None]
    mounts = [item for item in operations if isinstance(item, Mount)]
    folders = {path.rpartition("/")[0] for item in mounts for path in item.paths()}
    with_selinux = libselinux.is_there(host)
    cgroup = containers.device_cgroup(host, pid, kernel.look(host).cgroups)
    opened: dict[str, int] | None = {}
    unopened = _unopened(host, cgroup) if present else ""
    if unopened:
        opened = None
    elif present:
        opened, unopened = _opened(host, root, pid, present)
    return judged.Seen(
        nodes=numbers,
        opened=opened,
        unopened=unopened,
        names={folder: _filled(root, folder) for folder in folders},
        cached=_cached(root),
        process_label=_text(host.read(f"/proc/{pid}/attr/current")) if with_selinux else "",
        shm_label=_label(root, "/dev/shm") if with_selinux else "",
    )


def _unopened(host: HostRoot, cgroup: str) -> str:
    """Why no open can be tried: a word of `judged.UNOPENED`, or ""."""
    if not cgroup:
        return judged.NO_CGROUP
    # A process that enters a frozen cgroup is frozen, too.
    if _text(host.read(f"{cgroup}/cgroup.freeze")) == "1" or _is_frozen(host, cgroup):
        return judged.PAUSED
    return (
        "" if os.geteuid() == 0 or os.access(f"{cgroup}/cgroup.procs", os.W_OK) else judged.NO_ROOT
    )


def _is_frozen(host: HostRoot, cgroup: str) -> bool:
    """Whether the freezer of version 1 holds the container: its cgroup has the same path there."""
    freezer = cgroup.replace("/sys/fs/cgroup/devices/", "/sys/fs/cgroup/freezer/", 1)
    return _text(host.read(f"{freezer}/freezer.state")) in ("FROZEN", "FREEZING")


def _opened(
    host: HostRoot, root: HostRoot, pid: int, paths: list[str]
) -> tuple[dict[str, int] | None, str]:
    """errno of each open, tried as the container's user in its device cgroup; None and why where there is no answer."""
    cgroup = containers.device_cgroup(host, pid, kernel.look(host).cgroups)
    who = containers.credentials(host, pid)
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
        if not poll.poll(_OPEN_SECONDS * 1000):
            return None, judged.NO_ANSWER
        answer = os.read(reader, _LARGEST_ANSWER)
    finally:
        os.close(reader)
        _end(child)
    return (json.loads(answer), "") if answer else (None, judged.NO_ENTRY)


def _end(child: int) -> None:
    """Kill the child.  One that a hanging GPU holds in the kernel cannot be waited for: it is left to init."""
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
    """In the child: enter the cgroup, become the container's user, open each path, and write each errno."""
    user, group, groups = who
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write("0")
    os.setgroups(groups)
    os.setgid(group)
    os.setuid(user)
    errors = {}
    for path in paths:
        try:
            status = root.stat(path)
            # MIG's capability devices have no write permission: programs open them for reading only.
            access = os.O_RDWR if status and status.st_mode & 0o222 else os.O_RDONLY
            os.close(root.open(path, access | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
            errors[path] = 0
        except OSError as err:
            errors[path] = err.errno or 0
    os.write(writer, json.dumps(errors).encode())


def _numbers(root: HostRoot, path: str) -> tuple[int, int] | None:
    status = root.stat(path)
    if status is None or not status.st_rdev:
        return None
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def _filled(root: HostRoot, folder: str) -> frozenset[str]:
    """The names of the files in a folder that are not empty: an empty one is a mount point without a mount."""
    found = {name: root.stat(f"{folder}/{name}") for name in root.names(folder)}
    return frozenset([name for name, status in found.items() if status and status.st_size])


def _cached(root: HostRoot) -> frozenset[str] | None:
    try:
        entries = parse_cache(root.read(LD_SO_CACHE) or b"").entries
    except MalformedCache:
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
