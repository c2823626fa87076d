# SPDX-License-Identifier: Apache-2.0
"""Save an answer for `answers`, with all that it depends on.

Must not stop a start: an answer that cannot be saved only makes the next start slower.
"""

from __future__ import annotations

import marshal
import posix

from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations.vocabulary import name_of
from oci_gpu_hook.planning.answers import PREFIX, fact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_gpu_hook.planning.answers import Fact, Question
    from oci_gpu_hook.planning.plan import Provision

# Of some 10 KiB each.  On a node with more kinds of containers all answers are deleted, and needed ones saved again.
MOST = 64


class RecordingRoot(HostRoot):
    """The host's root, which records the facts that are read from it: method, arguments and what it gave."""

    def __init__(self, root: HostRoot) -> None:
        self.__dict__.update(root.__dict__)
        self.facts: list[tuple[str, tuple[Any, ...], Fact]] = []

    def stat(self, path: str) -> posix.stat_result | None:
        """As HostRoot's."""
        found = super().stat(path)
        self.facts.append(("stat", (path,), fact(found)))
        return found

    def source(self, path: str, owner: int = 0) -> tuple[bool, str] | None:
        """As HostRoot's."""
        found = super().source(path, owner)
        self.facts.append(("source", (path, owner), found))
        return found

    def read(self, path: str) -> bytes | None:
        """As HostRoot's."""
        found = super().read(path)
        self.facts.append(("read", (path,), found))
        return found

    def names(self, path: str) -> list[str]:
        """As HostRoot's."""
        found = super().names(path)
        self.facts.append(("names", (path,), found))
        return found


def keep(question: Question, root: RecordingRoot, provision: Provision) -> None:
    """Save the answer to a question, if that is possible."""
    runs: list[tuple[str, list[Any]]] = []
    for operation in provision.operations:
        name = name_of(operation)
        if not runs or runs[-1][0] != name:
            runs.append((name, []))
        runs[-1][1].append(saved.plain(operation))
    answer = (provision.driver_version, provision.devices, runs, provision.notes)
    # Before `root` records what the next lines read.
    data = marshal.dumps((saved.plain(question.values), root.facts, answer))
    if len(data) > saved.LARGEST:
        return  # it would never be read
    try:
        _delete_too_many(root)
        saved.write(root, question.name, data)
    except OSError:
        pass


def _delete_too_many(root: HostRoot) -> None:
    """Delete all answers if there are too many: the next starts save those that are needed again."""
    folder = saved.open_folder(root)
    try:
        names = [name for name in root.names(saved.FOLDER) if name.startswith(PREFIX)]
        for name in names if len(names) >= MOST else ():
            posix.unlink(name, dir_fd=folder)
    finally:
        posix.close(folder)
