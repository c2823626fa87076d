# SPDX-License-Identifier: Apache-2.0
"""Make and send a start's record: one entry for the journal, and one line for the counters.

Must not decide what is in a record (`entry` does), and must not write anything to the engine.
"""

from __future__ import annotations

import posix
from time import process_time_ns, time_ns

from oci_gpu_hook.report import entry, journal
from oci_gpu_hook.request.annotations import said
from oci_gpu_hook.request.state import Who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.report.progress import Progress

# When the entry script started Python, in seconds since 1970: the interpreter's start is most of a hook's time.
_BEGAN = b"OCI_GPU_HOOK_BEGAN"


def send(progress: Progress, exit_code: int, sentence: str) -> None:
    """Send the record of a start; the current step ends here."""
    progress.end_step()
    id, bundle = (progress.state.id, progress.state.bundle) if progress.state else ("", "")
    known = said(Who(progress.annotations, id, bundle))
    found = entry.Entry(
        container=id,
        image=known.image,
        namespace=known.namespace,
        request=progress.request,
        plan=progress.plan,
        notes=tuple(progress.notes),
        steps=_steps(progress.ends),
        cpu=process_time_ns() // 1000,
        exit_code=exit_code,
        sentence=sentence,
    )
    if progress.settings is None or progress.settings.records:
        journal.send(entry.datagram(found))
    journal.count(entry.counted(found))


def _steps(ends: list[int]) -> dict[str, int]:
    """Microseconds of each step.

    The first step is the interpreter's start: the time since the entry script started it, less all other steps.
    """
    took = [(end - begin) // 1000 for begin, end in zip(ends, ends[1:])]
    try:
        began = int(posix.environ.get(_BEGAN, b"").replace(b".", b""))
        first = time_ns() // 1000 - began - sum(took)
    except ValueError:
        # Bash before 5.0 has no EPOCHREALTIME.
        first = 0
    return dict(zip(entry.STEPS, (max(first, 0), *took)))
