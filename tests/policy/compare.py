# SPDX-License-Identifier: Apache-2.0
"""Compare nvidia_container_t with container_t in a policy, rule by rule: for hosts whose policy is not Debian's.

    python3 -m tests.policy.compare [POLICY]        without a POLICY, the one that this machine's kernel runs

Prints every rule and attribute that only one of them has.  Exit status 1 where container_t has one that
nvidia_container_t lacks.  Must not judge what is more: people do.
"""

from __future__ import annotations

import sys

from tests.policy import rules

RUNNING = "/sys/fs/selinux/policy"


def main() -> int:
    """Print the difference."""
    policy = sys.argv[1] if len(sys.argv) > 1 else RUNNING
    found = []
    for name in ("container_t", "nvidia_container_t"):
        lines = {f"attribute {item}" for item in rules.attributes(policy, name)}
        found.append(lines | rules.concerning(policy, name))
    plain, confined = found
    for line in sorted(plain - confined):
        print(f"container_t only: {line}")
    for line in sorted(confined - plain):
        print(f"nvidia_container_t only: {line}")
    return 1 if plain - confined else 0


if __name__ == "__main__":
    sys.exit(main())
