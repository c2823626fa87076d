# SPDX-License-Identifier: Apache-2.0
"""Findings about other vendors: their files, and for those whose hardware is here what it lacks."""

from __future__ import annotations

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.statefile import FOLDER
from oci_gpu_hook.node.diagnosis import Finding, counted, failed, passed, warned
from oci_gpu_hook.node.diagnosis.remedy import REFRESH, UPGRADE_KERNEL, command, roots_alone, then
from oci_gpu_hook.node.gpus.hardware import FoundVendors, WrongFile
from oci_gpu_hook.node.machine import libselinux
from oci_gpu_hook.vendors import vendorhost, vendorinventory
from oci_gpu_hook.vendors.vendorhost import VendorState

_CHECK = "vendors"
_LOOK = command("oci-gpu-hook", "info")


def vendors(host: HostRoot, present: FoundVendors, here: list[VendorState], tool: str) -> list[Finding]:
    """here: those whose hardware is here."""
    findings = [_wrong(item) for item in present.wrong]
    findings += [found for item in here for found in _vendor(host, item, tool)]
    files = counted((len(present.vendors), "file", "files"))
    return findings or [passed(_CHECK, f"{files} of theirs, and no hardware")]


def _wrong(item: WrongFile) -> Finding:
    remedy = command("oci-gpu-hook", "info", "--vendor", item.file)
    if item.is_open:
        remedy = roots_alone(item.file, item.file.rpartition("/")[0])
    elif not item.file.endswith(".json"):
        remedy = command("ls", item.file)
    return failed(_CHECK, item.fault, remedy)


def _vendor(host: HostRoot, item: VendorState, tool: str) -> list[Finding]:
    what, check = item.inventory, item.inventory.flag
    findings = [*_lacking(host, item, tool), *[warned(check, fault, _LOOK) for fault in item.faults]]
    if libselinux.is_there(host):
        findings += _selinux(host, item)
    if host.stat(f"{FOLDER}/{vendorinventory.PREFIX}{what.flag}") is None:
        findings.append(warned(check, "no inventory is saved: the next start looks at its files again", REFRESH))
    if findings:
        return findings
    nodes = len({node.path for node, _ in item.common})
    numbers = (len(item.devices), "device", "devices"), (nodes, "node of every request", "nodes of every request")
    words = [counted(*numbers)] if item.devices or nodes else []
    words += [f"version {what.version}"] if what.version else []
    return [passed(check, f"{', '.join(words)}, by {what.file}")]


def _lacking(host: HostRoot, item: VendorState, tool: str) -> list[Finding]:
    what = item.inventory
    unloaded = [command("modprobe", name) for name in what.modules if not vendorhost.is_loaded(host, name)]
    load = then(*unloaded) if unloaded else UPGRADE_KERNEL[tool]
    lacking = [(it, load if it.startswith("the kernel's module") else UPGRADE_KERNEL[tool]) for it in item.unmet]
    lacking += [(said, _LOOK) for said in what.lacking]
    if not unloaded:  # else its nodes come with it
        journal = command("journalctl", "--dmesg", f"--grep={what.modules[0]}") if what.modules else _LOOK
        lacking += [(pattern, journal) for pattern in item.unmatched]
    # A function on PCI alone, such as a processor's own graphics, may be meant for no container.
    found = failed if item.nodes() else warned
    return [found(what.flag, f"{what.file} requires what is not here: {it}", fix) for it, fix in lacking]


def _selinux(host: HostRoot, item: VendorState) -> list[Finding]:
    what = item.inventory
    file, kind, boolean = what.file, what.selinux_type, what.selinux_boolean
    findings = []
    # Without libselinux nothing can be asked.
    library = libselinux.imported()
    if kind and library and not libselinux.knows_type(library, kind):
        text = f"{file} says that containers need the SELinux type {kind}, which the policy lacks"
        findings.append(warned(what.flag, text, "semodule", "-l"))
    is_on = libselinux.boolean(host, boolean) if boolean else True
    if is_on is None:
        text = f"{file} names the SELinux boolean {boolean}, which the policy lacks"
        findings.append(warned(what.flag, text, "semanage", "boolean", "-l"))
    elif not is_on:
        text = f"the SELinux boolean {boolean}, which {file} names, is off"
        findings.append(warned(what.flag, text, "setsebool", "-P", boolean, "on"))
    return findings
