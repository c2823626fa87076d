# SPDX-License-Identifier: Apache-2.0
"""SELinux's denials, from whichever log has the kernel's audit messages.  Pure.

A denial is a line ``avc:  denied  { PERMISSIONS } for  KEY=VALUE ...``.  Names in it come from containers, so they must
be quoted for output.
"""

from __future__ import annotations

import re
from collections import Counter

from oci_gpu_hook.record import NamedTuple

_DENIAL = re.compile(r"avc:\s*denied\s*\{([^{}]*)\}(.*)")
# KEY=VALUE and KEY="VALUE", as the kernel writes them: a value without quotes has no blank.
_FIELD = re.compile(r"""(?<!\S)([^\s=]+)=(?:"([^"]*)"?|(\S*))""")
_HEXADECIMAL = frozenset("0123456789ABCDEF")


class Denial(NamedTuple):
    """times: how many equal ones there are."""

    source: str
    target: str
    tclass: str
    permissions: tuple[str, ...]
    name: str
    device: str
    command: str
    times: int = 1


def parse_denials(text: str) -> tuple[Denial, ...]:
    """The denials in a log, equal ones counted together, in the order of their first.  Other lines are skipped."""
    found = Counter([denial for line in text.splitlines() if (denial := _denial(line))])
    return tuple([denial._replace(times=times) for denial, times in found.items()])


def _denial(line: str) -> Denial | None:
    found = _DENIAL.search(line)
    # Of two with one name the first counts.
    words = reversed(_FIELD.findall(found[2])) if found else ()
    fields = {key: quoted or _decoded(key, plain) for key, quoted, plain in words}
    if found is None or not {"scontext", "tcontext", "tclass"} <= set(fields):
        return None
    contexts = fields["scontext"], fields["tcontext"], fields["tclass"]
    name = fields.get("path", fields.get("name", ""))
    return Denial(*contexts, tuple(sorted(found[1].split())), name, fields.get("dev", ""), fields.get("comm", ""))


def _decoded(key: str, value: str) -> str:
    """The value without quotes of a key: the kernel writes a name with blanks or control characters in hexadecimal."""
    if key in ("comm", "name", "path") and value and len(value) % 2 == 0 and _HEXADECIMAL.issuperset(value):
        return bytes.fromhex(value).decode("utf-8", "replace")
    return value
