# SPDX-License-Identifier: Apache-2.0
"""Small policies that compile in milliseconds, in which our modules' blocks take hold as in the large ones.

What decides whether an optional block takes hold is which names a policy has.  So a stand-in declares names and little
else: for refpolicy those names of our modules that the real policy at hand declares; for the targeted policy, which
cannot be had on Debian, those of targeted.cil, and what the manual's table asks of that policy's own rules.

Must not be taken for the real policy where what is granted by others counts.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from typing import NamedTuple

from tests.policy.debian import run
from tests.policy.rules import everything

HERE = os.path.dirname(os.path.abspath(__file__))
_DECLARATION = re.compile(r"^\s*\((type|typeattribute|role|roleattribute|boolean) ([\w.]+)[ )]", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*")
_CLASS = re.compile(r"class (\w+)(?:\s+inherits (\w+))?\s*(?:\{([^}]*)\})?", re.DOTALL)


_REST = """
(sid kernel) (sidorder (kernel)) (mls true)
(sensitivity s0) (sensitivityorder (s0)) (category c0) (categoryorder (c0)) (sensitivitycategory s0 (c0))
(user system_u) (role object_r) (userrole system_u object_r)
(userlevel system_u (s0)) (userrange system_u ((s0) (s0)))
(type standin_t) (roletype object_r standin_t)
(sidcontext kernel (system_u object_r standin_t ((s0) (s0))))
(allow standin_t self (process (fork)))
"""


class Compiled(NamedTuple):
    """A policy: all that is in it as lines, if they were asked for, and as bytes, which take no time."""

    lines: frozenset[str]
    image: bytes


class Block(NamedTuple):
    """One optional block of a module's text."""

    name: str
    start: int
    end: int


def prelude(policy: str) -> str:
    """Classes of the binary `policy`, and what else CIL asks for before anything can be said."""
    text = run("seinfo", "-c", "-x", policy)
    commons = re.findall(r"common (\w+)\s*\{([^}]*)\}", run("seinfo", "--common", "-x", policy), re.DOTALL)
    common = {name: body.split() for name, body in commons}
    lines, names = [], []
    for name, inherited, body in _CLASS.findall(text.split("\n", 2)[2]):
        permissions = sorted({*common.get(inherited, []), *body.split()})
        lines.append(f"(class {name} ({' '.join(permissions)}))")
        names.append(name)
    return "\n".join([*lines, f"(classorder ({' '.join(names)}))\n"]) + _REST


def names_of(modules: str, policy_modules: str) -> str:
    """Declarations of all names in our `modules` that the policy whose modules are `policy_modules` declares."""
    ours = {name for _, name in _DECLARATION.findall(modules)}
    used = set(_NAME.findall(re.sub(r";.*|\"[^\"]*\"", "", modules))) - ours
    lines = set()
    for kind, name in _DECLARATION.findall(policy_modules):
        if name in used:
            lines.add(f"({kind} {name} false)" if kind == "boolean" else f"({kind} {name})")
            if kind == "typeattribute":
                # A rule for an attribute without members is none.
                lines.add(f"(typeattributeset {name} (standin_t))")
    return completed("\n".join(sorted(lines - {"(role object_r)"})) + "\n")


def targeted() -> str:
    with open(f"{HERE}/targeted.cil", encoding="ascii") as file:
        return completed(file.read())


def completed(text: str) -> str:
    """The text with what makes its names count.

    Types for files as well, for contexts of files are checked; attributes in a rule each, for others are dropped.
    """
    lines = [f"(roletype object_r {name})\n" for name in re.findall(r"^\(type (\w+)\)", text, re.MULTILINE)]
    for name in re.findall(r"^\(typeattribute (\w+)\)", text, re.MULTILINE):
        lines.append(f"(allow standin_t {name} (process (sigstop)))\n")
    return text + "".join(lines)


def compiled(*texts: str, listed: bool = True) -> Compiled | None:
    """The policy of these texts; None if it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        binary, contexts = f"{folder}/policy", f"{folder}/contexts"
        if not compile_in(folder, *texts):
            return None
        with open(binary, "rb") as policy, open(contexts, "rb") as labels:
            return Compiled(everything(binary, contexts) if listed else frozenset(), policy.read() + labels.read())


def compile_in(folder: str, *texts: str) -> bool:
    """Make the policy of these texts, `policy` and `contexts` in a folder; whether that was possible."""
    files = []
    for number, text in enumerate(texts):
        files.append(f"{folder}/{number}.cil")
        with open(files[-1], "w", encoding="ascii") as file:
            file.write(text)
    words = ["secilc", "-M", "true", "-N", "-o", f"{folder}/policy", "-f", f"{folder}/contexts", *files]
    return not subprocess.run(words, check=False, capture_output=True).returncode


def blocks(text: str) -> list[Block]:
    """Every optional block of a module, those in others too."""
    # Of the same length, without comments.
    text = re.sub(r";.*", lambda comment: " " * len(comment[0]), text)
    found = []
    for match in re.finditer(r"\(optional (\w+)", text):
        depth, end = 0, match.start()
        while depth or end == match.start():
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        found.append(Block(match[1], match.start(), end))
    return found
