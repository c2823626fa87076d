# SPDX-License-Identifier: Apache-2.0
"""``metrics``: counters of starts, for Prometheus."""

from __future__ import annotations

import click

from oci_gpu_hook import config as settings_of
from oci_gpu_hook import hook
from oci_gpu_hook import metrics as counters
from oci_gpu_hook.cli import spool, whole
from oci_gpu_hook.cli.options import config_file


@click.command()
@click.option(
    "--write",
    is_flag=True,
    help="Write the file that the setting 'metrics' names; without the setting, stop counting.",
)
@config_file
def metrics(write: bool, config: str | None) -> None:
    """Show counters of starts, in Prometheus's text format.

    Starts by outcome, refusals by reason, failures by step, and a histogram of how long they took, since counting began
    after the last boot.  Hooks count once 'metrics --write' has run, as oci-gpu-hook-metrics.timer has it run.
    """
    if not write:
        with spool.lock():
            click.echo(counters.exposition(spool.added_up()), nl=False)
        return
    file = settings_of.read(*hook.settings_file(config), {}).metrics
    with spool.lock():
        if not file:
            stopped = spool.stop()
            click.echo(
                "no setting 'metrics': " + ("stopped counting" if stopped else "not counting")
            )
            return
        spool.turn()
        whole.write(file, counters.exposition(spool.added_up()))
