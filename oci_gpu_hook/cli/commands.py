# SPDX-License-Identifier: Apache-2.0
"""The program with all its commands."""

from __future__ import annotations

import click

from oci_gpu_hook.cli import (
    VERSION,
    cdi,
    configure,
    containers,
    doctor,
    examples,
    features,
    flags,
    info,
    inventory,
    log,
    metrics,
    plan,
    selinux,
    validate,
)
from oci_gpu_hook.cli.options import CommandGroup

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


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(
    VERSION, prog_name="oci-gpu-hook", message="%(prog)s %(version)s", help="Show the version and exit."
)
def program() -> None:
    """Puts NVIDIA GPUs into containers, as an OCI hook.

    A container engine starts it as 'oci-gpu-hook createRuntime' (or prestart) with the container's state on stdin.
    The commands below set up a host, and show and check what the hook does; none of them changes a container.
    """


for command in (
    *(plan.plan, info.info, inventory.inventory, cdi.cdi, configure.configure),
    *(doctor.doctor, validate.validate, containers.containers, flags.flags),
    *(selinux.selinux, log.log, metrics.metrics, features.features),
):
    program.add_command(command)
examples.add(program)
