# SPDX-License-Identifier: Apache-2.0
"""``validate``: whether driver, hook and GPUs do their work, step by step, for init containers and for pods that wait.

`validation` has the steps; what doctor knows of the driver and of a container is doctor's.  Fixes nothing.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NoReturn

import click

from oci_gpu_hook.cli import doctor, examine
from oci_gpu_hook.cli.options import Seconds, config_file, json_format, output_format, show
from oci_gpu_hook.driver import survey
from oci_gpu_hook.driver.survey import driver_version, list_gpus
from oci_gpu_hook.errors import DONE, OUR_BUG, ApplyError, DriverError, HookError, plain
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import FAIL, Finding, drivercheck, is_failed
from oci_gpu_hook.node.diagnosis.remedy import in_words
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.exporters import unhealthy
from oci_gpu_hook.node.machine import closing, kernelconfig, validated
from oci_gpu_hook.node.machine.validated import FAILED, PASSED, SKIPPED, STEPS, StepResult, Validation
from oci_gpu_hook.node.validation import containerstep, status, workload
from oci_gpu_hook.node.validation import driverstep as nvidia
from oci_gpu_hook.request.settings import read_settings
from oci_gpu_hook.request.state import Who
from oci_gpu_hook.vendors import platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from oci_gpu_hook.driver.facts import Facts
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.request.settings import Settings

_LONGEST_SECONDS = 3600
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DRIVER, HOOK, WORKLOAD = STEPS


class _Skipped(Exception):
    """A step cannot be tried; because: who must act, as an error's exit code says."""

    def __init__(self, why: str, because: int = OUR_BUG) -> None:
        super().__init__(why)
        self.because = because


@click.command()
@click.argument("steps", metavar="[STEP]...", nargs=-1, type=click.Choice(STEPS))
@click.option(
    "--timeout",
    "seconds",
    metavar="SECONDS",
    type=Seconds(0.1, _LONGEST_SECONDS),
    default=60.0,
    show_default=True,
    help="How long NVML, each call of the runtime and each GPU's test may take.",
)
@click.option(
    "--runtime",
    "runtime",
    metavar="PATH|NAME",
    help="Make the container with this runtime.  [default: as the setting 'runtime']",
)
@output_format
@json_format
@config_file
def validate(
    steps: tuple[str, ...], seconds: float, runtime: str | None, form: str, as_json: bool, config: str | None
) -> int:
    """Validate driver, hook and GPUs of this host; without STEP all three, in this order.

    \b
    driver    parts and versions, nodes, modules, and NVML's answer
    hook      a throw-away container through the runtime, looked at from outside
    workload  a vector addition on each GPU and MIG device, on the host

    Files by which pods wait are made as the settings say, and the result is kept for the node's features and metrics;
    both by root only.  The exit code is 6 if the driver failed, and 1 if another step failed or could not be tried.
    """
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    # Whatever folder is made, nobody else may write to it, and pods may read it.
    os.umask(0o022)
    root, settings = HostRoot(), read_settings(config, None)
    asked = [name for name in STEPS if name in steps] or list(STEPS)
    found = _Validation(root, settings, config, seconds, runtime)
    with _alone(root, seconds) if _is_root() else nullcontext():
        errors = _run(root, settings, asked, found)
    show("json" if as_json else form, found.document(), found.text(), doctor.painted)
    if errors and not found.code:
        raise errors[0]
    for err in errors[:1]:
        click.echo(f"oci-gpu-hook: {err}", err=True)
    return found.code


@contextmanager
def _alone(root: HostRoot, seconds: float) -> Iterator[None]:
    """Record and files are those of one run: another of root's must end first."""
    try:
        lock = validated.lock(root, seconds)
    except TimeoutError as err:
        why = f"another validation has not ended within {seconds:g} seconds"
        raise HookError(why, "try again, or give a longer --timeout") from err
    except OSError as err:
        raise _unwritten(err) from err
    with closing(lock):
        yield


def _run(root: HostRoot, settings: Settings, asked: list[str], found: _Validation) -> list[ApplyError]:
    """Run the steps, with record and files; gives what could not be written."""
    folder = settings.validation_folder if _is_root() else ""
    files = status.StatusFiles(root, folder, settings.validation_files)
    files.prepare()
    errors: list[ApplyError] = []
    # Whoever looks must not see the result of before, even where this run is killed.
    for name in asked:
        _try(errors, files.remove, name)
    try:
        for name in asked:
            # Of a step that runs nobody is to be alarmed.
            _try(errors, _write, root, [*found.results, *found.unended(asked, SKIPPED)])
            told = status.of_driver(settings.driver_root) if name == DRIVER else ""
            if found.run(name) == PASSED:
                _try(errors, files.make, name, told)
    finally:
        _try(errors, _write, root, [*found.results, *found.unended(asked, FAILED)])
    return errors


def _try(errors: list[ApplyError], change: Callable[..., None], *what: object) -> None:
    """Change a file; what keeps that from being done stops no step."""
    try:
        change(*what)
    except ApplyError as err:
        errors.append(err)


class _Validation:
    """The steps that have run, with what they found."""

    def __init__(
        self, root: HostRoot, settings: Settings, config: str | None, seconds: float, runtime: str | None
    ) -> None:
        self._root, self._settings, self._config = root, settings, config
        self._seconds, self._runtime = seconds, runtime
        self._facts: Facts | None = None
        self.results: list[StepResult] = []
        self.findings: dict[str, list[Finding]] = {}
        self.code = DONE

    def run(self, name: str) -> str:
        """Run one step; gives its outcome."""
        step = {DRIVER: self._driver, HOOK: self._hook, WORKLOAD: self._workload}[name]
        found: list[Finding] = []
        try:
            if name != DRIVER and any([item.outcome == FAILED for item in self._of(DRIVER)]):
                raise _Skipped("the driver's validation failed", DriverError.exit_code)
            found = step()
            outcome = FAILED if is_failed(found) else PASSED
            why = next((f"{it.check}: {it.seen}" for it in found if it.level == FAIL), "")
            code = DriverError.exit_code if name == DRIVER else OUR_BUG
        except _Skipped as err:
            outcome, why, code = SKIPPED, str(err), err.because
        except HookError as err:
            found = [Finding(name, FAIL, err.message, in_words(err.hint))]
            outcome, why, code = FAILED, err.message, err.exit_code
        if outcome != PASSED:
            self.code = self.code or code
        self.findings[name] = found
        self.results.append(StepResult(name, outcome, plain(why)))
        return outcome

    def unended(self, asked: list[str], outcome: str) -> list[StepResult]:
        """What the record has of the steps that have no result."""
        return [StepResult(name, outcome, "it did not end") for name in asked[len(self.results) :]]

    def document(self) -> dict[str, object]:
        """The steps for JSON."""
        steps = [
            {**step._asdict(), "findings": [item._asdict() for item in self.findings[step.name]]}
            for step in self.results
        ]
        return {"passed": self.code == DONE, "steps": steps}

    def text(self) -> str:
        """What each step found, as doctor says it, and one line for each step at the end."""
        found = doctor.lines([item for step in self.results for item in self.findings[step.name]])
        ends = [f"{step.name}: {step.outcome}{f', {step.why}' if step.why else ''}" for step in self.results]
        return "\n".join([*found, "", *ends])

    def _of(self, name: str) -> list[StepResult]:
        return [item for item in self.results if item.name == name]

    def _driver(self) -> list[Finding]:
        root, driver_root = self._root, self._settings.driver_root
        tool = "dnf" if installed.find_program(root, "dnf") else "apt"
        kind, proof = platform.prove(root)
        if kind in (platform.TEGRA, platform.WSL):
            return drivercheck.of_platform(root, kind, proof)
        try:
            found = survey.survey(root, driver_root)
        except DriverError as err:
            return [drivercheck.absent(root, driver_root, kernelconfig.look(root), err, tool)]
        findings = drivercheck.loaded(root, driver_root, found, tool)
        self._facts, wrong = self._ask(found)
        if self._facts is not None:
            wrong = nvidia.agree(survey.survey(root, driver_root, self._facts), self._facts)
        return [*findings, *wrong]

    def _ask(self, found: DriverInventory) -> tuple[Facts | None, list[Finding]]:
        library = workload.libraries(self._root.path, found, ("libnvidia-ml",))
        return nvidia.ask(library, self._seconds)

    def _hook(self) -> list[Finding]:
        if not _is_root():
            raise _Skipped("only root can make its container")
        if not _sees_itself():
            raise _Skipped("/proc is of another pid namespace: a pod that does this needs hostPID")
        # As for a container that has no annotation.
        settings = read_settings(self._config, Who())
        if settings.unmatched and settings.unmatched_sections == "refuse":
            what = " and ".join(settings.unmatched)
            raise _Skipped(f"unmatched-sections = refuse, and its container has no {what}")
        asked = containerstep.Asked(
            containerstep.runtime(self._runtime or settings.runtime),
            self._config,
            containerstep.capabilities(settings.allowed_capabilities),
            settings.accept_environment != "always",
            list_gpus(self._root),
            self._seconds,
        )
        return containerstep.run(self._root, asked, lambda running: examine.running(self._root, running, self._config))

    def _workload(self) -> list[Finding]:
        root, driver_root = self._root, self._settings.driver_root
        pipes = self._settings.mps_pipe_folder
        if platform.look(root) in (platform.TEGRA, platform.WSL):
            return workload.run(workload.Host("", pipes), workload.FIRST, self._seconds)
        try:
            found = survey.current(root, driver_root)
        except DriverError as err:
            raise _Skipped(err.message, err.exit_code) from err
        if self._facts is None:
            self._facts, _ = self._ask(found)
        if self._facts is not None:
            found = survey.survey(root, driver_root, self._facts)
        if not found.gpus:
            raise _Skipped("the driver is loaded and drives no GPU", DriverError.exit_code)
        wanted, wrong = workload.devices(found, self._facts)
        if not wanted and not is_failed(wrong):
            raise _Skipped("each GPU is in MIG mode and has no MIG device")
        host = workload.Host(workload.libraries(root.path, found), pipes)
        computed = workload.run(host, wanted, self._seconds)
        if _is_root():
            unhealthy.renew(root, found.gpus, tested=workload.by_gpu(found, computed))
        return [*wrong, *computed]


def _write(root: HostRoot, results: list[StepResult]) -> None:
    """Write the record, as root: of steps that were not asked for, and are of this driver, that of before stays."""
    if not _is_root():
        return
    version = driver_version(root) or ""
    before = validated.read(root)
    kept = {step.name: step for step in before.steps} if before else {}
    if before is None or before.driver_version != version:
        kept = {}
    kept.update({step.name: step for step in results})
    steps = tuple([kept[name] for name in STEPS if name in kept])
    try:
        validated.write(root, Validation(int(time.time()), version, steps))
    except OSError as err:
        raise _unwritten(err) from err


def _unwritten(err: OSError) -> ApplyError:
    why = f"cannot write the record of the validation: {err.strerror}"
    return ApplyError(why, "see 'oci-gpu-hook doctor'")


def _is_root() -> bool:
    return os.geteuid() == 0


def _sees_itself() -> bool:
    """Whether /proc is of our pid namespace: only then are the runtime's pids those that /proc has."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """What was made goes on the way out, which no second signal breaks off."""
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)
