# SPDX-License-Identifier: Apache-2.0
"""Tell crun's own readers why the hook has failed.

crun leads its hooks' stderr to /dev/null, and says ``error executing hook ... (exit code: 5)`` alone.  So the sentence
is written where crun writes its own: to its stderr, which conmon hands on to CRI-O and podman, and to the log that the
engine has named.  Of that, the shim of Docker and containerd shows the last error, and podman a line that stands
alone.  runc shows a hook's stderr by itself.  Must not wait, and must not stop anything.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import LONGEST_LIST, plain
from oci_gpu_hook.kernel import procfile
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.request import crun

_READ = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOFOLLOW | posix.O_NOCTTY | posix.O_CLOEXEC
_NEW = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
# A runtime's log is its own for one command, and has some lines.
_LARGEST_LOG = 1 << 16
_APPEND = posix.O_WRONLY | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC


def tell(said: str) -> None:
    """Write one sentence to the stderr and to the log of the crun that has started this process, if one has."""
    words = crun.command_line()
    if words[0].rpartition("/")[2] != "crun":
        return
    log = crun.option(words, "--log")
    if log.startswith("/") and crun.option(words, "--log-format") == "json":
        end_log(log, as_json("oci-gpu-hook", said))
    stderr = f"/proc/{posix.getppid()}/fd/2"
    if not _is_ours(stderr) and _keeps_what_is_appended(stderr):
        append(stderr, f"oci-gpu-hook: {plain(said, LONGEST_LIST)}\n")


def end_log(log: str, line: str) -> None:
    """Put a log that ends with this line in the place of crun's; else write it behind what stands there.

    crun has its own open, and says the rest there, where nobody reads it: it would come after the sentence, and says
    less.
    """
    new = f"{log}.oci-gpu-hook-{posix.getpid()}"
    try:
        before, mode = _content(log)
        fd = posix.open(new, _NEW, mode)
        try:
            data = before + line.encode()
            if posix.write(fd, data) != len(data):
                raise OSError
            posix.rename(new, log)
        except OSError:
            posix.unlink(new)
            raise
        finally:
            posix.close(fd)
    except OSError:
        append(log, line)


def _content(log: str) -> tuple[bytes, int]:
    """What a log of ours has, and its mode; OSError for any other file."""
    fd = posix.open(log, _READ)
    try:
        status = posix.fstat(fd)
        if not is_regular(status) or status.st_uid != posix.geteuid():
            raise OSError
        data = posix.read(fd, _LARGEST_LOG)
        if len(data) != status.st_size:
            raise OSError
        return data, status.st_mode & 0o777
    finally:
        posix.close(fd)


def as_json(program: str, said: str) -> str:
    """A line as crun writes it."""
    # A start that fails may take its time.
    import json
    from datetime import datetime, timezone

    time = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    text = f"{program}: {plain(said, LONGEST_LIST)}"
    return f"{json.dumps({'msg': text, 'level': 'error', 'time': time})}\n"


def _is_ours(path: str) -> bool:
    """Whether it leads to our own stderr: then it has the sentence."""
    try:
        theirs, ours = posix.stat(path), posix.fstat(2)
    except OSError:
        return False
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def _keeps_what_is_appended(path: str) -> bool:
    """Whether crun does not write over what stands there: in a file without O_APPEND it writes where it was."""
    try:
        if not is_regular(posix.stat(path)):
            return True
        fdinfo = procfile.read(path.replace("/fd/", "/fdinfo/"))
    except OSError:
        return False
    return bool(int(fdinfo.partition(b"flags:")[2].split()[0], 8) & posix.O_APPEND)


def append(path: str, text: str, create: int = 0) -> None:
    """Write behind what stands in a file; `create` is O_CREAT where it may be missing.  What fails is passed over."""
    try:
        fd = posix.open(path, _APPEND | create, 0o644)
        try:
            posix.write(fd, text.encode())
        finally:
            posix.close(fd)
    except OSError:
        pass
