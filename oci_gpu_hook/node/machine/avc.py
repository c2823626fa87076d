# SPDX-License-Identifier: Apache-2.0
"""SELinux's denials, from whichever log has the kernel's audit messages.  Pure.

A denial is a line ``avc:  denied  { PERMISSIONS } for  KEY=VALUE ...``.  Names in it come from containers, so they must
be quoted for output.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

_HEXADECIMAL = frozenset("0123456789ABCDEF")


class Denial(NamedTuple):
    """One denial; times: how many equal ones there are."""

    source: str
    target: str
    tclass: str
    permissions: tuple[str, ...]
    name: str
    device: str
    command: str
    times: int = 1


def parse(text: str) -> tuple[Denial, ...]:
    """The denials in a log, equal ones counted together, in the order of their first.  Other lines are skipped."""
    found: dict[Denial, int] = {}
    for line in text.splitlines():
        denial = _denial(line)
        if denial is not None:
            found[denial] = found.get(denial, 0) + 1
    return tuple([denial._replace(times=times) for denial, times in found.items()])


def _denial(line: str) -> Denial | None:
    """The denial that a line of a log reports; None if it reports none."""
    _, start, rest = line.partition("avc:")
    verdict, brace, rest = rest.partition("{")
    permissions, closing, rest = rest.partition("}")
    if not (start and brace and closing) or verdict.split() != ["denied"]:
        return None
    fields = _fields(rest)
    if not {"scontext", "tcontext", "tclass"} <= set(fields):
        return None
    return Denial(
        source=fields["scontext"],
        target=fields["tcontext"],
        tclass=fields["tclass"],
        permissions=tuple(sorted(permissions.split())),
        name=fields.get("path", fields.get("name", "")),
        device=fields.get("dev", ""),
        command=fields.get("comm", ""),
    )


def _decoded(key: str, value: str) -> str:
    """The value without quotes of a key: the kernel writes a name with blanks or control characters in hexadecimal."""
    is_name = key.rpartition(" ")[2] in ("comm", "name", "path")
    if is_name and value and len(value) % 2 == 0 and _HEXADECIMAL.issuperset(value):
        return bytes.fromhex(value).decode("utf-8", "replace")
    return value


def _fields(text: str) -> dict[str, str]:
    """KEY=VALUE and KEY="VALUE", as the kernel writes them: a value without quotes has no blank."""
    fields: dict[str, str] = {}
    while text:
        text = text.lstrip()
        key, equals, text = text.partition("=")
        if not equals:
            break
        if text.startswith('"'):
            value, _, text = text[1:].partition('"')
        else:
            value, _, text = text.partition(" ")
            value = _decoded(key, value)
        fields.setdefault(key.rpartition(" ")[2], value)
    return fields
