# SPDX-License-Identifier: Apache-2.0
"""Each command's examples, at the end of its help and in the manual, and the line that its group has for it."""

from __future__ import annotations

import click

# The words behind the program's name.
_EXAMPLES = {
    "plan": ("plan --bundle /run/containers/BUNDLE", "plan --image-root . --env NVIDIA_VISIBLE_DEVICES=0"),
    "info": ("info --all", "info --settings --json"),
    "inventory refresh": ("inventory refresh", "inventory refresh --nodes"),
    "inventory watch": ("inventory watch", "inventory watch --interval 60 --cdi-spec /run/cdi/oci-gpu-hook.yaml"),
    "cdi generate": ("cdi generate --output /run/cdi/oci-gpu-hook.yaml", "cdi generate --vendor OCI_AMD"),
    "cdi remove": ("cdi remove", "cdi remove /etc/cdi/nvidia.yaml"),
    "configure": ("configure docker --set-as-default --dry-run", "configure docker --swarm GPU --shares 2"),
    "doctor": ("doctor", "doctor --container web"),
    "validate": ("validate", "validate driver --timeout 10 --json"),
    "containers": ("containers", "containers --watch"),
    "flags": ("flags docker --way cdi 0 1", "flags lxc --write /var/lib/lxc/web/config 0"),
    "selinux status": ("selinux status", "selinux status --json"),
    "selinux install": ("selinux install", "selinux install --host-root /mnt"),
    "selinux remove": ("selinux remove", "selinux remove --host-root /mnt"),
    "selinux relabel": ("selinux relabel", "selinux relabel --host-root /mnt"),
    "selinux explain": ("selinux explain", "selinux explain ./audit.log"),
    "log": ("log --since 10m --failed", "log -f --container web"),
    "metrics": ("metrics", "metrics --gpus --write"),
    "features": ("features", "features --write"),
}


def add(group: click.Group, words: str = "") -> None:
    for name, command in group.commands.items():
        # The first sentence: click would cut a longer one at the margin.
        command.short_help = " ".join((command.help or "").partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
        if isinstance(command, click.Group):
            add(command, f"{words}{name} ")
        else:
            lines = "\n".join([f"  oci-gpu-hook {example}" for example in _EXAMPLES[f"{words}{name}"]])
            command.epilog = f"\b\nExamples:\n{lines}"
