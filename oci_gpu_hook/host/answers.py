# SPDX-License-Identifier: Apache-2.0
"""What containers were given before: the same question has the same answer, and is asked again and again.

A node starts few kinds of containers, each many times.  To decide what one is given is pure (`provision`), so the
outcome is kept beside all that it came from: the question, which is compared whole, and what the host was asked on the
way, which is asked again.  Where anything differs there is no answer, and it is decided anew.

Must not decide anything, and must not stop a start: an answer that cannot be kept is a start that takes longer.
"""

from __future__ import annotations

import marshal
import posix

from oci_gpu_hook import ldmerge, operations
from oci_gpu_hook.host import saved, stamp
from oci_gpu_hook.host.root import HostRoot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    from oci_gpu_hook.plan import Provision
    from oci_gpu_hook.request import Request
    from oci_gpu_hook.rootfs import Container

    # The file's name, and all that an answer depends on but what the host is asked on the way.
    Question = tuple[str, tuple[Any, ...]]
    # What the host was asked (a method of HostRoot), of which path, and its answer.
    Facts = Union[tuple[int, ...], bytes, list[str], None]
    Asked = tuple[str, str, Facts]

# Which rooms decide: of others there is no answer.  packaging/link.py writes a digest of their sources here, so that an
# upgrade forgets; rooms that are not linked have none, and so neither ask nor answer.
BUILD = ""

PREFIX = "answer."
# Of 10 KiB each.  Who asks for more kinds of containers than these has them forgotten, and decided anew.
MOST = 64

_MODULUS = (1 << 61) - 1


def question(
    root: HostRoot, request: Request, container: Container, driver_root: str
) -> Question | None:
    """What is asked; None where no answer can be kept.

    Of the container nothing that is its own may be there: as `rootfs.like` has it.  An answer comes from the inventory
    as it was saved, so the file itself belongs to the question: whoever saves another one knows more.
    """
    if not BUILD or driver_root != "/" or request.source == "cdi":
        return None
    inventory = root.stat(f"{saved.FOLDER}/{saved.INVENTORY}")
    if inventory is None:
        return None
    version = (inventory.st_ino, inventory.st_size, inventory.st_mtime_ns)
    # A name only: what is in the file is compared with the question.
    text = f"{tuple(request)}{container.library_folder}{container.loader}{container.compat_names}"
    name = f"{PREFIX}{int.from_bytes(text.encode(errors='replace'), 'little') % _MODULUS:x}"
    return name, (BUILD, request, container, version, stamp.now(root, driver_root))


def recall(root: HostRoot, asked: Question) -> tuple[Any, ...] | None:
    """The fields of the `Provision` that the question was answered with; None where it is to be decided."""
    name, facts = asked
    data = saved.read(root, name)
    if data is None:
        return None
    try:
        known, seen, (version, devices, runs, notes) = marshal.loads(data)
    except (EOFError, ValueError, TypeError):
        return None
    if known != facts:
        return None
    for method, path, answer in seen:
        if _facts(getattr(root, method)(path)) != answer:
            return None
    made: list[operations.Operation] = []
    for kind, rows in runs:
        made += map(_FROM.get(kind) or getattr(operations, kind)._make, rows)
    return version, devices, tuple(made), notes


def _tmpfs(row: tuple[Any, ...]) -> operations.Tmpfs:
    made = operations.Tmpfs._make(row)
    return made._replace(files=tuple(map(operations.File._make, made.files)))


def _ld_cache(row: tuple[Any, ...]) -> operations.LdCache:
    made = operations.LdCache._make(row)
    return made._replace(additions=ldmerge.Additions._make(made.additions))


# Those that have records in them.
_FROM: dict[str, Any] = {"Tmpfs": _tmpfs, "LdCache": _ld_cache}


class Witness(HostRoot):
    """The host's root, which remembers what it was asked and what it answered."""

    def __init__(self, root: HostRoot) -> None:
        self.__dict__.update(root.__dict__)
        self.seen: list[Asked] = []

    def stat(self, path: str) -> posix.stat_result | None:
        """As HostRoot's."""
        found = super().stat(path)
        self.seen.append(("stat", path, _facts(found)))
        return found

    def read(self, path: str) -> bytes | None:
        """As HostRoot's."""
        found = super().read(path)
        self.seen.append(("read", path, found))
        return found

    def names(self, path: str) -> list[str]:
        """As HostRoot's."""
        found = super().names(path)
        self.seen.append(("names", path, found))
        return found


def keep(root: HostRoot, asked: Question, witness: Witness, given: Provision) -> None:
    """Keep an answer, if that can be done."""
    name, facts = asked
    runs: list[tuple[str, list[Any]]] = []
    for item in given.operations:
        kind = type(item).__name__
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(saved.plain(item))
    answer = (given.driver_version, given.devices, runs, given.notes)
    try:
        _make_room(root)
        saved.write(root, name, marshal.dumps((saved.plain(facts), witness.seen, answer)))
    except OSError:
        pass


def _make_room(root: HostRoot) -> None:
    """Forget all answers once there are too many: the next starts bring those that are asked for."""
    folder = saved.open_folder(root)
    try:
        names = [name for name in root.names(saved.FOLDER) if name.startswith(PREFIX)]
        for name in names if len(names) >= MOST else ():
            posix.unlink(name, dir_fd=folder)
    finally:
        posix.close(folder)


def _facts(answer: Any) -> Facts:
    """Of a node's or a file's status what a plan can come from; its times change with every use."""
    if isinstance(answer, posix.stat_result):
        return (answer.st_mode, answer.st_uid, answer.st_gid, answer.st_rdev)
    return answer  # type: ignore[no-any-return]  # what HostRoot has
