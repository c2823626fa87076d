# SPDX-License-Identifier: Apache-2.0
"""Runs the rows inside the virtual machine, and says on its console how each ended.

Must not know what they test.
"""

from __future__ import annotations

import os
import sys
from itertools import chain

import pytest

from tests.aarch64.places import INSTALLED
from tests.aarch64.rows import ROWS

ONLY = "/etc/e2e-only"
_SHOWN = 40  # lines of a failure


class Table:
    """A pytest plugin: the tests of each row, and how they ended."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(ROWS, 0.0)
        self.outcomes: dict[str, set[str]] = {name: set() for name in ROWS}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test."""
        for name, tests in ROWS.items():
            if any(
                report.nodeid == test or report.nodeid.startswith((f"{test}::", f"{test}["))
                for test in tests
            ):
                self.seconds[name] += report.duration
                if report.when == "call" or report.outcome != "passed":
                    self.outcomes[name].add(report.outcome)
        if report.when == "call" or report.outcome != "passed":
            print(f"\nE2E {report.outcome} {report.nodeid}", flush=True)
        if report.failed:
            for line in report.longreprtext.splitlines()[-_SHOWN:]:
                print(f"E2E   {line}", flush=True)


def main() -> int:
    """All rows, or those whose names have a word."""
    with open(ONLY, encoding="utf-8") as file:
        only = file.read()
    tests = {name: tests for name, tests in ROWS.items() if only in name}
    table = Table()
    os.environ["INSTALLED"] = f"/{INSTALLED}"
    options = ["-q", "--color=no", "--durations=30", "-n", "2", "--dist", "worksteal"]
    # Short, as users of user namespaces must get through all of it.
    options += ["-p", "no:cacheprovider", "--basetemp=/tmp/tests"]
    code = pytest.main([*options, *chain.from_iterable(tests.values())], plugins=[table])
    failed = [name for name in tests if table.outcomes[name] != {"passed"}]
    width = max(map(len, ROWS))
    for name in tests:
        outcome = "FAILED" if name in failed else "passed"
        print(f"E2E-TABLE {name:{width}}  {outcome}  {table.seconds[name]:5.1f} s")
    if code or failed:
        said = f"failed: {', '.join(failed)}; pytest ended with {int(code)}"
    else:
        said = f"passed: {len(tests)} rows"
    print(f"E2E-RESULT {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
