# SPDX-License-Identifier: Apache-2.0
"""Run pytest's rows in a virtual machine, by the command line that every such lane has, and say whether all passed.

    python3 -m tests.LANE.run [--only WORD] [--break FAULT] [--console]

`--only` runs the rows whose names contain a word; `--break` plants a fault in the hook, which must make it fail;
`--console` shows all that the machine prints.  Exit status 0 only if every row passed.
Must not know a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tests import machine
from tests.guest.base import Base
from tests.guest.tree import Fault, make_image, renew


def run(
    base: Base,
    qemu: list[str],
    line: str,
    rows: Iterable[str],
    faults: Mapping[str, Fault],
    *,
    patience: int,
    descriptions: tuple[str, ...],
    add: Callable[[], None] = lambda: None,
) -> int:
    """Make or find the base, renew it, boot, judge.

    qemu, line, patience: as `machine.test` has them; descriptions: of the nodes whose drivers the rows have; add: puts
    into the tree what only this lane's rows need.
    """
    options = machine.options(base.lane, faults)
    if not any(options.only in name for name in rows):
        raise SystemExit(f"{base.lane}: no row's name contains {options.only!r}")

    def image() -> str:
        renew(base.root, options.only, faults.get(options.fault), base.architecture, descriptions)
        add()
        return make_image(base.root, f"{base.folder}/root.img")

    return machine.test(qemu, base, line, image, patience=patience, console=options.console)
