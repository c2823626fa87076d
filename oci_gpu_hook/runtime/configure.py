# SPDX-License-Identifier: Apache-2.0
"""``nvidia-container-cli configure``: one container start for callers that have no config.json and write no state.

With ``--pid`` the root is that process's.  Without, the caller has made the container's mount namespace and runs in it.
SECURITY.md says what is believed of whom.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import apply
from oci_gpu_hook.asking import Options, Question
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import DONE
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import alarm
from oci_gpu_hook.operations import LimitMemory, OpenCgroup
from oci_gpu_hook.planning.decide import decide
from oci_gpu_hook.planning.plan import DEV_IS_HOSTS, LEFT_ALONE
from oci_gpu_hook.report import records, sentence
from oci_gpu_hook.report.progress import Progress
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.containercli import Call
from oci_gpu_hook.request.state import State, checked_path
from oci_gpu_hook.request.words import CONTAINER_CLI, MEMORY_LIMIT, MEMORY_REQUEST

_LONGEST_NAME = 255  # LXC names a folder after it (NAME_MAX, limits.h)
# What is not given with an option: kinds of operations, or a part of the host's path.
_OMITTED = {
    "no-devbind": "/dev/",
    "no-persistenced": "nvidia-persistenced",
    "no-fabricmanager": "fabricmanager",
    "no-gsp-firmware": "/firmware/",
}


def run(call: Call) -> int:
    # A user's own FUSE server may be what serves the root, to root.
    alarm.begin()
    progress = Progress()
    code, said = DONE, ""
    try:
        _configure(progress, call)
    except Exception as err:
        code, said = sentence.failure(err), str(err)
    records.send(progress, code, said)
    return code


def _configure(progress: Progress, call: Call) -> None:
    path, pid = checked_path(call.root), call.pid()
    process = Process(pid) if pid else Process.caller()
    # A container's root lies in its bundle, which its engine names after it.
    folder, _, name = path.rstrip("/").rpartition("/")
    # Without --pid LXC says the container's name, and enroot names the root after it.
    said = posix.environ.get(b"LXC_NAME", b"").decode("utf-8", "replace")
    is_name = said.isprintable() and "/" not in said and len(said) <= _LONGEST_NAME
    id = folder.rpartition("/")[2] if pid else (is_name and said) or name
    # A bundle with an empty config.json: nothing is configured but what the words say.
    bundle, state = Bundle(folder, {}), State(id, process.pid, folder, caller="" if pid else CONTAINER_CLI)
    # Its own environment has two variables of the request: LXC and enroot give a call the container's.
    inputs, given = call.inputs(), {it: posix.environ.get(it.encode()) for it in (MEMORY_LIMIT, MEMORY_REQUEST)}
    memory = {name: text.decode("utf-8", "replace") for name, text in given.items() if text is not None}
    inputs = inputs._replace(environment={**inputs.environment, **memory})
    question = Question(bundle, state, Options(), inputs=inputs)
    progress.state = question.state
    allowed = question.settings()
    # Without --pid the cgroup is the caller's, with others in it.
    leaves_cgroup = call.has("no-cgroups") or not pid
    if leaves_cgroup:
        allowed = allowed._replace(device_cgroup="off")
    if call.last("cuda-compat-mode") == "disabled":
        allowed = allowed._replace(cuda_forward_compatibility=False)
    progress.settings = allowed
    request, notes = question.request(allowed)
    progress.keep(notes)
    if request is None:
        progress.say()
        return
    request = progress.request = request._replace(source="cli")
    progress.end_step()
    # A user who stops or ends a call must leave nothing of the node's half done.
    host = HostRoot("/", remember=bool(pid))
    root = rootfs.of_process(path, rootfs.USUAL_TMPFS, process) if pid else rootfs.of_caller(path, process)
    if pid:
        apply.cut_off(process)
    plan = decide(bundle, request, allowed, host, root, id=id, process=process)
    plan = progress.plan = plan._replace(operations=tuple([it for it in plan.operations if not _is_omitted(it, call)]))
    # A caller that wants it so needs no note at each start; enroot and Apptainer bind the host's /dev by default.
    needless = (LEFT_ALONE if leaves_cgroup else "", "" if pid else DEV_IS_HOSTS)
    progress.keep([note for note in plan.notes if note not in needless])
    progress.end_step()
    # Of root's calls, what is read-only may be another's, whose user alone has made it so for this container.
    opens_root = process.is_caller and process.in_user_namespace()
    progress.keep(apply.run(plan, host, root.fd, process, opens_root=opens_root))
    progress.say()


def _is_omitted(operation: object, call: Call) -> bool:
    # A cgroup's path has the container's name in it.
    path = "" if isinstance(operation, (LimitMemory, OpenCgroup)) else getattr(operation, "path", "")
    source = getattr(operation, "source", "") or path
    return any([part in source for option, part in _OMITTED.items() if call.has(option)])
