# SPDX-License-Identifier: Apache-2.0
"""Run a lane's rows inside its virtual machine, and say on its console how each ended.

    python3 -m tests.guest.rows LANE

The lane's `rows.ROWS` has the tests of each row by what it shows, `WORKERS` how many run side by side.
Must not know what they test.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from itertools import chain

import pytest

from tests.guest.places import INSTALLED, ONLY

_SHOWN = 40  # lines of a failure


class Table:
    """A pytest plugin: how the tests of each row ended, and how long they took."""

    def __init__(self, rows: dict[str, tuple[str, ...]]) -> None:
        self.rows = rows
        self.seconds = dict.fromkeys(rows, 0.0)
        self.outcomes: dict[str, set[str]] = {name: set() for name in rows}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = self._row(report.nodeid)
        self.seconds[name] += report.duration
        if report.when == "call" or not report.passed:
            self.outcomes[name].add(report.outcome)
        if report.failed:
            print(f"\nE2E failed: {report.nodeid}", flush=True)
            for line in report.longreprtext.splitlines()[-_SHOWN:]:
                print(f"E2E   {line}", flush=True)

    def _row(self, nodeid: str) -> str:
        """Which row a test belongs to: of a file, of a test with any parameters, or of one test."""
        names = {nodeid, nodeid.partition("[")[0], nodeid.partition("::")[0]}
        return next(name for name, tests in self.rows.items() if names & {*tests})


def main(lane: str) -> int:
    """All rows, or those whose names have a word."""
    module = import_module(f"tests.{lane}.rows")
    rows: dict[str, tuple[str, ...]] = module.ROWS
    with open(f"/{ONLY}", encoding="utf-8") as file:
        only = file.read()
    chosen = {name: tests for name, tests in rows.items() if only in name}
    print(f"E2E {os.uname().machine}, Linux {os.uname().release}: {len(chosen)} rows", flush=True)
    table = Table(chosen)
    os.environ["OCI_GPU_HOOK_INSTALLED"] = f"/{INSTALLED}"
    options = ["-v", "--color=no", "-n", str(module.WORKERS), "--dist", "worksteal", "-p", "no:cacheprovider"]
    # Short, as users of user namespaces must get through all of it.
    options.append("--basetemp=/tmp/tests")
    code = pytest.main([*options, *chain.from_iterable(chosen.values())], plugins=[table])
    failed = [name for name in chosen if table.outcomes[name] != {"passed"}]
    width = max(map(len, chosen))
    for name in chosen:
        outcome = "FAILED" if name in failed else "passed"
        print(f"E2E-TABLE {name:{width}}  {outcome}  {table.seconds[name]:5.1f} s")
    if code or failed:
        said = f"failed: {', '.join(failed)} (pytest ended with {int(code)})"
    else:
        said = f"passed: {len(chosen)} rows"
    print(f"E2E-RESULT {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
