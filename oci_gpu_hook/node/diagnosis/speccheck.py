# SPDX-License-Identifier: Apache-2.0
"""Findings about the host's CDI specs: each must say what the host has now.  Pure.

An engine makes the nodes that stand in a spec: a name that is stale gives another device than it says, or one that is
no longer there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oci_gpu_hook.driver.inventory import MigDevice
from oci_gpu_hook.errors import quoted
from oci_gpu_hook.node.diagnosis import Finding, failed, passed, warned
from oci_gpu_hook.node.diagnosis.remedy import REFRESH, Remedy, command, roots_alone, then
from oci_gpu_hook.node.engines.cdispecs import GPU, SpecDevice, SpecFile, words_of
from oci_gpu_hook.node.engines.specreaders import Reader

_CAPS = "/dev/nvidia-caps/nvidia-cap"
# The kernel module's first minors are of what is no instance's: the fabric's management, MIG's, and its monitoring.
_FIRST_OF_INSTANCES = 3
# As nvidia-ctk writes a MIG device's number with --device-name-strategy=type-index.
_TYPE = "mig"


def of_gpus(
    specs: tuple[SpecFile, ...],
    version: str,
    mig_devices: tuple[MigDevice, ...],
    out_of_date: Callable[[dict[str, Any]], str],
) -> list[Finding]:
    """The CDI specs of the GPUs, one in a folder, each as the host is now.

    version: the driver's, for which others' must be; mig_devices: the host's, with the names that NVML has for
    them now, or none: its spec must not name others; out_of_date: why a document of ours is, "" if it is not.
    """
    findings = []
    if not [spec for spec in specs if spec.kind == GPU or spec.fault]:
        return [passed("CDI", "no spec: the hook needs none")]
    specs = tuple([spec for spec in specs if spec.kind == GPU])
    for spec in specs:
        in_folder = [item for item in specs if item.folder == spec.folder]
        other = next((item.path for item in in_folder if item != spec), "")
        # The first one of ours is to stay.
        first_of_ours = next((item for item in in_folder if item.is_ours), None)
        remove = command("rm", spec.path)
        again = _again(spec, spec.path) if spec.is_ours else remove
        stale = _stale_name(spec.devices(), mig_devices)
        if not spec.is_ours and spec.driver != version and (spec.driver or not spec.fault):
            seen = f"{spec.path} is for driver {spec.driver or 'unknown'}, the host has {version}"
            findings.append(failed("CDI", seen, again))
        elif stale:
            # The names in a new spec are those of the saved inventory.
            remedy = then(REFRESH, again) if spec.is_ours else remove
            findings.append(failed("CDI", f"{spec.path} {stale}", remedy))
        elif other and spec != first_of_ours:
            findings.append(
                failed("CDI", f"{spec.path} and {other} give the same devices, and engines take neither", remove)
            )
        elif spec.fault:
            findings.append(warned("CDI", f"{spec.path} cannot be read here: {spec.fault}", again))
        elif not spec.is_ours:
            seen = f"{spec.path} was made by another program: engines use it without the hook"
            findings.append(warned("CDI", seen, remove))
        elif why := out_of_date(spec.document):
            findings.append(failed("CDI", f"{spec.path}: {why}", again))
        else:
            findings.append(passed("CDI", f"{spec.path} says what the host has"))
    return findings


def of_ours(spec: SpecFile, fault: str, well: str) -> Finding:
    """One of our specs for other devices; fault: why it is out of date, "" if it is not."""
    if fault:
        return failed("CDI", f"{spec.path}: {fault}", _again(spec, spec.path))
    return passed("CDI", f"{spec.path} {well}")


def unread(specs: tuple[SpecFile, ...]) -> list[Finding]:
    """Specs that are not read: what an engine takes them for is not known."""
    findings = []
    for spec in [spec for spec in specs if spec.fault and spec.kind != GPU]:
        if spec.is_open:
            seen = f"{spec.path}: {spec.fault}, and who writes it chooses what containers get"
            findings.append(warned("CDI", seen, roots_alone(spec.folder, spec.path)))
        else:
            findings.append(warned("CDI", f"{spec.path} cannot be read: {spec.fault}", "vi", spec.path))
    return findings


def unseen(specs: tuple[SpecFile, ...], readers: tuple[Reader, ...], real: Callable[[str], str]) -> list[Finding]:
    """The engines that do not look where a spec of ours lies, and have no other of its kind; real: without links."""
    findings = []
    ours = [(spec, real(spec.folder)) for spec in specs if spec.is_ours]
    for reader in readers:
        seen_kinds = {spec.kind for spec, folder in ours if folder in reader.folders}
        for spec in [spec for spec, _ in ours if spec.kind not in seen_kinds]:
            whose = f"{reader.file} names " if reader.file else "by default it looks in "
            where = f"{whose}{', '.join(reader.folders) or 'no folder'}"
            remedy = command("vi", reader.file)
            if reader.folders:
                remedy = _again(spec, f"{reader.folders[-1]}/{spec.path.rpartition('/')[2]}")
            findings.append(warned("CDI", f"{reader.engine} does not read {spec.path}: {where}", remedy))
    return findings


def _again(spec: SpecFile, path: str) -> Remedy:
    """The command that writes a spec of ours, as it was made."""
    return command("oci-gpu-hook", "cdi", "generate", *words_of(spec.document), "--output", path)


def _stale_name(named: tuple[SpecDevice, ...], mig_devices: tuple[MigDevice, ...]) -> str:
    """What is wrong with the first name that is stale, in a clause; "" if none is.

    Where NVML was not asked the names say nothing, and only the nodes are judged.
    """
    minors = {minor for item in mig_devices for minor in (item.gi_minor, item.ci_minor)}
    by_name = _by_name(mig_devices)
    for device in named:
        name = device.name[len(_TYPE) :] if device.name.startswith(_TYPE) else device.name
        nodes = frozenset([it for it in device.capabilities if it >= _FIRST_OF_INSTANCES])
        gone = sorted(nodes - minors)
        if gone:
            return f"gives {_CAPS}{gone[0]} for {quoted(device.name)}, and no MIG device has it now"
        if not by_name or not _is_migs(name):
            continue
        if name not in by_name:
            return f"names {quoted(device.name)}, which no MIG device is called now"
        if nodes and nodes != by_name[name]:
            return f"gives the nodes of another MIG device for {quoted(device.name)}"
    return ""


def _by_name(mig_devices: tuple[MigDevice, ...]) -> dict[str, frozenset[int]]:
    """The capabilities' minors of each MIG device by its names; nothing where NVML has not named them all."""
    if any([item.uuid is None or item.number is None for item in mig_devices]):
        return {}
    pairs = [(item, frozenset((item.gi_minor, item.ci_minor))) for item in mig_devices]
    return {name: minors for item, minors in pairs for name in (str(item.uuid), f"{item.gpu}:{item.number}")}


def _is_migs(name: str) -> bool:
    """Whether a name is one that only NVML knows: ``0:1`` or ``MIG-`` and a UUID.

    Not ``MIG-GPU-<uuid>/<gi>/<ci>`` of drivers before R470: that is a place, and its nodes are judged.
    """
    if "/" in name:
        return False
    gpu, _, number = name.partition(":")
    return name.startswith("MIG-") or (gpu.isdecimal() and number.isdecimal())
