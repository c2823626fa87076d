# SPDX-License-Identifier: Apache-2.0
"""``metrics``: counters of starts, and readings of GPUs, for Prometheus."""

from __future__ import annotations

import click

from oci_gpu_hook.cli import gpumetrics
from oci_gpu_hook.cli.options import LONGEST_SECONDS, Seconds, config_file
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.exporters import counters, spool
from oci_gpu_hook.node.machine import whole
from oci_gpu_hook.request.settings import read_settings


@click.command()
@click.option(
    "--write",
    is_flag=True,
    help="Write the file that the setting 'metrics' names; without the setting, stop counting.  With --gpus the file"
    " that 'gpu-metrics' names.",
)
@click.option("--gpus", is_flag=True, help="Of the GPUs and their driver, and not of starts.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=Seconds(0.1, LONGEST_SECONDS),
    default=10.0,
    show_default=True,
    help="How long NVML may take to answer, with --gpus.",
)
@config_file
def metrics(write: bool, gpus: bool, timeout: float, config: str | None) -> None:
    """Show counters of starts, in Prometheus's text format; with --gpus what NVML and the kernel say of each GPU.

    They count starts of containers that ask for devices, NVIDIA's or another vendor's: by outcome, refusals by reason
    and failures by step, and have a histogram of how long starts took, since counting began after the last boot.
    Hooks count once 'metrics --write' has run, which oci-gpu-hook-metrics.timer starts.

    With --gpus: whether each GPU answers, its sensors, memory and ECC errors, which container holds it, XID errors of
    the kernel's log, and the last validation.  oci-gpu-hook-gpu-metrics.timer starts it.
    """
    if gpus:
        _of_gpus(write, timeout, config)
        return
    if not write:
        with spool.lock():
            click.echo(counters.exposition(spool.added_up()), nl=False)
        return
    file = read_settings(config, None).metrics
    with spool.lock():
        if not file:
            stopped = spool.stop()
            click.echo("no setting 'metrics': " + ("stopped counting" if stopped else "not counting"))
            return
        spool.turn()
        whole.write(file, counters.exposition(spool.added_up()))


def _of_gpus(write: bool, timeout: float, config: str | None) -> None:
    settings = read_settings(config, None)
    if write and not settings.gpu_metrics:
        click.echo("no setting 'gpu-metrics': nothing written")
        return
    text = gpumetrics.exposition(HostRoot(), settings.driver_root, timeout, settings.gpu_holders, remember=write)
    if write:
        whole.write(settings.gpu_metrics, text)
    else:
        click.echo(text, nl=False)
