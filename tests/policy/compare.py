# SPDX-License-Identifier: Apache-2.0
"""Compare what nvidia_container_t and container_t may do in a policy: for hosts whose policy is not Debian's.

    python3 -m tests.policy.compare [POLICY]        without a POLICY, the one that this machine's kernel runs

Prints what only one of them may do, by the other type and the class, and the attributes that only one has.  Exit status
1 where container_t may do what nvidia_container_t may not.  Must not judge what is more: people do.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

from tests.policy import rules

RUNNING = "/sys/fs/selinux/policy"
PLAIN, CONFINED = "container_t", "nvidia_container_t"
# What these may do to each other is no difference.
COMPARED = (PLAIN, CONFINED, "nvidia_agent_t")

# Direction, the other type, class and condition ("" for always); and the permissions.
Permitted = dict[tuple[str, str, str, str], set[str]]


def permitted(policy: str, name: str) -> Permitted:
    """What a type may do, and what others may do to it, type by type; itself is written THIS."""
    found: Permitted = defaultdict(set)
    for side, direction in (("-s", "to"), ("-t", "by")):
        _add(found, policy, name, direction, rules.rules(policy, side, name))
    return found


def listed(policy: str, lines: Iterable[str]) -> Permitted:
    """The same of rules as sesearch writes them, for a type that is called THIS."""
    found: Permitted = defaultdict(set)
    for line in lines:
        _add(found, policy, "THIS", "to" if line.startswith("allow THIS") else "by", [line])
    return found


def _add(found: Permitted, policy: str, name: str, direction: str, lines: Iterable[str]) -> None:
    for rule in rules.allowing(lines):
        # One of the two is the type, or an attribute of it that has brought the rule.
        other = rule.target if direction == "to" else rule.source
        condition = f"[ {rule.boolean} ]:{rule.state}" if rule.boolean else ""
        for each in rules.members(policy).get(other, [other]):
            if each in (name, "self", "THIS"):
                found[direction, "THIS", rule.kind, condition] |= rule.permissions
            elif each not in COMPARED:
                found[direction, each, rule.kind, condition] |= rule.permissions


def lacking(more: Permitted, less: Permitted) -> list[str]:
    """What `more` permits and `less` does not, a line for each type and class."""
    lines = []
    for (direction, other, kind, condition), permissions in more.items():
        always = less.get((direction, other, kind, ""), set())
        rest = permissions - always - less.get((direction, other, kind, condition), set())
        if rest:
            lines.append(f"{direction} {other}:{kind} {' '.join(sorted(rest))} {condition}".rstrip())
    return sorted(lines)


def main() -> int:
    policy = sys.argv[1] if len(sys.argv) > 1 else RUNNING
    plain, confined = [permitted(policy, name) for name in (PLAIN, CONFINED)]
    attributes = [rules.attributes(policy, name) for name in (PLAIN, CONFINED)]
    missing = lacking(plain, confined)
    for line in (*missing, *sorted(attributes[0] - attributes[1])):
        print(f"{PLAIN} only: {line}")
    for line in (*lacking(confined, plain), *sorted(attributes[1] - attributes[0])):
        print(f"{CONFINED} only: {line}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
