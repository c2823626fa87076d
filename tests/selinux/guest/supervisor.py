# SPDX-License-Identifier: Apache-2.0
"""Runs every row, judges it, and prints what the run is judged by.

Runs as a service of the virtual machine's init; the engine runs below it, in an engine's domain.
The last line it prints says whether all rows passed.  Must not start a container itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..files import read
from . import attempts, docker, host, podman, traps
from .cases import Container, Row
from .commands import ENGINE_CONTEXT, QUESTIONS, Answer
from .hostile import ROWS
from .kubelet import Kubelet

MIG_MINORS = "/usr/lib/e2e/mig-minors"
# Whose denials count against a row.
_COUNTED = re.compile(
    r"scontext=\S+:(container_t|nvidia_container_t|nvidia_agent_t|kubelet_t|spc_t|oci_gpu_hook_t|oci_gpu_hook_entry_t|oci_gpu_runtime_t):"
)
# What the tests' own module has the kernel log.
_CHANGE = re.compile(r"granted  \{ transition \} .* scontext=\w+:\w+:(\w+):\S+ tcontext=\w+:\w+:(\w+):\S+")

_DENIAL = re.compile(r"denied  \{ ([^}]+) \} .* scontext=\w+:\w+:(\w+):\S+ tcontext=\w+:\w+:(\w+):\S+ tclass=(\w+)")


class Line(NamedTuple):
    """What became of a row under a runtime, or of a question."""

    row: str
    runtime: str
    seconds: float
    faults: list[str]


class Journal:
    """The kernel's log, read as it grows."""

    def __init__(self) -> None:
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)

    def read(self) -> list[str]:
        """What SELinux has said since the last call: denials, errors, changes of domain."""
        found: list[str] = []
        while True:
            try:
                text = os.read(self.fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return found
            except BrokenPipeError:
                continue  # the ring went round; what is gone is gone
            line = text.split(";", 1)[-1].split("\n", 1)[0]
            # A space before the kernel's own, a quote before systemd's.
            if "avc: " in line or "SELINUX_ERR" in line or line.startswith("SELinux:"):
                found.append(line)


class Engine:
    def __init__(self, context: str) -> None:
        words = ["runcon", context, sys.executable, "-B", "-m", "tests.selinux.guest.engine"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, row: int, runtime: str, kubelet: Kubelet) -> list[dict[str, Any]]:
        """Run a row; what each of its containers showed."""
        assert self.process.stdin and self.process.stdout
        print(json.dumps({"row": row, "runtime": runtime}), file=self.process.stdin, flush=True)
        answer: list[dict[str, Any]] = json.loads(self.process.stdout.readline())
        if ROWS[row].scope:
            answer[0]["seen"].update(scope=host.scope(), journal=host.journal())
        answer[-1]["seen"].update(kubelet.told())
        print(file=self.process.stdin, flush=True)
        self.process.stdout.readline()
        return answer


def faults(container: Container, seen: dict[str, Any], denials: list[str]) -> list[str]:
    """What one container showed that it should not have, or failed to show."""
    found = []
    if container.refused:
        if seen["code"] == 0:
            found.append("started, should have been refused")
        elif not re.search(container.refused, seen["error"]):
            found.append(f"refused, but not in our words: {seen['error']}")
    else:
        if seen["code"]:
            found.append(f"ended with {seen['code']}: {seen['error']}")
        for check, pattern in container.expect.items():
            got = seen["seen"].get(check, "nothing")
            if not re.fullmatch(pattern, got):
                found.append(f"{check} is {got}, not {pattern}")
    if container.after and seen["after"] != container.after:
        found.append(f"/dev/shm is {seen['after']}, not {container.after}")
    if container.avcs is not None and len(denials) > container.avcs:
        found.append(f"{len(denials)} denials")
    return found


def _is_counted(line: str) -> bool:
    return bool(_COUNTED.search(line)) and "avc:  granted" not in line


def _refusals(denials: list[str]) -> set[str]:
    """What was denied, as "DOMAIN TYPE:CLASS PERMISSION"."""
    found = set()
    for match in filter(None, map(_DENIAL.search, denials)):
        permissions, source, target, kind = match.groups()
        found |= {f"{source} {target}:{kind} {permission}" for permission in permissions.split()}
    return found


def run_row(engine: Engine, journal: Journal, kubelet: Kubelet, number: int, runtime: str) -> Line:
    row = ROWS[number]
    if row.kubelet:
        kubelet.start()
    host.administer(row.settings, row.drop_in)
    if row.refreshed:
        subprocess.run(["/usr/bin/oci-gpu-hook", "inventory", "refresh"], check=True)
    begun = time.monotonic()
    changes: list[str] = []
    with contextlib.ExitStack() as stack:
        if row.unchecked:
            stack.enter_context(host.unchecked(row.unchecked))
        if row.boolean:
            stack.enter_context(host.boolean(row.boolean))
        if row.trap:
            changes = stack.enter_context(traps.laid(row.trap))
        answer = engine.ask(number, runtime, kubelet)
    logged = journal.read()
    denials = [line for line in logged if _is_counted(line)]
    wrong = []
    if bool(changes) != row.caught:
        wrong.append(f"the host's folder: {', '.join(changes) or 'nothing changed'}")
    if row.denied and row.denied not in _refusals(denials):
        wrong.append(f"not denied: {row.denied}")
    # Denials are the row's: where any of its containers may have them, none is asked.
    strict = all(container.avcs is not None for container in row.containers)
    for container, seen in zip(row.containers, answer):
        wrong += faults(container, seen, denials if strict else [])
    if len(answer) < len(row.containers):
        wrong.append(f"{len(answer)} of {len(row.containers)} containers were started: {answer[-1]['error']}")
    return _told(Line(row.name, runtime, time.monotonic() - begun, wrong), logged)


def _told(line: Line, logged: list[str]) -> Line:
    """The line, once it is printed, and if it is wrong what the kernel has logged."""
    verdict = "FAIL" if line.faults else "pass"
    print(f"E2E {verdict} {line.runtime} {line.row} ({line.seconds:.1f} s)", flush=True)
    for text in [*line.faults, *logged] if line.faults else []:
        print(f"E2E      {text}", flush=True)
    return line


def _engine_of(row: Row) -> str:
    if row.buildkit:
        return attempts.DOCKERD_CONTEXT
    return podman.CONTEXT if row.scope else ENGINE_CONTEXT


def ask(name: str, question: Callable[[], Answer], journal: Journal) -> Line:
    """One question that is no row's; what our domains and containers were denied meanwhile counts against it."""
    begun = time.monotonic()
    answer = question()
    logged = journal.read()
    denials = [line for line in logged if _is_counted(line)]
    wrong = list(answer.wrong)
    if answer.denied:
        wrong += [f"not denied: {words}" for words in sorted(answer.denied - _refusals(denials))]
    elif denials:
        wrong.append(f"{len(denials)} denials")
    changes = {match.groups() for match in map(_CHANGE.search, logged) if match}
    wrong += [f"no change from {a} to {b}" for a, b in answer.entered if (a, b) not in changes]
    return _told(Line(name, "", time.monotonic() - begun, wrong), logged)


def ask_docker(journal: Journal, names: list[str]) -> list[Line]:
    """The cases of real dockerd, one daemon for all."""
    if not names:
        return []
    host.administer("", "")
    with docker.daemon():
        lines = [ask(name, functools.partial(_ask_docker, name), journal) for name in names]
    for text in docker.log() if any(line.faults for line in lines) else []:
        print(f"E2E      {text}", flush=True)
    return lines


def _ask_docker(name: str) -> Answer:
    try:
        return docker.CASES[name]()
    except (OSError, docker.Refused) as error:
        return Answer([f"{type(error).__name__}: {error}"])


def main() -> int:
    """Run everything, or the rows whose names contain a given word."""
    enforcing = read("/sys/fs/selinux/enforce") == "1"
    print(f"E2E enforcing={enforcing} after {read('/proc/uptime').split()[0]} s", flush=True)
    host.set_up(MIG_MINORS)
    only = read("/etc/e2e-only").strip()
    before = host.labels()
    journal = Journal()
    # podman's is the one of the policy's engines that may have systemd make a scope.
    contexts = (ENGINE_CONTEXT, podman.CONTEXT, attempts.DOCKERD_CONTEXT)
    engines = {context: Engine(context) for context in contexts}
    kubelet = Kubelet()
    lines = [
        run_row(engines[_engine_of(row)], journal, kubelet, number, runtime)
        for number, row in enumerate(ROWS)
        if only in row.name
        for runtime in row.runtimes
    ]
    lines += ask_docker(journal, [name for name in docker.CASES if only in name])
    questions = {**attempts.CASES, **podman.CASES, **QUESTIONS}
    lines += [ask(name, question, journal) for name, question in questions.items() if only in name]
    moved = host.changed(before, host.labels())
    lines.append(_told(Line(f"labels of the host: {len(before)} files", "", 0.0, moved[:50]), []))
    failed = sum(1 for line in lines if line.faults)
    passed = enforcing and failed == 0
    print(f"E2E-RESULT {'passed' if passed else 'failed'}: {len(lines) - failed} passed, {failed} failed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
