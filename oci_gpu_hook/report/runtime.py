# SPDX-License-Identifier: Apache-2.0
"""Tell crun's own readers why the hook has failed.

crun leads its hooks' stderr to /dev/null, and says ``error executing hook ... (exit code: 5)`` alone.  So the sentence
is written where crun writes its own: to its stderr, which conmon hands on to CRI-O and podman, and to the log that the
engine has named; podman reads the first only where the log has more than one line (both seen with podman 4.3).  runc
shows a hook's stderr by itself.  Must not wait, and must not stop anything.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel import procfile
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.request import crun

_APPEND = posix.O_WRONLY | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC


def tell(text: str) -> None:
    """Write one sentence to the stderr and to the log of the crun that has started this process, if one has."""
    words = crun.command_line()
    if words[0].rpartition("/")[2] != "crun":
        return
    log = crun.option(words, "--log")
    if log.startswith("/") and crun.option(words, "--log-format") == "json":
        append(log, as_json(text))
    stderr = f"/proc/{posix.getppid()}/fd/2"
    if not _is_ours(stderr) and _keeps_what_is_appended(stderr):
        append(stderr, f"{text}\n")


def as_json(text: str) -> str:
    """A line as crun writes it."""
    # A start that fails may take its time.
    import json
    from datetime import datetime, timezone

    time = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
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
