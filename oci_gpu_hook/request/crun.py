# SPDX-License-Identifier: Apache-2.0
"""crun, as its command line and its state folder tell of it; and the bundle where its state says that it is ``/``.

crun enters the host's mount namespace again where a container has a user namespace and devices, and tells its hooks
what getcwd(3) gives there: ``/`` (seen in 1.8 to 1.29).  The path is in crun's own command line, and the copy of
config.json in its state folder.  Reads only, and believes crun alone: the process that started the hook, which is the
parent of the state's process.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel import procfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.request.state import State

_STATE_FOLDER = "/run/crun"


def is_lost(state: State) -> bool:
    """Whether the state's bundle is no bundle, but what crun says in place of one."""
    if state.bundle != "/":
        return False
    try:
        posix.stat("/config.json")
    except OSError:
        return True
    return False


def find(state: State) -> str:
    """The bundle, or the folder in which crun keeps a copy of its config.json; "" where neither is found."""
    words = command_line()
    try:
        parent = procfile.read(f"/proc/{state.pid}/stat").rpartition(b")")[2].split()[1]
    except (OSError, IndexError):
        return ""
    if int(parent) != posix.getppid() or state.id not in words:
        return ""
    kept = f"{option(words, '--root') or _STATE_FOLDER}/{state.id}"
    for folder in (option(words, "--bundle", "-b"), kept):
        if folder.startswith("/") and _has_config(folder):
            return folder
    return ""


def command_line() -> list[str]:
    """The words by which the process was started that has started this one; one empty word where they are hidden."""
    try:
        data = procfile.read(f"/proc/{posix.getppid()}/cmdline")
    except OSError:
        data = b""
    return data.decode(errors="surrogateescape").split("\0")


def option(words: list[str], *names: str) -> str:
    """The value of a long or short option on a command line; "" where it has none."""
    for word, following in zip(words, words[1:]):
        for name in names:
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word[len(name) + 1 :]
    return ""


def _has_config(folder: str) -> bool:
    try:
        posix.stat(f"{folder}/config.json")
    except OSError:
        return False
    return True
