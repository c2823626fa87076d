# SPDX-License-Identifier: Apache-2.0
"""``metrics``: counters of starts; with --gpus, which opens every GPU in a process of its own, who holds which GPU."""

from __future__ import annotations

import time

import click

from oci_gpu_hook.cli import accelerators, containers
from oci_gpu_hook.cli.options import config_file, seconds
from oci_gpu_hook.driver import nodes
from oci_gpu_hook.driver.inventory import DriverInventory, with_nodes
from oci_gpu_hook.driver.survey import driver_version, list_gpus, read_true
from oci_gpu_hook.errors import DriverError, HookError, UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.containerdevices import MemoryUse
from oci_gpu_hook.node.exporters import counters, exposition, healthrecord
from oci_gpu_hook.node.gpus import hardware, holdercount, nvml
from oci_gpu_hook.node.machine import outputfile, validationrecord
from oci_gpu_hook.request.settings import Settings, read_settings


@click.command()
@click.option(
    "--write",
    is_flag=True,
    help="Write the file that the setting 'metrics' names; without the setting, stop counting.  With --gpus the file"
    " that 'gpu-metrics' names.",
)
@click.option("--remove", is_flag=True, help="Remove the files that the settings 'metrics' and 'gpu-metrics' name.")
@click.option("--gpus", is_flag=True, help="Of the GPUs and their driver, and not of starts.")
@seconds("--timeout", "How long NVML may take to answer, with --gpus.", 10.0, times=2)
@config_file
def metrics(write: bool, remove: bool, gpus: bool, timeout: float, config: str | None) -> None:
    """Show counters of starts, in Prometheus's text format; with --gpus who holds which GPU, and its health.

    They count starts of containers that ask for devices, NVIDIA's or another vendor's: by outcome, refusals by reason
    and failures by step, and have a histogram of how long starts took, since counting began after the last boot.
    Hooks count once 'metrics --write' has run, which oci-gpu-hook-metrics.timer starts.

    With --gpus: which container holds which GPU, leases and health of the devices, whether the driver, NVML and the
    saved inventory serve, and the last validation.  oci-gpu-hook-gpu-metrics.timer starts it.  Temperature, power,
    clocks and the use of a GPU are told by NVIDIA's DCGM exporter.
    """
    if remove and (write or gpus):
        raise UsageError("--remove excludes --write and --gpus")
    # Wrong settings stop no look at the counters.
    settings = read_settings(config, None) if gpus or write or remove else Settings()
    file = settings.gpu_metrics if gpus else settings.metrics
    if remove:
        click.echo(_remove(settings) or "there is no file of metrics")
    elif gpus and write and not file:
        click.echo("no setting 'gpu-metrics': nothing written")
    elif gpus:
        _put(file if write else "", gpu_exposition(HostRoot(), settings, timeout, remember=write))
    else:
        with counters.lock():
            if write and not file:
                click.echo(f"no setting 'metrics': {'stopped counting' if counters.stop() else 'not counting'}")
                return
            if write:
                counters.turn()
            elif not counters.are_on():
                hint = "set 'metrics', and run 'oci-gpu-hook metrics --write'"
                click.echo(f"oci-gpu-hook: hooks do not count starts yet: {hint}", err=True)
            _put(file if write else "", counters.exposition(counters.added_up()))


def _remove(settings: Settings) -> str:
    """Another exporter's file of that name stays."""
    ours, removed, faults = f"# HELP {exposition.PREFIX}".encode(), [], []
    for file in filter(None, (settings.metrics, settings.gpu_metrics)):
        try:
            removed += [f"removed {file}"] if outputfile.remove(file, ours) else []
        except HookError as err:
            faults.append(err)
    if faults:
        raise faults[0]
    return "; ".join(removed)


def _put(file: str, text: str) -> None:
    if file:
        outputfile.write(file, text)
    else:
        click.echo(text, nl=False)


def gpu_exposition(host: HostRoot, settings: Settings, timeout: float, *, remember: bool) -> str:
    """Of a host now; on stderr why NVML did not answer.  remember: whether starts are to know what is found."""
    accelerators.check_is_server(host)
    began = time.monotonic()
    version, found, said = driver_version(host) or "", accelerators.NOTHING, None
    try:
        found = hardware.nvidia(host, settings.driver_root)
        said = nvml.readings(host, found, timeout)
    except DriverError as err:
        if version:
            click.echo(f"oci-gpu-hook: {err.message}", err=True)
    except nvml.NvmlUnavailable as err:
        click.echo(f"oci-gpu-hook: {err}", err=True)
    if remember:
        healthrecord.renew(host, said, {})
    gpus = with_nodes(host, found, containers.FAMILIES, driver_root=settings.driver_root) if found.gpus else found
    held, memory = _held(host, gpus)
    return exposition.of_gpus(
        driver_version=version,
        gpus=len(nodes.gpus_here(host, list_gpus(host))),
        answers=said is not None,
        log_readable=healthrecord.is_log_readable(host),
        fresh=read_true(host, settings.driver_root) is not None,
        held=held,
        memory=memory,
        # Behind what has just been found of the GPUs' health.
        counted=holdercount.count_holders(host, found, settings.gpu_holders),
        validation=validationrecord.read_validation(host),
        time=time.time(),
        duration=time.monotonic() - began,
    )


def _held(host: HostRoot, gpus: DriverInventory) -> tuple[list[dict[str, str]], list[tuple[dict[str, str], MemoryUse]]]:
    """See `exposition`.  None of a container whose device cgroup cannot be read."""
    seen, _ = containers.find_holders(host, gpus)
    uuids = {gpu.nvml_index: gpu.uuid for gpu in gpus.gpus}
    held, memory = [], []
    holding = [it for it in seen.holding if it.is_certain]
    # Root's first: a user with very many must not keep them out.
    for holder in sorted(holding, key=lambda it: bool(it.container.running.of_user)):
        running = holder.container.running
        # A user can give a container any id: it may be that of another team's.
        id = "" if running.of_user else running.id
        who = {"container": id or f"{running.of_user} process {running.pid}".lstrip()}
        who.update({name: getattr(running.called, name) for name in ("name", "pod", "namespace")})
        for share in holder.keeps():
            if uuid := uuids.get(share.gpu):
                held.append({"uuid": uuid, "mig_uuid": share.uuid if share.mig else "", **who})
        memory += [({"address": use.address.removeprefix("0000"), **who}, use) for use in holder.container.memory]
    return held, memory
