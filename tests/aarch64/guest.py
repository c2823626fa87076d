# SPDX-License-Identifier: Apache-2.0
"""Runs the rows inside the virtual machine, and says on its console how each ended.

Must not know what they test.
"""

from __future__ import annotations

import os
import sys
from itertools import chain

import pytest

from tests.aarch64.places import INSTALLED, ONLY
from tests.aarch64.rows import ROWS

_SHOWN = 40  # lines of a failure


class Table:
    """A pytest plugin: how the tests of each row ended, and how long they took."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(ROWS, 0.0)
        self.outcomes: dict[str, set[str]] = {name: set() for name in ROWS}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test."""
        name = _row(report.nodeid)
        self.seconds[name] += report.duration
        if report.when == "call" or not report.passed:
            self.outcomes[name].add(report.outcome)
        if report.failed:
            print(f"\nE2E failed: {report.nodeid}", flush=True)
            for line in report.longreprtext.splitlines()[-_SHOWN:]:
                print(f"E2E   {line}", flush=True)


def _row(nodeid: str) -> str:
    """Which row a test belongs to: of a file, of a test with any parameters, or of one test."""
    names = {nodeid, nodeid.partition("[")[0], nodeid.partition("::")[0]}
    return next(name for name, tests in ROWS.items() if names & {*tests})


def main() -> int:
    """All rows, or those whose names have a word."""
    with open(f"/{ONLY}", encoding="utf-8") as file:
        only = file.read()
    chosen = {name: tests for name, tests in ROWS.items() if only in name}
    print(f"E2E {os.uname().machine}, Linux {os.uname().release}: {len(chosen)} rows", flush=True)
    table = Table()
    os.environ["OCI_GPU_HOOK_INSTALLED"] = f"/{INSTALLED}"
    options = ["-q", "--color=no", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    # Short, as users of user namespaces must get through all of it.
    options.append("--basetemp=/tmp/tests")
    code = pytest.main([*options, *chain.from_iterable(chosen.values())], plugins=[table])
    failed = [name for name in chosen if table.outcomes[name] != {"passed"}]
    width = max(map(len, ROWS))
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
    sys.exit(main())
