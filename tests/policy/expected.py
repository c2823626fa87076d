# SPDX-License-Identifier: Apache-2.0
"""What our modules add to a policy, line by line: the files adds-*.txt are this list, reviewed by people.

    python3 -m tests.policy.expected            write them again, and the manual's tables; then read the difference

Must not be run to make a test pass: it is run when a rule was changed on purpose.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from functools import lru_cache

from tests.policy import debian, policies, rules, standin, table

HERE = os.path.dirname(os.path.abspath(__file__))
MANUAL = f"{policies.REPOSITORY}/packaging/man/oci_gpu_hook_selinux.8.rst"


# What these two may is what container_t may there, and the lists of test_policy, which compares them.
_COMPARED = re.compile(r"(allow|dontaudit|type_transition) (.* )?nvidia_(container|agent)_t\b")


@lru_cache
def added_to_refpolicy() -> frozenset[str]:
    """To Debian's policy with its container module, the real one; but for the rules of containers' types."""
    built = policies.build()
    base, ours = (
        rules.everything(debian.binary(root), debian.file_contexts(root)) for root in (built.base, built.ours)
    )
    added = frozenset(line for line in ours - base if not _COMPARED.match(line))
    return added | {f"GONE: {line}" for line in base - ours}


# What refpolicy has from 2024 on, and two rules of which for one domain are refused; and what from 2025 and 2026 on.
LATER = """
(type container_tmpfs_t)
(typetransition container_domain tmpfs_t file container_tmpfs_t)
(type crio_conmon_t)
(type kubelet_t)
(type kubernetes_config_t)
(typeattribute cgroup_types)
(typeattributeset cgroup_types (cgroup_t nsfs_t))
(typeattribute incus_container_domain)
(allow incus_container_domain self (process (setfscreate)))
(typeattribute kubernetes_container_engine_domain)
(typeattribute kubernetes_container_domain)
(allow kubernetes_container_domain self (process (setkeycreate)))
""" + "".join(
    f"(boolean container_{name} false)\n"
    for name in ("execmod_ro_files", "use_host_all_caps", "use_hugetlbfs", "use_mknod", "use_sysadmin")
    + ("use_userns_all_caps", "use_userns_mknod", "use_userns_sysadmin")
)


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
    base, ours = (standin.compiled(stand_ins()[1]), standin.compiled(stand_ins()[1], *policies.texts().values()))
    assert base is not None, "the stand-in of the targeted policy does not compile"
    assert ours is not None, "the modules do not compile on the stand-in of the targeted policy"
    return ours.lines - base.lines


def tables() -> dict[str, str]:
    """The manual's tables, by the words that stand before each in its source."""
    refpolicy = table.Policy(debian.binary(policies.build().ours))
    with tempfile.TemporaryDirectory() as folder:
        made = standin.compile_in(folder, stand_ins()[1], *policies.texts().values())
        assert made, "the modules do not compile on the stand-in of the targeted policy"
        other = table.Policy(f"{folder}/policy")
        return {"policy table": table.table(refpolicy, other), "table of powers": table.powers(refpolicy, other)}


def in_manual(name: str, text: str) -> str:
    """A table as the manual's source has it."""
    return f".. {name}\n\n{text}\n.. end of the {name}\n"


def with_tables(manual: str) -> str:
    """The manual's source with the tables as they are now."""
    for name, text in tables().items():
        begin, end = f".. {name}\n", f".. end of the {name}\n"
        before, _, rest = manual.partition(begin)
        manual = before + in_manual(name, text) + rest.partition(end)[2]
    return manual


def path(policy: str) -> str:
    return f"{HERE}/adds-{policy}.txt"


def read(policy: str) -> frozenset[str]:
    with open(path(policy), encoding="utf-8") as file:
        return frozenset(line.rstrip("\n") for line in file if not line.startswith("#"))


def write(policy: str, lines: frozenset[str]) -> None:
    """Make the list what it is now."""
    with open(path(policy), "w", encoding="utf-8") as file:
        file.write("# SPDX-License-Identifier: Apache-2.0\n# Made by tests/policy/expected.py; see there.\n")
        file.writelines(f"{line}\n" for line in sorted(lines))


def main() -> int:
    """Write both lists, and the manual's tables; 1 if the manual said something else than the policy."""
    write("refpolicy", added_to_refpolicy())
    write("targeted", added_to_targeted())
    with open(MANUAL, encoding="utf-8") as file:
        before = file.read()
    after = with_tables(before)
    if after == before:
        return 0
    with open(MANUAL, "w", encoding="utf-8") as file:
        file.write(after)
    print(f"{MANUAL} said something else: its tables are new: read them")
    return 1


if __name__ == "__main__":
    sys.exit(main())
