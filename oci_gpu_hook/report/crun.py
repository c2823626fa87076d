# SPDX-License-Identifier: Apache-2.0
"""The crun that has started this process: which bundle it means, and where its readers look for what has failed.

If a container has a user namespace and devices, crun passes its hooks the bundle ``/`` (seen in 1.8 to 1.29).  The path
is in crun's own command line, and a copy of config.json in its state folder.

crun leads its hooks' stderr to /dev/null.  So the sentence is written where crun writes its own: to its stderr, which
conmon hands on to CRI-O and podman, and to the log that the engine has named, of which the shim of Docker and
containerd shows the last error; of youki's own it knows none, so that this serves youki, too.  Believes its parent
alone.  Must not wait, or stop anything.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import LONGEST_LIST, plain
from oci_gpu_hook.kernel import procfile
from oci_gpu_hook.kernel.descriptors import closing, replace
from oci_gpu_hook.kernel.filetypes import is_regular, is_same
from oci_gpu_hook.request.state import State

_READ = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOFOLLOW | posix.O_NOCTTY | posix.O_CLOEXEC
_APPEND = posix.O_WRONLY | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
# A runtime's log is its own for one command, and has some lines.
_LARGEST_LOG = 1 << 16


def bundle_of(state: State) -> str:
    """Of a state that says ``/`` the bundle, or the folder of crun's copy of its config.json; "" for none."""
    words, folders = _command_line(), []
    # If another program stands between crun and the hook, its words do not name the container.
    if state.id in words:
        folders += [_option(words, "--bundle", "-b"), f"{_option(words, '--root') or '/run/crun'}/{state.id}"]
    # "/" comes last: the host may have a file of that name.
    there = [it for it in (*folders, "/") if it.startswith("/") and posix.access(f"{it}/config.json", posix.F_OK)]
    return there[0] if there else ""


def tell(said: str, stderr: int = -1) -> None:
    """To the stderr and the log of the crun that has started this process, if one has.  stderr: crun's, open by O_PATH,
    for a process that may not look into crun's descriptors any more, unless it is a file; -1 for none.
    """
    words = _command_line()
    if words[0].rpartition("/")[2] not in ("crun", "youki"):
        return
    log = _option(words, "--log")
    if log.startswith("/") and _option(words, "--log-format") == "json":
        end_log(log, as_json("oci-gpu-hook", said))
    for path in (f"/proc/{posix.getppid()}/fd/2", f"/proc/self/fd/{stderr}"):
        if _lacks_it(path):
            append(path, f"oci-gpu-hook: {plain(said, LONGEST_LIST)}\n")
            return


def _command_line() -> list[str]:
    try:
        parent = _parent()
        words = procfile.read_whole(f"/proc/{parent}/cmdline").decode(errors="surrogateescape").split("\0")
        # Once it has ended, any process may have its number, and we have another parent.
        return words if _parent() == parent else [""]
    except (OSError, IndexError):
        return [""]


def _parent() -> str:
    return procfile.stat_words(procfile.read_whole("/proc/self/stat"))[1].decode()


def _option(words: list[str], *names: str) -> str:
    for word, following in zip(words, words[1:]):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return ""


def end_log(log: str, line: str) -> None:
    """Put a log that ends with this line in the place of crun's, if that is ours, as crun goes on to write into its
    own, behind the sentence; else write behind what stands there.
    """
    try:
        with closing(posix.open(log, _READ)) as fd:
            status = posix.fstat(fd)
            if not is_regular(status) or status.st_uid != posix.geteuid():
                raise OSError
            data = posix.read(fd, _LARGEST_LOG)
        if len(data) != status.st_size:
            raise OSError
        replace(log, data + line.encode(), f"{log}.oci-gpu-hook-{posix.getpid()}", mode=status.st_mode & 0o777)
    except OSError:
        append(log, line)


def as_json(program: str, said: str) -> str:
    import json
    from datetime import datetime, timezone

    time = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return f"{json.dumps({'msg': f'{program}: {plain(said, LONGEST_LIST)}', 'level': 'error', 'time': time})}\n"


def _lacks_it(path: str) -> bool:
    """Whether it is not our stderr, and crun does not write over what stands there, as in a file without O_APPEND."""
    try:
        # A hook of crun's has a stderr if crun has one.
        status = posix.stat(path)
        is_ours = is_same(status, posix.fstat(2))
        if is_ours or not is_regular(status):
            return not is_ours
        fdinfo = procfile.read_whole(path.replace("/fd/", "/fdinfo/"))
    except OSError:
        return False
    return bool(int(fdinfo.partition(b"flags:")[2].split()[0], 8) & posix.O_APPEND)


def append(path: str, text: str, create: int = 0) -> None:
    """`create` is O_CREAT if it may be missing.  What fails is passed over."""
    try:
        with closing(posix.open(path, _APPEND | create, 0o644)) as fd:
            posix.write(fd, text.encode())
    except OSError:
        pass
