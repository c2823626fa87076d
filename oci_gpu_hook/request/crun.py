# SPDX-License-Identifier: Apache-2.0
"""The command line of crun, and the bundle if crun's state says that it is ``/``.

crun enters the host's mount namespace again if a container has a user namespace and devices, and then passes its hooks
what getcwd(3) gives there: ``/`` (seen in 1.8 to 1.29).  The path is in crun's own command line, and a copy of
config.json in its state folder.  Reads only, and believes crun alone: the process that has started the hook, which has
also written the state.  The container's process need not be its child: under ``create`` it has been given to the
process that collects orphans (conmon, containerd's shim, or PID 1).
"""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel import procfile
from oci_gpu_hook.request.state import State

_STATE_FOLDER = "/run/crun"


def bundle_of(state: State) -> str:
    """The bundle of a container whose state says ``/``, or the folder with crun's copy of its config.json; "" for none.

    If another program stands between crun and the hook, its words do not name the container.
    """
    words, folders = command_line(), ["/"]
    if state.id in words:
        folders += [option(words, "--bundle", "-b"), f"{option(words, '--root') or _STATE_FOLDER}/{state.id}"]
    return next((folder for folder in folders if folder.startswith("/") and _has_config(folder)), "")


def command_line() -> list[str]:
    """The command line of this process's parent; one empty word if it is hidden."""
    try:
        parent = _parent()
        data = procfile.read(f"/proc/{parent}/cmdline")
        # Once it has ended, any process may have its number, and we have another parent.
        if _parent() != parent:
            data = b""
    except (OSError, IndexError):
        data = b""
    return data.decode(errors="surrogateescape").split("\0")


def _parent() -> str:
    """The number of our parent, as this procfs has it."""
    return procfile.read("/proc/self/stat").rpartition(b")")[2].split()[1].decode()


def option(words: list[str], *names: str) -> str:
    """The value of an option on a command line, "" for none."""
    for word, following in zip(words, words[1:]):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return ""


def _has_config(folder: str) -> bool:
    try:
        posix.stat(f"{folder}/config.json")
    except OSError:
        return False
    return True
