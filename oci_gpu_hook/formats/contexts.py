# SPDX-License-Identifier: Apache-2.0
"""SELinux contexts and MCS levels as values: parse, print, dominate, meet.  Pure.

A context is ``user:role:type:level``; a level is a sensitivity and categories, ``s0:c1,c4.c6``, or a range of two,
``s0-s0:c0.c1023`` (SELinux Notebook, "MLS and MCS").  The kernel checks it against the policy when the label is set.
"""

from __future__ import annotations

from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.record import NamedTuple

# Today's policies have c0 to c1023 and s0 to s15.
_MAX, _LONGEST = 1 << 16, 4096
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


class Level(NamedTuple):
    sensitivity: int
    categories: frozenset[int]

    def __str__(self) -> str:
        """As the kernel prints it: a run of three categories and more as c1.c4, a run of two as c1,c2."""
        runs: list[list[int]] = []
        for number in sorted(self.categories):
            if runs and number == runs[-1][-1] + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        spans = [f"c{run[0]}.c{run[-1]}" if len(run) > 2 else ",".join([f"c{it}" for it in run]) for run in runs]
        return f"s{self.sensitivity}" + (f":{','.join(spans)}" if spans else "")

    def dominates(self, other: Level) -> bool:
        """Whether a process of this level may use an object of the other, as far as levels go."""
        return self.sensitivity >= other.sensitivity and self.categories >= other.categories


class Context(NamedTuple):
    """high is None if the level is not a range, low is None if the policy has no levels."""

    user: str
    role: str
    type: str
    low: Level | None
    high: Level | None

    def __str__(self) -> str:
        level = "-".join([str(end) for end in (self.low, self.high) if end is not None])
        return ":".join([self.user, self.role, self.type, *filter(None, [level])])

    @property
    def clearance(self) -> Level | None:
        return self.low if self.high is None else self.high


def parse_context(text: str) -> Context:
    """ValueError for any other text."""
    parts = text.split(":", 3)
    if len(parts) < 3 or not all([name and _NAME.issuperset(name) for name in parts[:3]]):
        raise ValueError("it is not of the form user:role:type:level")
    user, role, kind, *level = parts
    if not level:
        return Context(user, role, kind, None, None)
    low, dash, high = level[0].partition("-")
    first, last = parse_level(low), parse_level(high) if dash else None
    if last is not None and not last.dominates(first):
        raise ValueError("the end of its range does not dominate the start")
    return Context(user, role, kind, first, last)


def parse_level(text: str) -> Level:
    """Such as ``s0:c1,c4.c6``; ValueError for any other text."""
    sensitivity, colon, categories = text.partition(":")
    # The kernel takes no longer context than a page (PAGE_SIZE, security/selinux/selinuxfs.c).
    if len(categories) > _LONGEST:
        raise ValueError("its level is too long")
    numbers: set[int] = set()
    named = 0
    for item in categories.split(",") if colon else ():
        first, dot, last = item.partition(".")
        start = _number("c", first)
        end = _number("c", last) if dot else start
        if end < start:
            raise ValueError("a range of categories runs backwards")
        named += end + 1 - start
        if named > _MAX:
            raise ValueError("its level names categories many times")
        numbers.update(range(start, end + 1))
    return Level(_number("s", sensitivity), frozenset(numbers))


def meet(levels: list[Level]) -> Level:
    """The highest level that each of `levels` dominates; at least one must be given."""
    categories = frozenset.intersection(*[level.categories for level in levels])
    return Level(min([level.sensitivity for level in levels]), categories)


def _number(letter: str, text: str) -> int:
    number = decimal(text[1:], _MAX - 1)
    if not text.startswith(letter) or number is None:
        raise ValueError(f"its level has something that is not {letter} and a number below {_MAX}")
    return number
