# SPDX-License-Identifier: Apache-2.0
"""The kinds of operations: what is shown of each.  That each implements the protocol, mypy shows by the examples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from oci_gpu_hook.cli import options, plantext
from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.operations import (
    Cover,
    Device,
    LdCache,
    LimitMemory,
    Mount,
    OpenCgroup,
    Relabel,
    Service,
    Symlink,
    TellSystemd,
    Tmpfs,
)

if TYPE_CHECKING:
    from oci_gpu_hook.operations import Operation

RULE = DeviceRule("c", 195, 0, "rw")
# One of each kind.
EXAMPLES: tuple[Operation, ...] = (
    Mount("/h/a", "/c/a.1", ("ro",), True, "why", names=("a",)),
    Service("/h/socket", "/c/socket", 0, False, "why"),
    Device("/dev/nvidia0", "c", 195, 0, "rw", 0o666, 0, 0, "", True, "why"),
    Cover("/usr/lib64", ("/usr/local/nvidia/lib64/liba.so.1",), False, "why"),
    Symlink("/dev/dri/by-path/x", "../card0", False, "why"),
    Tmpfs("/proc/driver/nvidia", ("ro",), ("gpus",), (("params", "x", 0o444),), True, "why"),
    LdCache("/etc/ld.so.cache", "/etc/x", ("/usr/local/nvidia",), (Entry(b"liba.so", b"/liba.so", 3),), True, "why"),
    Relabel("/dev/shm", "a:b:c:s0", "a:b:d:s0", True, "why"),
    LimitMemory("/sys/fs/cgroup/c", "/sys/fs/cgroup/c", (("nvidia/x/vidmem", 1 << 20),), True, "why"),
    OpenCgroup("v2", "/sys/fs/cgroup/c", "/sys/fs/cgroup/c", (RULE,), (RULE,), True, "why"),
    TellSystemd("c.scope", (RULE,), (("char-pts", "rwm"),), False, "why"),
)


def test_there_is_one_example_of_each_kind() -> None:
    assert [type(example) for example in EXAMPLES] == list(plantext.KINDS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_what_is_shown_of_an_operation_says_why_and_can_be_written(example: Operation) -> None:
    sentence = str(ApplyError(f"cannot {example.describe()}: no"))
    assert sentence.isprintable() and example.describe()[0].islower() and not sentence.endswith(".")
    title, rows = plantext.rows(example)
    assert title and any(cells[-1] == ("why" if example.required else "why (optional)") for cells in rows)
    assert all(isinstance(cell, str) for cells in rows for cell in cells)
    document = options.as_json(plantext.document(example))
    assert json.loads(json.dumps(document)) == document
    assert (document["required"], document["reason"]) == (example.required, "why")
