# SPDX-License-Identifier: Apache-2.0
"""What is in a binary policy, in the words of sesearch and seinfo: one line a rule, a membership, a boolean, a label.

Must not interpret: two policies are compared line by line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

from tests.policy.debian import run

# Attributes that the linker makes up, with numbers that depend on everything else.
_MADE_UP = re.compile(r"_typeattr_\d+$|^base_typeattr_")
_ALLOW = re.compile(r"allow (\S+) (\S+):(\S+) (?:\{([^}]*)\}|(\w+));(?: \[ (.*) \]:(True|False))?")


def rules(policy: str, *query: str) -> frozenset[str]:
    """Every allow, dontaudit and type transition that the query finds, a line each."""
    text = run("sesearch", "--allow", "--dontaudit", "-T", *query, policy)
    return frozenset(line for line in text.splitlines() if line)


class Rule(NamedTuple):
    """An allow rule; boolean: that it takes, "" for none, and `state`, which it must have: True or False."""

    source: str
    target: str
    kind: str
    permissions: set[str]
    boolean: str
    state: str


def allowing(lines: Iterable[str]) -> list[Rule]:
    found = []
    for match in filter(None, map(_ALLOW.match, lines)):
        source, target, kind, many, one, boolean, state = match.groups(default="")
        found.append(Rule(source, target, kind, {*(many or one).split()}, boolean, state))
    return found


def permissions(policy: str, source: str, *query: str) -> set[str]:
    """What a source is allowed by the rules that the query finds, as CLASS:PERMISSION, whatever the target."""
    found = allowing(rules(policy, "-s", source, *query))
    return {f"{rule.kind}:{word}" for rule in found for word in rule.permissions}


def concerning(policy: str, name: str) -> frozenset[str]:
    """Every rule for a type, as source and as target, through its attributes too; the type is written THIS."""
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda side: rules(policy, side, name), ("-s", "-t"))
        lines = frozenset().union(*found)
    return frozenset(re.sub(rf"\b{name}\b", "THIS", line) for line in lines)


def memberships(policy: str) -> frozenset[str]:
    """Every type, and the attributes that it has."""
    lines = []
    for line in run("seinfo", "-t", "-x", policy).splitlines():
        match = re.match(r"\s+type ([\w.]+)(?: alias (?:\{[^}]*\}|[\w.]+))?(.*);", line)
        if match:
            lines.append(f"type {match.group(1)}")
            names = [name for name in match.group(2).split(", ") if name and not _MADE_UP.search(name)]
            lines += [f"attribute {name} has {match.group(1)}" for name in names]
    return frozenset(lines)


@lru_cache
def members(policy: str) -> dict[str, list[str]]:
    """The types of each attribute."""
    found: dict[str, list[str]] = {}
    for line in memberships(policy):
        if line.startswith("attribute "):
            _, name, _, member = line.split()
            found.setdefault(name, []).append(member)
    return found


def attributes(policy: str, name: str) -> frozenset[str]:
    words = map(str.split, memberships(policy))
    return frozenset(it[1] for it in words if it[0] == "attribute" and it[-1] == name)


def contexts(path: str) -> frozenset[str]:
    with open(path, encoding="utf-8") as file:
        return frozenset("file " + " ".join(line.split()) for line in file if line.strip())


def everything(policy: str, file_contexts: str) -> frozenset[str]:
    """All that is in a policy, for one to be taken from another."""
    found = rules(policy) | memberships(policy)
    for role, many, one in re.findall(r"role (\w+) types (?:\{([^}]*)\}|([\w.]+));", run("seinfo", "-r", "-x", policy)):
        found |= {f"role {role} has {name}" for name in (many or one).split()}
    booleans = re.findall(r"bool (\w+) (true|false);", run("seinfo", "-b", "-x", policy))
    found |= {f"boolean {name} {state}" for name, state in booleans}
    # The levels of what is made, where they are other than who makes it has.
    found |= {*run("sesearch", "--range_trans", policy).splitlines()} - {""}
    # What levels, users and roles forbid whatever the rules allow.
    lines = run("seinfo", "--constrain", "-x", policy).splitlines()
    found |= {line.strip() for line in lines if "constrain " in line}
    return found | contexts(file_contexts) if os.path.exists(file_contexts) else found
