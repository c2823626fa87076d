# SPDX-License-Identifier: Apache-2.0
"""``doctor``: check each precondition on this host, or why one container has its GPU or not; changes nothing."""

from __future__ import annotations

import click

from oci_gpu_hook.cli import cdi, containerreport
from oci_gpu_hook.cli.options import Row, columns, config_and_host, output_format, show
from oci_gpu_hook.driver.inventory import DriverInventory, of_this_host
from oci_gpu_hook.driver.survey import read_true
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node import diagnosis
from oci_gpu_hook.node.diagnosis import dockercheck, drivercheck, enginecheck, namecheck, speccheck, systemcheck
from oci_gpu_hook.node.diagnosis.dockercheck import Docker
from oci_gpu_hook.node.diagnosis.remedy import as_root
from oci_gpu_hook.node.diagnosis.vendorcheck import vendors
from oci_gpu_hook.node.engines import cdispecs, containers, installed
from oci_gpu_hook.node.engines.enginekinds import CONTAINERD, ENGINES, PODMAN
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.node.machine import kernelconfig
from oci_gpu_hook.planning import vendorshare
from oci_gpu_hook.planning.plan import Held

# click leaves them out where the output is not a terminal.
_COLOURS = {diagnosis.PASS: "green", diagnosis.WARN: "yellow", diagnosis.FAIL: "red"}


@click.command()
@output_format
@click.option(
    "--container",
    "word",
    metavar="ID|NAME|PID",
    help="Examine a running container: by its id, the beginning of it, its name, its pod's, or a process in it.",
)
@config_and_host
def doctor(is_json: bool, word: str | None, config: str | None, host: HostRoot) -> int:
    """Check every precondition on this host, in order of cause; or one running container.

    Each line is a pass, a warning or a failure, with what was seen and what fixes it.  Nothing is
    changed.  The exit code is 1 if anything failed.
    """
    if word is None:
        findings = [it._replace(remedy=as_root(it.remedy)) for it in of_host(host, config)]
    else:
        # Of which those that run it have other remedies than root.
        findings = containerreport.running(host, containers.find(host, word), config)
    levels = [item.level for item in findings]
    fails, warns = levels.count(diagnosis.FAIL), levels.count(diagnosis.WARN)
    text = [*lines(findings), "", f"{len(findings)} checks: {fails} {diagnosis.FAIL}, {warns} {diagnosis.WARN}"]
    show(is_json, {"failed": fails, "warned": warns, "findings": findings}, text, painted)
    return int(diagnosis.is_failed(findings))


def of_host(host: HostRoot, config: str | None) -> list[diagnosis.Finding]:
    tool = installed.package_manager(host)
    cgroups = kernelconfig.cgroup_version(host)
    settings, lines_of_settings, of_settings = systemcheck.settings(host, config)
    others = hardware.find_vendors(host)
    here = [item for item in others.vendors if hardware.proof(host, item)]
    engines, unread = installed.installed(host), installed.unread(host)
    unknown = {engine for engine, *_ in unread}
    hooks = installed.of_engines(host, engines)
    entry = next((item.program for item in hooks if item.kind == installed.OURS), "") or installed.ENTRY
    docker = dockercheck.find_docker(host)
    of_driver, found = drivercheck.check_driver(host, settings.driver_root, tool, others=bool(here))
    if found is not None:
        saved = read_true(host, settings.driver_root)
        of_driver += drivercheck.rdma(host, kernelconfig.modules(host)) if found.gpus else []
        of_driver.append(drivercheck.inventory(host, saved, tool))
        # By NVML's names where it was asked, and nothing has made a doubt of its answer since.
        found = of_this_host(host, saved or found)
    devices = [Held(it.bus_id, str(it.nvml_index), it.bus_id) for it in (found.gpus if found else ())]
    devices += [vendorshare.held(vendor.inventory.flag, it) for vendor in here for it in vendor.devices]
    findings = [
        systemcheck.kernel(host.text("/proc/sys/kernel/osrelease").strip(), tool),
        *enginecheck.installation(host, entry, hooks, tool),
        of_settings,
        *systemcheck.leases(host),
        *of_driver,
        *vendors(host, others, here, tool),
        *_written_names(host, docker, found),
        systemcheck.cgroups(cgroups),
        systemcheck.ebpf(host, cgroups),
        *systemcheck.selinux(host, cgroups, tool),
        *systemcheck.memory(host, lines_of_settings, settings, devices),
    ]
    # Where the others look for hooks is not known.
    for engine in [it for it in engines if it.name not in unknown]:
        findings.append(enginecheck.seen_by(engine, hooks, tool))
        findings += enginecheck.images_in_podman(host, engine) if engine.name == PODMAN.name else []
    findings += enginecheck.unread(unread, tool)
    findings += _containerd(host, tool, unknown, is_alone=not engines and docker is None)
    script = host.real(entry)
    findings += dockercheck.docker(host, docker, script, tool) if docker else []
    by_link = docker is not None and docker.leads_to == script
    findings += enginecheck.other_hooks(engines, hooks, installed.shims(host, engines), by_link)
    findings += enginecheck.callers(host, script, tool)
    read = list(dict.fromkeys([it.where.rpartition(":")[0] for it in lines_of_settings]))
    return [*findings, systemcheck.rootless(host, read)]


def _written_names(host: HostRoot, docker: Docker | None, found: DriverInventory | None) -> list[diagnosis.Finding]:
    settings, file = (docker.settings, docker.file) if docker else (None, "")
    readers = installed.find_readers(host, settings, file)
    folders = cdispecs.folders(host, readers)
    opened = {real: why for real, folder in folders.items() if (why := host.openness(folder))}
    specs = cdispecs.specs(host, readers)
    findings = [
        *speccheck.of_folders(opened, readers),
        *speccheck.unread(specs),
        *speccheck.compared(specs, found.driver_version if found else "", lambda it: cdi.stale(host, it.document)),
        *speccheck.unseen(specs, readers, host.real, opened),
    ]
    if found is None:
        return findings
    findings = findings or [diagnosis.passed("CDI", "no spec: the hook needs none")]
    return [*findings, *namecheck.resources(file, settings or {}, found), *namecheck.configurations(host, found)]


def _containerd(host: HostRoot, tool: str, unknown: set[str], *, is_alone: bool) -> list[diagnosis.Finding]:
    """Also that there is no engine at all; unknown: the engines of which a file cannot be read."""
    if not installed.is_there(host, CONTAINERD):
        # runc and crun take hooks only from a bundle.  Who calls nvidia-container-cli needs none of them.
        needs_none = any([kind.caller and host.stat(kind.caller) is not None for kind in ENGINES])
        names = ", ".join([kind.name for kind in ENGINES if kind.programs])
        seen = f"none of {names} is installed: a bundle must name the hook itself"
        return [diagnosis.warned("engines", seen, tool, "install", "podman")] if is_alone and not needs_none else []
    return enginecheck.containerd(host, tool, is_alone=is_alone) if CONTAINERD.name not in unknown else []


def lines(findings: list[diagnosis.Finding], least: int = 0) -> list[str]:
    """Below each finding the command that fixes it, to be pasted.  least: the width of a check's name."""
    rows: list[Row] = []
    for item in findings:
        rows.append((item.level, item.check.ljust(least), item.seen))
        rows += [("", "", f"fix: {item.remedy}")] if item.remedy else []
    return columns(rows)


def painted(line: str) -> str:
    level, gap, rest = line.partition("  ")
    if level not in _COLOURS:
        return line
    return click.style(level, fg=_COLOURS[level], bold=level != diagnosis.PASS or None) + gap + rest
