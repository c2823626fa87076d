# SPDX-License-Identifier: Apache-2.0
"""``metrics``: counters of starts, for Prometheus."""

from __future__ import annotations

import click

from oci_gpu_hook.cli import spool, whole
from oci_gpu_hook.cli.options import config_file
from oci_gpu_hook.report import counters
from oci_gpu_hook.request.settings import read_settings


@click.command()
@click.option(
    "--write",
    is_flag=True,
    help="Write the file that the setting 'metrics' names; without the setting, stop counting.",
)
@config_file
def metrics(write: bool, config: str | None) -> None:
    """Show counters of starts, in Prometheus's text format.

    They count starts of containers that ask for devices, NVIDIA's or another vendor's: by outcome, refusals by reason
    and failures by step, and have a histogram of how long starts took, since counting began after the last boot.
    Hooks count once 'metrics --write' has run, which oci-gpu-hook-metrics.timer starts.
    """
    if not write:
        with spool.lock():
            click.echo(counters.exposition(spool.added_up()), nl=False)
        return
    file = read_settings(config, None).metrics
    with spool.lock():
        if not file:
            stopped = spool.stop()
            click.echo(
                "no setting 'metrics': " + ("stopped counting" if stopped else "not counting")
            )
            return
        spool.turn()
        whole.write(file, counters.exposition(spool.added_up()))
