# SPDX-License-Identifier: Apache-2.0
"""``features``: this node's features for Node Feature Discovery, and the file that its local source reads."""

from __future__ import annotations

import os

import click

from oci_gpu_hook.cli import onhost, whole
from oci_gpu_hook.cli.options import config_file, host_root, nvml_timeout
from oci_gpu_hook.cli.version import VERSION
from oci_gpu_hook.driver import nvml, readings, survey
from oci_gpu_hook.driver.gpu import driver_version
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host import libselinux, validated
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.report import features as report
from oci_gpu_hook.request.settings import Settings, read_settings

_MACHINE = "/sys/class/dmi/id/product_name"
_PCI_DEVICES = "/sys/bus/pci/devices"


@click.command()
@click.option(
    "--write",
    is_flag=True,
    help="Write the file that the setting 'features' names; remove it where no driver is loaded.",
)
@nvml_timeout
@config_file
@host_root
def features(write: bool, nvml_timeout: float, config: str | None, host_root: str) -> None:
    """Show this node's features, as Node Feature Discovery's local source reads them.

    Driver, CUDA, GPUs and MIG devices by the names of gpu-feature-discovery (nvidia.com/...), and as
    feature.node.kubernetes.io/oci-gpu-hook... the hook's version, the SELinux mode that is served, and the last
    validation.  What only NVML knows is missing where it does not answer.
    """
    root, settings = HostRoot(host_root), read_settings(config, None)
    if write:
        said = renew(root, settings, nvml_timeout)
        click.echo(said or "no setting 'features': nothing written")
        return
    click.echo(_text(root, settings, nvml_timeout), nl=False)


def renew(root: HostRoot, settings: Settings, seconds: float) -> str:
    """Write the feature file, or remove it where no driver is loaded or none can be used; gives a sentence.

    "" where there is no setting for it.  DriverError where the driver is half installed.
    """
    if not settings.features:
        return ""
    path = root.path.rstrip("/") + settings.features
    if driver_version(root) is None:
        return f"no driver is loaded: {_remove(path)}"
    try:
        found = _text(root, settings, seconds)
    except DriverError:
        # What it says of a driver is no longer true.
        _remove(path)
        raise
    is_there = os.path.isdir(os.path.dirname(os.path.abspath(path)))
    whole.write(path, found)
    made = "" if is_there else "; its folder was not there: is Node Feature Discovery?"
    return f"wrote {path}: {found.count(chr(10))} features{made}"


def _remove(path: str) -> str:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return f"there is no {path}"
    except OSError as err:
        raise whole.failure(path, err) from err
    return f"removed {path}"


def _text(root: HostRoot, settings: Settings, seconds: float) -> str:
    """The feature file of a host as it is now; on stderr what NVML did not say."""
    onhost.check_is_server(root)
    found = survey.current(root, settings.driver_root)
    if found.misfits:
        lacking = ", ".join([misfit.name for misfit in found.misfits])
        raise DriverError(f"the driver {found.driver_version} lacks {lacking}", "install all of it")
    answered: tuple[readings.GpuReading, ...] = ()
    if seconds:
        try:
            answered = readings.ask(nvml.library(root, found), seconds).gpus
        except nvml.NvmlUnavailable as err:
            click.echo(f"oci-gpu-hook: {err}: features that only it knows are missing", err=True)
    classes = [_line(root, f"{_PCI_DEVICES}/{gpu.proc}/class") for gpu in found.gpus]
    host = report.Host(
        inventory=found,
        readings=answered,
        classes=tuple(classes),
        machine=_line(root, _MACHINE),
        strategy=settings.mig_strategy,
        selinux=_selinux_mode(root),
        version=VERSION,
        validation=validated.read(root),
    )
    return report.text(report.labels(host))


def _selinux_mode(root: HostRoot) -> str:
    """The mode of oci_gpu_hook_selinux(8) that containers with GPUs can have here at best."""
    if not libselinux.is_there(root):
        return "disabled"
    try:
        import selinux as library
    except ImportError:
        return ""
    able = {use.type for use in libselinux.status(library, root).uses if use.can}
    if "nvidia_container_t" in able:
        return "selinux"
    return "none" if "container_t" in able else "privileged"


def _line(root: HostRoot, path: str) -> str:
    return (root.read(path) or b"").decode("utf-8", "replace").strip()
