# SPDX-License-Identifier: Apache-2.0
"""What our modules add to a policy, line by line: the files adds-*.txt are this list, reviewed by people.

    python3 -m tests.policy.expected            write them anew; then read the difference

Must not be run to make a test pass: it is run when a rule was changed on purpose.
"""

from __future__ import annotations

import os
from functools import lru_cache

from tests.policy import debian, policies, rules, standin

HERE = os.path.dirname(os.path.abspath(__file__))


@lru_cache
def added_to_refpolicy() -> frozenset[str]:
    """To Debian's policy with its container module, the real one."""
    built = policies.build()
    base, ours = (
        rules.everything(debian.binary(root), f"{root}/{debian.FILE_CONTEXTS}")
        for root in (built.base, built.ours)
    )
    return (ours - base) | {f"GONE: {line}" for line in base - ours}


# What refpolicy's container module has from 2024 on, and two rules of which for one domain are refused.
LATER = """
(type container_tmpfs_t)
(typetransition container_domain tmpfs_t file container_tmpfs_t)
"""


@lru_cache
def stand_ins() -> tuple[str, str, str]:
    """Refpolicy's names, the targeted policy's, and refpolicy's of a later one, each with its prelude."""
    built = policies.build()
    prelude = standin.prelude(debian.binary(built.base))
    modules = "\n".join(policies.texts().values())
    names = standin.names_of(modules, debian.modules_text(built.base))
    later = names if "container_tmpfs_t" in names else names + LATER
    return prelude + names, prelude + standin.targeted(), prelude + later


def added_to_targeted() -> frozenset[str]:
    """To the stand-in of the targeted policy."""
    base, ours = (
        standin.compiled(stand_ins()[1]),
        standin.compiled(stand_ins()[1], *policies.texts().values()),
    )
    assert base is not None, "the stand-in of the targeted policy does not compile"
    assert ours is not None, "the modules do not compile on the stand-in of the targeted policy"
    return ours.lines - base.lines


def path(policy: str) -> str:
    """Where the list for a policy is."""
    return f"{HERE}/adds-{policy}.txt"


def read(policy: str) -> frozenset[str]:
    """The list for a policy."""
    with open(path(policy), encoding="utf-8") as file:
        return frozenset(line.rstrip("\n") for line in file if not line.startswith("#"))


def write(policy: str, lines: frozenset[str]) -> None:
    """Make the list what it is now."""
    with open(path(policy), "w", encoding="utf-8") as file:
        file.write(
            "# SPDX-License-Identifier: Apache-2.0\n# Made by tests/policy/expected.py; see there.\n"
        )
        file.writelines(f"{line}\n" for line in sorted(lines))


def main() -> None:
    """Write both lists."""
    write("refpolicy", added_to_refpolicy())
    write("targeted", added_to_targeted())


if __name__ == "__main__":
    main()
