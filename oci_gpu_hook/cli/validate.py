# SPDX-License-Identifier: Apache-2.0
"""``validate``: whether driver, hook and GPUs do their work, step by step; for init containers and pods that wait."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import click

from oci_gpu_hook.cli import accelerators, containerreport, doctor, limit
from oci_gpu_hook.cli.options import config_file, output_format, seconds, show, show_lines
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.survey import driver_version
from oci_gpu_hook.errors import DONE, OUR_BUG, ApplyError, ConfigError, DriverError, HookError, plain
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import UntrustedError
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_open_to_others
from oci_gpu_hook.node.diagnosis import FAIL, Finding, counted, drivercheck, failed, is_failed
from oci_gpu_hook.node.diagnosis.remedy import as_root, in_words
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.exporters import healthrecord
from oci_gpu_hook.node.gpus import hardware, nvml
from oci_gpu_hook.node.machine import outputfile, validationrecord
from oci_gpu_hook.node.machine.validationrecord import FAILED, PASSED, SKIPPED, STEPS, StepResult, Validation
from oci_gpu_hook.node.validation import containerstep, workload
from oci_gpu_hook.request.settings import Settings, read_settings
from oci_gpu_hook.request.state import State
from oci_gpu_hook.vendors import platform

# The longest usual name of a check; a longer one is not aligned.
_CHECKS_WIDTH = 12
DRIVER, HOOK, WORKLOAD = STEPS
# As NVIDIA's GPU operator names them.
_FILES = {DRIVER: "driver-ready", HOOK: "toolkit-ready", WORKLOAD: "cuda-ready"}


class _Skipped(HookError):
    """A step cannot be tried."""

    def __init__(self, why: str, exit_code: int = OUR_BUG) -> None:
        super().__init__(why)
        self.exit_code = exit_code


@click.command()
@click.argument("steps", metavar="[STEP]...", nargs=-1, type=click.Choice(STEPS))
@seconds("--timeout", "How long NVML, each call of the runtime and each GPU's test may take.", 60.0, most=3600, times=9)
@click.option("--runtime", metavar="PATH|NAME", help="Make the container with this, not by the setting 'runtime'.")
@output_format
@config_file
def validate(steps: tuple[str, ...], timeout: float, runtime: str | None, is_json: bool, config: str | None) -> int:
    """Validate driver, hook and GPUs of this host; without STEP all three, in this order.

    \b
    driver    parts and versions, nodes, modules, and NVML's answer
    hook      a throw-away container through the runtime, looked at from outside
    workload  a vector addition on each GPU and MIG device, on the host

    Files by which pods wait are made as the settings say, and the result is kept for the node's features and metrics;
    both by root only.  The exit code is 6 if the driver failed, and 1 if another step failed or could not be tried.
    """
    # What nohup ignores stays ignored.
    ends = [it for it in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(it) != signal.SIG_IGN]
    limit.leave_at(ends, lambda number: 128 + number)
    # Only root may write to a folder that is made, and pods may read it.
    os.umask(0o022)
    asked = [name for name in STEPS if name in steps] or list(STEPS)
    validation = _Validation(read_settings(config, None), config, timeout, runtime, is_json)
    validation.validate(asked)
    documents = [{**step._asdict(), "findings": found} for step, found in validation.steps]
    told = [f"{step.name}: {step.outcome}{f', {step.why}' if step.why else ''}" for step, _ in validation.steps]
    show(is_json, {"passed": validation.code == DONE, "steps": documents}, ["", *told])
    if validation.unwritten:
        click.echo(f"oci-gpu-hook: {validation.unwritten}", err=True)
        return validation.code or validation.unwritten.exit_code
    return validation.code


def of_driver(driver_root: str) -> str:
    """For a shell of the GPU operator's pods: they have the host as /host, a driver container as /driver-root."""
    is_hosts = driver_root == "/"
    return (
        f"IS_HOST_DRIVER={'true' if is_hosts else 'false'}\n"
        f"NVIDIA_DRIVER_ROOT={shlex.quote(driver_root)}\n"
        f"DRIVER_ROOT_CTR_PATH={'/host' if is_hosts else '/driver-root'}\n"
        "NVIDIA_DEV_ROOT=/\n"
        "DEV_ROOT_CTR_PATH=/host\n"
    )


@dataclass
class _Validation:
    """code: the exit code; unwritten: why the record, or a file by which pods wait, is not as it should be."""

    settings: Settings
    config: str | None
    seconds: float
    runtime: str | None
    is_json: bool
    host: HostRoot = field(default_factory=HostRoot)
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    tool: str = field(default_factory=lambda: installed.package_manager(HostRoot()))
    facts: nvml.Facts | None = None
    folder: int = -1
    steps: list[tuple[StepResult, list[Finding]]] = field(default_factory=list)
    code: int = DONE
    unwritten: ApplyError | None = None

    def validate(self, asked: list[str]) -> None:
        """Run the steps; as root with record and files, which are those of one run: another must end first."""
        if not self.is_root:
            for name in asked:
                self._run(name)
            return
        with closing(validationrecord.lock(self.host, self.seconds)):
            if self.settings.validation_folder:
                self.folder = self._open_folder()
            # A pod must not see the result of before, even if this run is killed.
            for name in asked:
                self._put_file(name, None)
            try:
                for name in asked:
                    # A step that runs must raise no alarm.
                    self._write_record(asked, SKIPPED)
                    text = of_driver(self.settings.driver_root) if name == DRIVER else ""
                    if self._run(name) == PASSED:
                        self._put_file(name, text)
            finally:
                self._write_record(asked, FAILED)

    def _open_folder(self) -> int:
        """Made if it is missing; its descriptor, so that no other takes its place.  ConfigError if it is not ours."""
        path = self.settings.validation_folder
        setting, hint = f"validation-folder {path}", "the administrator must name another"
        try:
            with outputfile.folder(self.host.path.rstrip("/") + path, outputfile.trusted) as fd:
                folder = os.dup(fd)
        except UntrustedError as err:
            raise ConfigError(f"{setting} is not root's alone: {err}", hint) from err
        except OSError as err:
            raise ConfigError(f"cannot make {setting}: {err.strerror}", hint) from err
        if is_open_to_others(os.fstat(folder)):
            why = f"others than root may write {setting}: its files would say nothing"
            raise ConfigError(why, f"chown root: {path} && chmod go-w {path}")
        return folder

    def _put_file(self, step: str, text: str | None) -> None:
        """Whole from the moment that it has its name; None removes it.  A failure stops no step."""
        if self.folder < 0:
            return
        name = _FILES[step]
        try:
            if text is not None:
                outputfile.place(self.folder, name, text.encode())
                return
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.folder)
        except OSError as err:
            verb, path = "remove" if text is None else "make", f"{self.settings.validation_folder}/{name}"
            hint = "the administrator must make the folder writable, or set another as validation-folder"
            self.unwritten = self.unwritten or ApplyError(f"cannot {verb} {path}: {err.strerror}", hint)

    def _write_record(self, asked: list[str], outcome: str) -> None:
        """outcome: of the steps that have none yet.  What other steps had with this driver stays."""
        version = driver_version(self.host) or ""
        before = validationrecord.read_validation(self.host)
        steps = {step.name: step for step in before.steps} if before and before.driver_version == version else {}
        steps.update({name: StepResult(name, outcome, "it did not end") for name in asked})
        steps.update({step.name: step for step, _ in self.steps})
        ordered = tuple([steps[name] for name in STEPS if name in steps])
        try:
            validationrecord.write(self.host, Validation(int(time.time()), version, ordered))
        except ApplyError as err:
            self.unwritten = self.unwritten or err

    def _run(self, name: str) -> str:
        steps = {DRIVER: self._driver, HOOK: self._hook, WORKLOAD: self._workload}
        found: list[Finding] = []
        try:
            if name != DRIVER and any([it.name == DRIVER and it.outcome == FAILED for it, _ in self.steps]):
                raise _Skipped("the driver's validation failed", DriverError.exit_code)
            for it in steps[name]():
                found.append(it._replace(remedy=as_root(it.remedy)))
                self._tell(found[-1])
            outcome = FAILED if is_failed(found) else PASSED
            why = next((f"{it.check}: {it.seen}" for it in found if it.level == FAIL), "")
            code = DriverError.exit_code if name == DRIVER else OUR_BUG
        except _Skipped as err:
            outcome, why, code = SKIPPED, err.message, err.exit_code
        except HookError as err:
            found.append(failed(name, err.message, in_words(err.hint)))
            self._tell(found[-1])
            outcome, why, code = FAILED, err.message, err.exit_code
        if outcome != PASSED:
            self.code = self.code or code
        self.steps.append((StepResult(name, outcome, plain(why)), found))
        return outcome

    def _tell(self, item: Finding) -> None:
        # A validation goes on without a reader: its record and files are others'.
        with suppress(OSError):
            if not self.is_json:
                show_lines(doctor.lines([item], _CHECKS_WIDTH), doctor.painted)

    def _wait(self, check: str, what: str, times: int = 1) -> None:
        self._tell(Finding(check, "wait", f"{what}, at most {times * self.seconds:g} seconds"))

    def _driver(self) -> Iterator[Finding]:
        findings, found = drivercheck.check_driver(self.host, self.settings.driver_root, self.tool)
        yield from findings
        if found:
            yield from self._ask_nvml(found)[1]

    def _ask_nvml(self, found: DriverInventory) -> tuple[DriverInventory, list[Finding]]:
        if self.facts is None:
            self._wait("NVML", "for its answer")
            try:
                self.facts = nvml.facts(self.host, found, self.seconds)
            except nvml.NvmlUnavailable as err:
                return found, [drivercheck.unasked(str(err), self.tool)]
        found = nvml.with_facts(found, self.facts)
        return found, drivercheck.nvml(found, self.facts)

    def _hook(self) -> Iterable[Finding]:
        if not self.is_root:
            raise _Skipped("only root can make its container")
        # Else the runtime's pids are not those that /proc has.
        if os.path.realpath("/proc/self") != f"/proc/{os.getpid()}":
            raise _Skipped("/proc is of another pid namespace: a pod that does this needs hostPID")
        # As for a container that has no annotation.
        settings = read_settings(self.config, State())
        if settings.unmatched and settings.unmatched_sections == "refuse":
            what = " and ".join(settings.unmatched)
            raise _Skipped(f"unmatched-sections = refuse, and its container has no {what}")
        self._wait("container", "for each call of the runtime")
        runtime = containerstep.runtime(self.runtime or settings.runtime)
        look = partial(containerreport.running, self.host)
        return containerstep.run(self.host, settings, runtime, self.seconds, look)

    def _workload(self) -> Iterator[Finding]:
        root, driver_root = self.host, self.settings.driver_root
        pipes = self.settings.mps_pipe_folder
        if platform.platform_of(root) in accelerators.PLATFORMS:
            self._wait("GPU", "for its computation")
            yield from workload.run("", pipes, workload.FIRST, self.seconds)
            return
        try:
            found = hardware.nvidia(root, driver_root)
        except DriverError as err:
            raise _Skipped(err.message, err.exit_code) from err
        found, _ = self._ask_nvml(found)
        if not found.gpus:
            raise _Skipped("the driver is loaded and drives no GPU", DriverError.exit_code)
        wanted, wrong = workload.devices(found)
        if not wanted and not is_failed(wrong):
            raise _Skipped("each GPU is in MIG mode and has no MIG device")
        yield from wrong
        on = counted((len(wanted), "device", "devices"))
        self._wait("GPUs", f"for computations on {on}", workload.rounds(wanted))
        # What the GPUs suffer from now on no test has passed.
        computed, until = [], -1
        # What cannot be kept is said at the end.
        with suppress(ApplyError):
            until = healthrecord.renew(root, None, {}) if self.is_root else -1
        for it in workload.run(nvml.files(root, found, *workload.LIBRARIES), pipes, wanted, self.seconds):
            computed.append(it)
            yield it
        if self.is_root:
            healthrecord.renew(root, None, workload.by_gpu(found, computed), until)
