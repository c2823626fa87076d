# SPDX-License-Identifier: Apache-2.0
"""Findings about other vendors: their files, and for those whose hardware is here what it lacks.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding
from oci_gpu_hook.node.diagnosis.drivercheck import REFRESH
from oci_gpu_hook.node.diagnosis.remedy import REBOOT, command, then
from oci_gpu_hook.node.diagnosis.systemcheck import roots_alone
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from oci_gpu_hook.node.gpus.present import Present, Wrong
    from oci_gpu_hook.vendors.vendorhost import VendorState

CHECK = "vendors"
LOOK = command("oci-gpu-hook", "info")
MISSING, OFF = "missing", "off"
_KERNEL = {
    "dnf": then(command("dnf", "upgrade", "kernel"), REBOOT),
    "apt": then(command("apt", "full-upgrade"), REBOOT),
}


class Here(NamedTuple):
    """A vendor whose hardware is here.

    is_saved: whether an inventory is saved, is_true: whether it is still true; unloaded: the modules that its file
    requires and the kernel lacks; type, boolean: of SELinux, which the file names: ``missing``, ``off``, or "" if
    there is nothing to say.
    """

    found: VendorState
    is_saved: bool
    is_true: bool
    unloaded: tuple[str, ...]
    type: str
    boolean: str


def judge(present: Present, here: tuple[Here, ...], tool: str) -> list[Finding]:
    """The findings, first about the files."""
    findings = [_wrong(item) for item in present.wrong]
    for item in here:
        findings += _vendor(item, tool)
    if not findings:
        text = f"{_counted(len(present.vendors), 'file')}, and no hardware of theirs" if present.vendors else ""
        return [Finding(CHECK, PASS, text or "no files describe any")]
    return findings


def _wrong(item: Wrong) -> Finding:
    remedy = command("oci-gpu-hook", "vendors", "check", item.file)
    if item.is_open:
        remedy = roots_alone(item.file, item.file.rpartition("/")[0])
    elif not item.file.endswith(".json"):
        remedy = command("ls", item.file)
    return Finding(CHECK, FAIL, item.fault, remedy)


def _vendor(item: Here, tool: str) -> list[Finding]:
    what, devices = item.found.inventory, item.found.devices
    check = what.flag
    findings = _lacking(item, tool)
    findings += [Finding(check, WARN, fault, LOOK) for fault in item.found.faults]
    findings += _selinux(item)
    if not item.is_saved:
        seen = "no inventory is saved: the next start looks at its files again"
        findings.append(Finding(check, WARN, seen, REFRESH))
    if findings:
        return findings
    nodes = len({node.path for node, _ in devices.common})
    counts = [
        *([_counted(len(devices.devices), "device")] if devices.devices else []),
        *([f"{_counted(nodes, 'node')} of every request"] if nodes else []),
        *([f"version {what.version}"] if what.version else []),
    ]
    absent = len(devices.absent) + len(what.absent)
    text = f"{', '.join(counts)}, by {what.file}"
    if absent:
        text += f"; {absent} of what may be missing is"
    if not item.is_true:
        # Any program that is installed in a folder of its files does that.
        text += "; what is saved is no longer true, and the next start saves it again"
    return [Finding(check, PASS, text)]


def _lacking(item: Here, tool: str) -> list[Finding]:
    """What the vendor's file requires and the host lacks, causes first."""
    what, devices = item.found.inventory, item.found.devices
    says = f"{what.file} requires"
    # A function on PCI alone, such as a processor's own graphics, may be meant for no container.
    level = FAIL if item.found.nodes() else WARN
    load = then(*[command("modprobe", name) for name in item.unloaded])
    findings = []
    for sentence in item.found.unmet:
        remedy = load if load and sentence.startswith("the kernel's module") else _KERNEL[tool]
        findings.append(Finding(what.flag, level, f"{says} what is not here: {sentence}", remedy))
    findings += [Finding(what.flag, level, f"{says} what is not here: {sentence}", LOOK) for sentence in what.lacking]
    if item.unloaded:
        return findings  # its nodes come with it
    remedy = LOOK
    if what.modules:
        remedy = command("journalctl", "--dmesg", f"--grep={what.modules[0]}")
    return findings + [
        Finding(what.flag, level, f"{says} what is not here: {pattern}", remedy) for pattern in devices.lacking
    ]


def _selinux(item: Here) -> list[Finding]:
    what = item.found.inventory
    file, kind, boolean = what.file, what.selinux_type, what.selinux_boolean
    findings = []
    if item.type == MISSING:
        text = f"{file} says that containers need the SELinux type {kind}, which the policy lacks"
        findings.append(Finding(what.flag, WARN, text, command("semodule", "-l")))
    if item.boolean == MISSING:
        text = f"{file} names the SELinux boolean {boolean}, which the policy lacks"
        findings.append(Finding(what.flag, WARN, text, command("semanage", "boolean", "-l")))
    elif item.boolean == OFF:
        text = f"the SELinux boolean {boolean}, which {file} names, is off"
        findings.append(Finding(what.flag, WARN, text, command("setsebool", "-P", boolean, "on")))
    return findings


def _counted(number: int, what: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
