# SPDX-License-Identifier: Apache-2.0
"""The program with all its commands."""

from __future__ import annotations

from importlib import import_module

import click

from oci_gpu_hook.cli import VERSION

EXIT_CODES = """\b
Exit codes:
  0  done, or nothing to do
  1  a fault of this program, or 'doctor' or 'validate' found a failure
  2  wrong usage
  3  bad state or bundle: the engine must act
  4  bad configuration: the administrator must act
  5  the request cannot be met: the container's author must act
  6  host driver absent, mismatched or half installed, or its validation failed
  7  a step failed, or a file could not be written; a start has undone all that it did
"""

# Each command, whose first word is its module's name, with the words of its examples.
_EXAMPLES = {
    "plan": ("plan --bundle .", "plan --image-root . --env NVIDIA_VISIBLE_DEVICES=0"),
    "info": ("info --all", "info --settings --json"),
    "inventory refresh": ("inventory refresh", "inventory refresh --nodes"),
    "inventory watch": ("inventory watch", "inventory watch --interval 60 --cdi-spec /run/cdi/oci-gpu-hook.yaml"),
    "cdi generate": ("cdi generate --output /run/cdi/oci-gpu-hook.yaml", "cdi generate --vendor OCI_AMD"),
    "cdi remove": ("cdi remove", "cdi remove /etc/cdi/nvidia.yaml"),
    "configure": ("configure docker --set-as-default --dry-run", "configure docker --swarm GPU --shares 2"),
    "doctor": ("doctor", "doctor --container web"),
    "validate": ("validate", "validate driver --timeout 10 --json"),
    "containers": ("containers", "containers --json"),
    "flags": ("flags docker --way cdi 0 1", "flags lxc --write /var/lib/lxc/web/config 0"),
    "selinux status": ("selinux status", "selinux status --json"),
    "selinux install": ("selinux install", "selinux install --host-root /mnt"),
    "selinux remove": ("selinux remove", "selinux remove --host-root /mnt"),
    "selinux relabel": ("selinux relabel", "selinux relabel --host-root /mnt"),
    "selinux explain": ("selinux explain", "selinux explain ./audit.log"),
    "log": ("log --since 10m --failed", "log -n 5 --container web"),
    "metrics": ("metrics", "metrics --gpus --write"),
    "features": ("features", "features --write"),
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(VERSION, prog_name="oci-gpu-hook", message="%(prog)s %(version)s", help="Show the version.")
def program() -> None:
    """Puts NVIDIA GPUs into containers, as an OCI hook.

    A container engine starts it as 'oci-gpu-hook createRuntime' (or prestart) with the container's state on stdin.
    The commands below set up a host, and show and check what the hook does; none of them changes a container.
    """


for words, examples in _EXAMPLES.items():
    module = import_module(f"oci_gpu_hook.cli.{words.partition(' ')[0]}")
    commands = [getattr(module, name) for name in words.split()]
    program.add_command(commands[0])
    for command in commands:
        # The first sentence: click would cut a longer one at the margin.
        command.short_help = " ".join((command.help or "").partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    commands[-1].epilog = "\n".join(["\b\nExamples:", *[f"  oci-gpu-hook {example}" for example in examples]])
