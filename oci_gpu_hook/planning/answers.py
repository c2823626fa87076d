# SPDX-License-Identifier: Apache-2.0
"""Saved answers: what earlier containers got from the driver, for later ones with the same question.

A node starts few kinds of containers, each many times.  What a container gets from the driver is decided by pure
functions (`provision`).  So `drivers` saves the answer with all that it depends on: the question, which is compared
here, and the facts that were read from the host, which are read again.  Where anything differs, there is no answer.

Must not decide anything.
"""

from __future__ import annotations

import marshal
import posix

from oci_gpu_hook import build
from oci_gpu_hook.driver import proc
from oci_gpu_hook.host import saved
from oci_gpu_hook.operations.vocabulary import KINDS
from oci_gpu_hook.planning.plan import Provision
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.request.settings import Settings

PREFIX = "answer."

_MODULUS = (1 << 61) - 1
# What a file that is not whole brings.
_DAMAGED = (EOFError, ValueError, TypeError, AttributeError, KeyError, MemoryError)


class Question(NamedTuple):
    """What an answer depends on, except for the facts that are read from the host; name: of the answer's file."""

    name: str
    values: tuple[Any, ...]


def question(host: HostRoot, request: Request, layout: Layout, settings: Settings) -> Question | None:
    """The question whose answer is what `request` gets; None if no answer can be saved."""
    inventory = host.stat(f"{saved.FOLDER}/{saved.INVENTORY}")
    # Without a digest, which only linked modules have, answers would stay valid after an upgrade.
    if not build.DIGEST or settings.driver_root != "/" or request.is_by_spec() or request.vendors or inventory is None:
        return None
    # An answer belongs to one saved inventory: another one may have more facts from NVML.
    version = (inventory.st_ino, inventory.st_size, inventory.st_mtime_ns)
    # This is only the file's name: the whole question is compared with the one in the file.
    text = f"{tuple(request)}{layout.library_folder}{layout.loader}{layout.compat}"
    number = int.from_bytes(text.encode(errors="replace"), "little") % _MODULUS
    now = proc.stamp(host, settings.driver_root)
    mps = (settings.mps_pipe_folder, settings.mps_pipe_owner)
    return Question(f"{PREFIX}{number:x}", (build.DIGEST, request, layout, version, now, mps))


def recall(host: HostRoot, question: Question) -> Provision | None:
    """The saved answer; None if there is none that is still true."""
    data = saved.read(host, question.name)
    if data is None:
        return None
    try:
        values, facts, (version, devices, runs, notes, holds) = marshal.loads(data)
        if values != question.values:
            return None
        for method, arguments, answer in facts:
            if fact(getattr(host, method)(*arguments)) != answer:
                return None
        operations: list[Any] = []
        for name, rows in runs:
            operations += map(KINDS[name]._make, rows)
    except _DAMAGED:
        return None
    return Provision(version, devices, tuple(operations), notes, holds)


def fact(answer: Any) -> Any:
    """What a plan can depend on: of a file's status not its times, which change with every use."""
    if isinstance(answer, posix.stat_result):
        return (answer.st_mode, answer.st_uid, answer.st_gid, answer.st_rdev)
    return answer
