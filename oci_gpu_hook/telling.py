# SPDX-License-Identifier: Apache-2.0
"""A start's course as its account, handed to the journal and the counters.

Must not decide what is told of a start (`account` does), nor say anything to the engine.
"""

from __future__ import annotations

import posix
from time import process_time_ns, time_ns

from oci_gpu_hook import account, config
from oci_gpu_hook.host import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.course import Course

# When the door started Python, in seconds since 1970: that start is most of what a hook takes.
_BEGAN = b"OCI_GPU_HOOK_BEGAN"


def tell(course: Course, exit_code: int, sentence: str) -> None:
    """One record, and one line for the counters; the step that was under way ends here."""
    course.end_step()
    told = account.Account(
        container=course.state.id if course.state else "",
        image=config.image(course.annotations),
        namespace=config.namespace(course.annotations),
        request=course.request,
        plan=course.plan,
        notes=tuple(course.notes),
        steps=_steps(course.ends),
        cpu=process_time_ns() // 1000,
        exit_code=exit_code,
        sentence=sentence,
    )
    if course.settings is None or course.settings.records:
        journal.send(account.datagram(told))
    journal.count(account.counted(told))


def _steps(ends: list[int]) -> dict[str, int]:
    """Microseconds of each step; the first, the interpreter's, is what the door's clock says less what we know of."""
    took = [(end - begun) // 1000 for begun, end in zip(ends, ends[1:])]
    try:
        began = int(posix.environ.get(_BEGAN, b"").replace(b".", b""))
        first = time_ns() // 1000 - began - sum(took)
    except ValueError:
        # Bash before 5.0 has no such clock.
        first = 0
    return dict(zip(account.STEPS, (max(first, 0), *took)))
