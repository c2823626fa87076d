# SPDX-License-Identifier: Apache-2.0
"""Remedies: commands that root pastes, made from words.  Pure.

Each word is quoted for the shell.  A text that a container, a user or a process has chosen must not be a word, unless
`is_name` holds for it: a name may begin with a dash, and a path may lead to what its owner wants root to run.
"""

from __future__ import annotations

import re
import shlex

from oci_gpu_hook.errors import plain

# An id, or a name as podman and Docker take it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,255}", re.ASCII)


class Remedy(str):
    """What fixes a fault; "" for nothing.  Made by the functions below alone."""

    __slots__ = ()


NOTHING = Remedy()


def command(*words: str, note: str = "") -> Remedy:
    """One command; note: a text of ours for its reader, which the shell takes for a comment."""
    line = shlex.join(words)
    return Remedy(f"{line}  # {note}" if note else line)


def then(*commands: Remedy) -> Remedy:
    """Several commands, each to be run if the one before has succeeded; ValueError unless the last alone has a note."""
    if any(["  # " in it for it in commands[:-1]]):
        raise ValueError("a note would hide the commands behind it")
    return Remedy(" && ".join(commands))


def in_words(hint: str) -> Remedy:
    """What an error says of who can fix it, and how."""
    return Remedy(plain(hint))


DOCTOR = command("oci-gpu-hook", "doctor")
REFRESH = command("oci-gpu-hook", "inventory", "refresh")
REBOOT = command("systemctl", "reboot")
# By the distribution's package manager.
UPGRADE_KERNEL = {
    "dnf": then(command("dnf", "upgrade", "kernel"), REBOOT),
    "apt": then(command("apt", "full-upgrade"), REBOOT),
}
# What the driver has told the kernel's log.
KERNELS_LOG = command("journalctl", "--dmesg", "--grep=NVRM|Xid")


def roots_alone(*paths: str) -> Remedy:
    """Take files and folders from everybody but root."""
    return then(command("chown", "root:", *paths), command("chmod", "go-w", *paths))


def reinstall(tool: str) -> Remedy:
    return command(tool, "reinstall", "oci-gpu-hook")


def is_name(text: str) -> bool:
    """Whether a text has the form of an id or of a container's name, and so can be a word."""
    return _NAME.fullmatch(text) is not None
