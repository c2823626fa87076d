# SPDX-License-Identifier: Apache-2.0
"""``features``: this node's features for Node Feature Discovery, and the file that its local source reads.

Ours lie in the namespace that every NFD accepts.  Other vendors' devices are below the vendor's domain, by names that
begin with ours: the vendors' own labellers, such as AMD's, keep theirs there.  What is below nvidia.com is GPU Feature
Discovery's.  Every name and value is one that Kubernetes takes.
"""

from __future__ import annotations

import re

import click

from oci_gpu_hook.cli import VERSION, accelerators
from oci_gpu_hook.cli.options import config_and_host
from oci_gpu_hook.driver.survey import driver_version
from oci_gpu_hook.errors import ConfigError, DriverError, UsageError
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import hardware, holdercount
from oci_gpu_hook.node.machine import libselinux, outputfile, validationrecord
from oci_gpu_hook.node.machine.validationrecord import FAILED, PASSED, STEPS, Validation
from oci_gpu_hook.request.settings import Settings, read_settings

# In /run/oci-gpu-hook: the path of the file that was written last, as it outlives the setting.
_LAST = "features"
OURS = "feature.node.kubernetes.io/oci-gpu-hook."
_LONGEST = 63
_NOT_ALLOWED = re.compile(r"[^\sA-Za-z0-9_.-]")
_LONGEST_CLASS = 32
# Kubernetes: what stands before the slash.  A domain, and no name of a single word.
_DOMAIN = re.compile(r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Of a vendor's file its kind, ``amd.com/gpu``; how many devices have a name; and the driver's version, or "".
Others = tuple[tuple[str, int, str], ...]


@click.command()
@click.option("--write", is_flag=True, help="Write the file that the setting 'features' names, if there is a device.")
@click.option("--remove", is_flag=True, help="Remove that file, and one that --write has written before it.")
@config_and_host
def features(write: bool, remove: bool, config: str | None, host: HostRoot) -> None:
    """Show what this node offers containers, as Node Feature Discovery's local source reads it.

    Labels feature.node.kubernetes.io/oci-gpu-hook... are the hook's version, the SELinux mode that is served, GPUs that
    are not healthy, and the last validation.  Other vendors' devices have labels below the domains of their kinds, such
    as amd.com/oci-gpu-hook.gpu.count.  NVIDIA's GPU Feature Discovery labels models and driver.
    """
    settings = read_settings(config, None, host.path)
    if write and remove:
        raise UsageError("--write and --remove exclude one another")
    if remove:
        click.echo(_remove(host, settings) or "there is no file of features")
    elif write:
        click.echo(renew(host, settings) or "no setting 'features': nothing written")
    else:
        click.echo(_feature_text(host, settings, others(host)), nl=False)


def renew(host: HostRoot, settings: Settings) -> str:
    """Gives a sentence, "" if no file was there and the setting names none.  DriverError as `_feature_text`."""
    said = _remove(host, settings, keep=settings.features)
    if not settings.features:
        return said
    path = host.path.rstrip("/") + settings.features
    beside = others(host)
    if driver_version(host) is None and not beside:
        return f"no driver is loaded: {'removed' if outputfile.remove(path) else 'there is no'} {path}"
    try:
        found = _feature_text(host, settings, beside)
    except DriverError:
        # What it says of a driver is no longer true.
        outputfile.remove(path)
        raise
    _remember(host, settings.features)
    outputfile.write(path, found)
    return f"wrote {path}: {found.count(chr(10))} features"


def _remove(host: HostRoot, settings: Settings, keep: str = "") -> str:
    """Remove the file that was written last, and the setting's, unless it is `keep`; gives a sentence, "" for none."""
    last = (statefile.read_file(host, _LAST) or b"").decode("utf-8", "surrogateescape")
    names = [name for name in dict.fromkeys([last, settings.features]) if name not in ("", keep)]
    paths = [host.path.rstrip("/") + name for name in names]
    removed = [f"removed {path}" for path in paths if outputfile.remove(path)]
    if last not in ("", keep):
        _remember(host, "")
    return "; ".join(removed)


def _remember(host: HostRoot, path: str) -> None:
    with outputfile.explained(f"{statefile.FOLDER}/{_LAST}"):
        statefile.write(host, _LAST, path.encode("utf-8", "surrogateescape"))


def others(host: HostRoot) -> Others:
    """What other vendors' files name that is here and can be served."""
    found = hardware.find_vendors(host).vendors
    vendors = [it for it in found if it.inventory.kind and it.nodes() and not it.lacking()]
    return tuple([(it.inventory.kind, len(it.devices), it.inventory.version) for it in vendors])


def _feature_text(host: HostRoot, settings: Settings, beside: Others) -> str:
    """As it is now; DriverError if NVIDIA's driver is half installed, or there is neither that nor another's device."""
    accelerators.check_is_server(host)
    is_left_out = beside and driver_version(host) is None
    found = accelerators.NOTHING if is_left_out else hardware.nvidia(host, settings.driver_root)
    if found.misfits:
        lacking = ", ".join([misfit.name for misfit in found.misfits])
        raise DriverError(f"the driver {found.driver_version} lacks {lacking}", "install all of it")
    last, unhealthy = validationrecord.read_validation(host), len(holdercount.unhealthy_gpus(host, found))
    made = labels(found.driver_version, _selinux_mode(host), last, unhealthy, beside)
    return "".join([f"{name}={value}\n" for name, value in made.items()])


def _selinux_mode(host: HostRoot) -> str:
    """The mode of oci_gpu_hook_selinux(8) that containers with GPUs can have here at best."""
    try:
        found = libselinux.status(host)
    except ConfigError:
        return ""
    if not found.enabled:
        return "disabled"
    able = {use.type for use in found.uses if use.can}
    if "nvidia_container_t" in able:
        return "selinux"
    return "none" if "container_t" in able else "privileged"


def labels(driver: str, selinux: str, validation: Validation | None, unhealthy: int, others: Others) -> dict[str, str]:
    """By whole names.  driver: its version, "" without NVIDIA's driver, which is what is validated."""
    ours = {"version": VERSION, "unhealthy-gpus": str(unhealthy or ""), "selinux-mode": selinux}
    if driver and validation and validation.driver_version == driver:
        outcomes = {step.name: step.outcome for step in validation.steps}
        whole = PASSED if all([outcomes.get(name) == PASSED for name in STEPS]) else "incomplete"
        ours["validation"] = FAILED if FAILED in outcomes.values() else whole
        ours.update({f"validation.{name}": outcome for name, outcome in outcomes.items()})
        ours["validation.timestamp"] = str(validation.time)
    elif driver:
        ours["validation"] = "none"
    named = {OURS + name: value for name, value in ours.items() if value}
    for kind, number, its_driver in others:
        domain, _, name = kind.partition("/")
        name = label_value(name)[:_LONGEST_CLASS].strip("-_.")
        if name and _DOMAIN.fullmatch(domain):
            # How many, if a request can tell them apart.
            its = {"present": "true", "count": str(number or ""), "driver-version": its_driver}
            named.update({f"{domain}/oci-gpu-hook.{name}.{key}": value for key, value in its.items() if value})
    return {name: label_value(value) for name, value in named.items()}


def label_value(words: str) -> str:
    """What Kubernetes takes as a label's value: letters, digits, ``-_.``, 63 at most, a letter or digit at each end."""
    return "-".join(_NOT_ALLOWED.sub("", words).split())[:_LONGEST].strip("-_.")
