# SPDX-License-Identifier: Apache-2.0
"""``doctor --container``: why the GPU of one running container does or does not work.

It reads the container from outside, below a descriptor of its root, in a child process under a time limit, as a volume
may hang.  To open the nodes another child enters the container's device cgroup, becomes its user, and ends.  Starts no
program, and nothing of the image.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from oci_gpu_hook.asking import Options, Question
from oci_gpu_hook.container import ipc, memoryregion
from oci_gpu_hook.container.rootfs import Rootfs
from oci_gpu_hook.driver.proc import LD_SO_CACHE, character_majors
from oci_gpu_hook.errors import BundleError, HookError, UsageError, quoted
from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.host import docker
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.diagnosis import Finding, containercheck, failed, is_failed, passed, remedy, warned
from oci_gpu_hook.node.engines import cdispecs, containerdevices
from oci_gpu_hook.node.engines.containers import SHORT_ID, Running
from oci_gpu_hook.node.machine import childprocess, foreignfile, kernelconfig, libselinux, processes
from oci_gpu_hook.node.machine.foreignfile import ContainerRoot, Number
from oci_gpu_hook.operations import Device, Mount, Symlink
from oci_gpu_hook.planning import compatibility, decide
from oci_gpu_hook.planning.plan import Plan
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import State, object_of
from oci_gpu_hook.vendors import folders

_LOOK_SECONDS, _OPEN_SECONDS = 4, 30
# Of another version than the plan's that lie beside a library.
_MAX_OTHERS = 64


def running(host: HostRoot, found: Running, config: str | None) -> list[Finding]:
    name = quoted(found.shown)[1:-1] or "of no known id"
    if not found.pid:
        raise UsageError(f"the container {name} does not run", remedy.start(found))
    if not processes.is_contained(found.pid):
        raise UsageError(f"the process {found.pid} is in no container: it sees the host's own mounts")
    is_shown = found.id and found.called.shown not in ("", found.id)
    id, engine = f" ({quoted(found.id[:SHORT_ID])[1:-1]})" if is_shown else "", found.called.engine or found.runtime
    by = (f" of {engine}" if engine else "") + (f", {found.of_user}" if found.of_user else "")
    process = passed("container", f"{name}{id}{by}, process {found.pid}")
    try:
        seconds = (_LOOK_SECONDS, _OPEN_SECONDS + 1)
        rows: list[list[str]] = childprocess.ask(lambda looked: _findings(host, found, config, looked), seconds)
    except TimeoutError:
        seen = f"to look into it takes more than {_LOOK_SECONDS} seconds: a volume may not answer"
        return [process, failed("volumes", seen, "findmnt", "--task", str(found.pid))]
    except childprocess.Ended:
        return [process, failed("request", "the process that looked was killed", remedy.DOCTOR)]
    return [process, *[Finding(check, level, seen, remedy.Remedy(words)) for check, level, seen, words in rows]]


def _findings(host: HostRoot, found: Running, config: str | None, looked: Callable[[], None]) -> list[Finding]:
    """In a child: the findings about its inside; `looked` is called before its nodes are opened."""
    inside = ContainerRoot(host, found.pid)
    findings, plan = _wanted(host, Rootfs(inside.fd, (), "/"), found, config)
    if plan is None and is_failed(findings):
        return findings
    return [*findings, *containercheck.judge(plan, _seen(host, inside, found.pid, found.id, plan, looked), found)]


def _wanted(host: HostRoot, root: Rootfs, found: Running, config: str | None) -> tuple[list[Finding], Plan | None]:
    try:
        bundle = _bundle(host, found)
        question = Question(bundle, State(found.id), Options(config, host.path))
        settings = question.settings()
        request, notes = _request(question, settings)
        if request is None:
            return [_unasked(host, found, question, settings, notes)], None
        plan = decide.decide(bundle, request, settings, host, root, id=found.id, process=None)
    except HookError as err:
        return [failed("request", err.message, remedy.in_words(err.hint) if err.hint else remedy.DOCTOR)], None
    given = f"{','.join(request.words())} with {','.join(request.capabilities)}, by {request.source}"
    words = [given] if request.words() else []
    words += [f"{it.flag}={','.join(it.words())}, by {it.source}" for it in request.vendors]
    findings = [passed("request", "; ".join(words))]
    findings += [passed("libcuda", note) for note in plan.notes if note.startswith(compatibility.TOPIC)]
    return findings, plan


def _unasked(host: HostRoot, who: Running, question: Question, settings: Settings, notes: tuple[str, ...]) -> Finding:
    # ``--gpus 0``, or a request without a count.
    if any(it.get("Count") == 0 and not it.get("DeviceIDs") for it in docker.requests_of(host, question.bundle)):
        seen = "it was asked for with 0 GPUs (--gpus 0): docker-compose before 2 says so if a service has no 'count'"
        return warned("request", seen, remedy.command("vi", "docker-compose.yml", note="count: all, below its devices"))
    for key, was, instead in (
        ("accept-environment", settings.accept_environment, settings._replace(accept_environment="always")),
        ("accept-volume-mounts", "no", settings._replace(accept_volume_mounts=True)),
    ):
        with suppress(HookError):
            if instead != settings and _request(question, instead)[0] is not None:
                seen = f"it asks for a GPU, which {key} = {was} does not accept: {'; '.join(notes)}"
                return warned("request", seen, remedy.ACCEPTED)
    flags = ", and no vendor's flag anything" if folders.known(host) else ""
    # Another user's bundle is not read.
    what = "it" if question.bundle.path else "its environment, all that is known of it,"
    seen = f"{what} asks for no GPU: NVIDIA_VISIBLE_DEVICES names none{flags}"
    return warned("request", "; ".join([seen, *notes]), remedy.ask(who))


def _request(question: Question, settings: Settings) -> tuple[Request | None, tuple[str, ...]]:
    """The request, as all starts of the hook for this container read it: CDI specs of ours have started it, too."""
    asked, notes = question.request(settings)
    for spec in cdispecs.in_bundle(question.bundle):
        given, said = question.request(settings, spec)
        if not spec.vendor:
            notes = said
        if given and given.devices:
            asked = given._replace(vendors=asked.vendors if asked else ())
        elif given:
            asked = asked._replace(vendors=asked.vendors + given.vendors) if asked else given
    return asked, notes


def _bundle(host: HostRoot, found: Running) -> Bundle:
    if found.bundle:
        data = foreignfile.read_file(host, f"{found.bundle}/config.json")
        with suppress(BundleError):
            return Bundle(found.bundle, object_of(data or b"", f"{found.bundle}/config.json"))
    return Bundle("", {"process": {"env": processes.environment(host, found.pid)}, "root": {"path": "/"}})


def _seen(
    host: HostRoot, inside: ContainerRoot, pid: int, id: str, plan: Plan | None, looked: Callable[[], None]
) -> containercheck.Seen:
    """What its plan gives, or NVIDIA's nodes without one: nodes with these numbers are opened."""
    operations = plan.operations if plan else ()
    wanted = {item.path: (item.major, item.minor) for item in operations if isinstance(item, Device)}
    paths, majors = list(wanted), set[int]()
    if not operations:
        # A container may call any device so: only NVIDIA's are opened.
        majors = {major for name, major in character_majors(host).items() if name.startswith("nvidia")}
        paths = [f"/dev/{name}" for name in inside.names("/dev") if name.startswith("nvidia")]
    numbers = {path: inside.numbers(path) for path in paths}
    usable = {path: at for path, at in numbers.items() if at and (at == wanted.get(path) or at[0] in majors)}
    process_label = shm_label = ""
    if libselinux.is_there(host):
        process_label = host.text(f"/proc/{pid}/attr/current").strip("\0\n ")
        with suppress(OSError), closing(inside.open("/dev/shm")) as fd:
            shm_label = ipc.label_of(fd)
    names = [path for item in operations if isinstance(item, Mount) for path in item.paths()]
    names += [item.path for item in operations if isinstance(item, Symlink) and not item.path.startswith("/dev/")]
    files = _filled(inside, names)
    cached = None
    with suppress(ldcache.MalformedCache):
        data = foreignfile.read_file(inside, LD_SO_CACHE, ldcache.LARGEST)
        names_there = ldcache.parse_cache(data or b"").names
        cached = frozenset([name.decode("utf-8", "replace") for name in names_there])
    cgroup = processes.device_cgroup(host, pid, kernelconfig.cgroup_version(host))
    memory = memoryregion.amounts(host.text(f"{containerdevices.own_cgroup(cgroup, id)}/dmem.max")) if cgroup else {}
    looked()
    opened = _opened(host, inside, pid, cgroup, usable)
    return containercheck.Seen(numbers, opened, files, cached, process_label, shm_label, memory)


def _opened(
    host: HostRoot, inside: ContainerRoot, pid: int, cgroup: str, nodes: dict[str, Number]
) -> dict[str, int] | str:
    """errno of each open, tried as the container's user in its device cgroup; or why there is no answer."""
    if not nodes:
        return {}
    if not cgroup:
        return containercheck.NO_CGROUP
    # A process that enters a frozen cgroup is frozen, too.  In version 1 the freezer's has the same path.
    freezer = cgroup.replace("/sys/fs/cgroup/devices/", "/sys/fs/cgroup/freezer/", 1)
    of_version_1 = host.text(f"{freezer}/freezer.state").strip()
    if host.text(f"{cgroup}/cgroup.freeze").strip() == "1" or of_version_1 in ("FROZEN", "FREEZING"):
        return containercheck.PAUSED
    if os.geteuid() != 0 and not os.access(f"{cgroup}/cgroup.procs", os.W_OK):
        return containercheck.NO_ROOT
    who = processes.credentials(host, pid)
    try:
        told: dict[str, int] | str = childprocess.ask(lambda _: _open_all(inside, cgroup, who, nodes), (_OPEN_SECONDS,))
        return told
    except TimeoutError:
        return containercheck.NO_ANSWER
    except childprocess.Ended:
        return containercheck.KILLED


def _open_all(
    inside: ContainerRoot, cgroup: str, who: tuple[int, int, list[int]], nodes: dict[str, Number]
) -> dict[str, int] | str:
    """In a child: enter the cgroup, become the container's user, open each node; the errno of each, 0 for none."""
    user, group, groups = who
    try:
        with open(f"{cgroup}/cgroup.procs", "w") as file:
            file.write("0")
        os.setgroups(groups)
        os.setgid(group)
        os.setuid(user)
    except OSError:
        return containercheck.NO_ENTRY
    errors = dict.fromkeys(nodes, 0)
    for path, numbers in nodes.items():
        try:
            inside.try_node(path, numbers)
        except OSError as err:
            errors[path] = err.errno or 0
    return errors


def _filled(inside: ContainerRoot, wanted: list[str]) -> frozenset[str]:
    """Those that are not empty, with other versions beside them: an empty file is a mount point without a mount."""
    stems, others = tuple({f"{path.partition('.so.')[0]}.so." for path in wanted if ".so." in path}), []
    for folder in dict.fromkeys([path.rpartition("/")[0] for path in wanted]):
        paths = [f"{folder}/{name}" for name in inside.names(folder)]
        others += [path for path in paths if path.startswith(stems) and path not in wanted][:_MAX_OTHERS]
    there = {path: inside.status(path) for path in (*wanted, *others)}
    return frozenset([path for path, status in there.items() if status and status.st_size])
