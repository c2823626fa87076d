# SPDX-License-Identifier: Apache-2.0
"""The tables of oci_gpu_hook_selinux(8), worked out by sesearch: what containers may do, and what our domains.

    python3 -m tests.policy.table [POLICY]      without a POLICY, Debian's with our modules

In that of domains an item is a power; behind each domain stand the types over which it has it.  What the policy gives
to every domain stands apart, and of containers what ours may beyond container_t.
Must not know an answer: every cell comes from the policy.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, partial
from typing import NamedTuple

from tests.policy import debian, policies, rules
from tests.policy.debian import run

TYPES = ("container_t", "nvidia_container_t", "nvidia_agent_t", "spc_t")
# The type of a file that the source makes in a folder of tmpfs_t: /dev/mqueue, and the host's own /dev/shm.
MADE = "MADE"


_LIBRARY, _NODE = "file open read map execute", "chr_file open read write ioctl"
# A line of the table: what one does, and all that it takes, as TYPE:CLASS PERMISSION...
LINES = {
    "a GPU node made in the container's own */dev* (what the hook does): open": (f"container_file_t:{_NODE}",),
    "the same: map, as CUDA does": ("container_file_t:chr_file map",),
    "a GPU node bound from the host: open and map": (f"xserver_misc_device_t:{_NODE} map",),
    "*/dev/dri* bound from the host: open and map": (f"dri_device_t:{_NODE} map",),
    "driver libraries of the host: load": (f"lib_t:{_LIBRARY}", f"textrel_shlib_t:{_LIBRARY}"),
    "sockets of nvidia-persistenced and nvidia-fabricmanager: connect": (
        "nvidia_runtime_t:sock_file write",
        "nvidia_service_domain:unix_stream_socket connectto",
    ),
    "MPS: connect": ("nvidia_mps_t:sock_file write", "nvidia_mps_domain:unix_stream_socket connectto"),
    "features for Node Feature Discovery: read": ("nvidia_feature_t:file open read",),
    "the same: write, rename": (
        "nvidia_feature_t:dir search write add_name remove_name",
        "nvidia_feature_t:file create open read write rename",
    ),
    "*/dev/shm* with the container's label: make, map": (
        "container_file_t:dir search write add_name",
        "container_file_t:file create open read write map",
    ),
    "a message queue (its type is the policy's choice): make, open": (f"{MADE}:file create open read write",),
    "the host's */dev/shm* (host IPC): make, map": (
        "tmpfs_t:dir search write add_name",
        f"{MADE}:file create open read write map",
    ),
}


HOOKS = ("oci_gpu_hook_t", "oci_gpu_hook_entry_t", "oci_gpu_runtime_t")
PLAIN = "container_t"
CONTAINERS = ("nvidia_container_t", "nvidia_agent_t")
EVERY = "domain"
_FILES = "file dir lnk_file"
_SOCKETS = "sock_file fifo_file"
_NODES = "chr_file blk_file"
_OWN = ("file", "dir", "lnk_file", "fifo_file")
_CHANGES = "create write append unlink rename rmdir setattr link add_name remove_name"


class Power(NamedTuple):
    """kinds, permissions: the classes and the permissions of which any gives it.

    told: what a cell lists: ``types``, or the ``permissions`` themselves, or the ``classes``.
    """

    words: str
    kinds: str
    permissions: str
    told: str = "types"


POWERS = (
    Power("start a program that stays in the domain", "file", "execute_no_trans"),
    Power("start a program in another domain", "process", "transition dyntransition"),
    Power("open device nodes", _NODES, "open"),
    Power("make sockets of the network", "SOCKETS", "create", "classes"),
    Power("connect and send to local sockets", "unix_stream_socket unix_dgram_socket", "connectto sendto"),
    Power("make, write, rename and remove files and folders", _FILES, _CHANGES),
    Power("the same of sockets and pipes", _SOCKETS, _CHANGES),
    Power("change labels of files", f"{_FILES} {_SOCKETS} {_NODES}", "relabelfrom relabelto"),
    Power(
        "mount on files and folders, or mount and unmount file systems",
        f"{_FILES} {_SOCKETS} {_NODES} filesystem",
        "mounton mount remount unmount",
    ),
    Power("stop, signal and trace processes", "process", "ptrace sigkill signal sigstop"),
    Power("use capabilities", "capability capability2", "ANY", "permissions"),
    Power("use capabilities in a user namespace", "cap_userns cap2_userns", "ANY", "permissions"),
    Power("load and run eBPF programs", "bpf", "prog_load prog_run map_create"),
    Power("start, stop or enable units of systemd", "system service", "start stop enable disable reload reboot halt"),
    Power("read the kernel's log", "system", "syslog_read"),
    Power("load kernel modules, or change the policy", "system security", "module_load load_policy setenforce setbool"),
)


class Policy:
    """A binary policy that is asked: once for each source, as each question takes seconds."""

    def __init__(self, path: str) -> None:
        text = run("seinfo", "-b", "-x", path)
        self.booleans = dict(re.findall(r"bool (\w+) (true|false);", text))
        # The types that a name stands for: itself, or those that have the attribute.
        self.types: dict[str, set[str]] = defaultdict(set)
        for words in map(str.split, rules.memberships(path)):
            self.types[words[1]].add(words[-1])
        self.lines = cache(partial(rules.rules, path, "-s"))

    def grants(self, source: str, access: str) -> set[str] | None:
        """None if not granted; else the booleans' states that it takes, none where it takes nothing."""
        what, *permissions = access.split()
        target, _, kind = what.partition(":")
        target = self.made_type(source) if target == MADE else target
        if target not in self.types or source not in self.types:
            return None
        found = [
            rule
            for rule in rules.allowing(self.lines(source))
            if rule.kind == kind and self.types[rule.target] & self.types[target]
        ]
        takes: set[str] = set()
        for permission in permissions:
            conditions = [
                f"{rule.boolean}={rule.state.lower()}" if rule.boolean else ""
                for rule in found
                if permission in rule.permissions
            ]
            if not conditions:
                return None
            if "" not in conditions:
                # Of several, one that is in force by default is the one that counts.
                in_force = [it for it in conditions if self.booleans.get(it.partition("=")[0]) == it.partition("=")[2]]
                takes.add(min(in_force or conditions))
        return takes

    def made_type(self, source: str) -> str:
        """The type of a file that `source` makes in a folder of tmpfs_t."""
        found = (re.match(r"type_transition \S+ tmpfs_t:file (\w+);", line) for line in self.lines(source))
        return next((match[1] for match in found if match), "tmpfs_t")

    def cell(self, source: str, needs: Iterable[str]) -> str:
        """yes, no, or the boolean that decides and how it stands by default."""
        takes: set[str] = set()
        for access in needs:
            granted = self.grants(source, access)
            if granted is None:
                return "no"
            takes |= granted
        words = []
        for take in sorted(takes):
            name, _, state = take.partition("=")
            standing = {"true": "on", "false": "off"}[self.booleans.get(name, "false")]
            words.append(f"by boolean **{name}** {'' if state == 'true' else 'off '}(default {standing})")
        return ", ".join(words) or "yes"

    def may(self, name: str, power: Power) -> set[str]:
        """Over what a domain has a power, itself as "itself"; what every domain has is left out."""
        granted = self._granted(name, power)
        return {text for source, text in granted if source != EVERY}

    def all_may(self, power: Power) -> set[str]:
        """The same of every domain."""
        return {text for source, text in self._granted(HOOKS[1], power) if source == EVERY}

    def _granted(self, name: str, power: Power) -> set[tuple[str, str]]:
        found = set()
        for rule in rules.allowing(self.lines(name)):
            source, target, kind, words, boolean, state = rule
            if power.permissions != "ANY":
                words = words & {*power.permissions.split()}
            # Its own files are its entries in /proc, which every domain has.
            own = target == name and kind in _OWN
            if not words or own or not _is_of(kind, power.kinds):
                continue
            when = f" by **{boolean}**" if boolean else ""
            when += " off" if state == "False" else ""
            texts: Iterable[str] = words
            if power.told == "types":
                texts = ("itself" if target == name else f"*{target}*",)
            elif power.told == "classes":
                texts = (kind.removesuffix("_socket"),)
            found |= {(source, f"{text}{when}") for text in texts}
        # A boolean that gives what is given anyway says nothing.
        given = {text for _, text in found}
        return {(a, text) for a, text in found if " by " not in text or text.partition(" by ")[0] not in given}


def table(policy: Policy, other: Policy | None = None) -> str:
    """The table as a definition list, in the manual's reStructuredText.

    other: RHEL's and Fedora's policy, or a stand-in for it: if it differs, that is said.
    """
    items = []
    for words, needs in LINES.items():
        cells = {name: policy.cell(name, needs) for name in TYPES}
        text = "; ".join(f"*{name}* {cell}" for name, cell in cells.items())
        if other:
            there = {name: other.cell(name, needs) for name in TYPES}
            differing = [f"*{it}* {there[it]}" for it in TYPES if there[it] != cells[it]]
            text += f"; on RHEL and Fedora {', '.join(differing)}" if differing else ""
        items.append(f"{words}\n    {text}\n")
    return "\n".join(items)


def _is_of(kind: str, kinds: str) -> bool:
    if kinds == "SOCKETS":
        return kind.endswith("_socket") and not kind.startswith("unix_")
    return kind in kinds.split()


def _cell(names: list[str], may: set[str]) -> str:
    who = ", ".join(f"*{name}*" for name in names)
    return f"{who}: {', '.join(sorted(may))}" if may else f"{who}: no"


def _grouped(cells: dict[str, set[str]]) -> list[str]:
    """A text for each answer, with all that have it, in the order of the first."""
    answers: dict[frozenset[str], list[str]] = {}
    for name, may in cells.items():
        answers.setdefault(frozenset(may), []).append(name)
    return [_cell(names, {*may}) for may, names in answers.items()]


def powers(policy: Policy, other: Policy | None = None) -> str:
    """The same of powers; of another policy only where the hook's domains differ."""
    items = []
    for power in POWERS:
        hooks = {name: policy.may(name, power) for name in HOOKS}
        lines = _grouped(hooks)
        if other:
            there = {name: other.may(name, power) for name in HOOKS}
            differing = {name: it for name, it in there.items() if it != hooks[name]}
            lines += [f"on RHEL and Fedora {text}" for text in _grouped(differing)]
        plain = policy.may(PLAIN, power)
        lines.append(f"*{PLAIN}*: {'yes' if plain else 'no'}")
        more = {name: policy.may(name, power) - plain for name in CONTAINERS}
        beyond = {name: it for name, it in more.items() if it}
        lines += [f"{text} beyond that" for text in _grouped(beyond)]
        if every := policy.all_may(power):
            lines.append(f"every domain: {', '.join(sorted(every))}")
        items.append(f"{power.words}\n    {'; '.join(lines)}\n")
    return "\n".join(items)


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else debian.binary(policies.build().ours)
    asked = Policy(given)
    sys.stdout.write(table(asked) + powers(asked))
