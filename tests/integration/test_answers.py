# SPDX-License-Identifier: Apache-2.0
"""The second container of a kind is given what the first one got, faster; and what the host has by then.

Real runc on the simulated node.  Which answers are kept is the subject of tests/unit/test_answers.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, on_node, start
from tests.integration.savedinventory import FOLDER, REFRESH, TRUE
from tests.integration.test_invariants import traced
from tests.integration.test_inventory_truth import CHANGES, INSTANCES, REPARTITIONS

ANSWERS = f"ls {FOLDER} | grep -c '^answer[.][0-9a-f]*$' || true\n"
GPUS = "echo /dev/nvidia[0-9]*"
# All that a hook brings: nodes with their permissions, mounts, the loader's cache.
EVERYTHING = """stat -c '%n %F %a %u %g %t %T' /dev/* /dev/dri/* 2>/dev/null
while read -r _ _ _ root target options _; do
    case $target in *nvidia* | *cuda* | /etc/*) echo $root $target $options ;; esac
done </proc/self/mountinfo
stat -c '%n %s %a' /etc/ld.so.cache
cat /proc/driver/nvidia/params
"""


def looks(made: Bundle, words: str) -> Bundle:
    return made.runs("/bin/sh", "-c", words)


@pytest.mark.parametrize("capabilities", ["compute,utility", "all"])
@pytest.mark.parametrize("devices", ["1", "all"])
def test_the_second_start_gives_what_the_first_gave(
    installed: Installed, bundle: Maker, devices: str, capabilities: str
) -> None:
    made = looks(bundle("debian").asks(devices, capabilities), EVERYTHING)
    starts = "; ".join(f"{start('runc', made, name)} >/tmp/{name}" for name in ("one", "two"))
    fresh = f"rm {FOLDER}/answer.*; {start('runc', made, 'three')} >/tmp/three"
    script = f"{REFRESH}{starts}\n{ANSWERS}{fresh}\ncat /tmp/one\ncmp /tmp/one /tmp/two && cmp /tmp/two /tmp/three"
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    assert done.out.startswith("1\n")
    assert "/dev/nvidiactl character" in done.out and "libcuda" in done.out


def test_the_second_start_does_not_read_the_inventory(
    installed: Installed, bundle: Maker, tmp_path: Path
) -> None:
    first = bundle("busybox").asks("1")
    made = traced(bundle("busybox").asks("1"), tmp_path / "trace")
    script = f"{REFRESH}{start('runc', looks(first, 'true'), 'one')}\n{start('runc', looks(made, 'true'), 'two')}"
    done = on_node(installed, script)
    assert done.code == 0, done.err
    opened = [line for line in (tmp_path / "trace").read_text().splitlines() if " openat(" in line]
    assert [line for line in opened if '"answer.' in line]
    assert not [line for line in opened if '"inventory"' in line]


@pytest.mark.parametrize(("change", "gpu"), CHANGES.values(), ids=CHANGES)
def test_what_changes_on_the_host_changes_in_the_second_container(
    installed: Installed, bundle: Maker, change: str, gpu: str
) -> None:
    made = looks(bundle("busybox").asks("0"), GPUS)
    script = (
        f"{REFRESH}{start('runc', made, 'one')}\n{ANSWERS}{change}\n{start('runc', made, 'two')}"
    )
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    assert done.out.split() == [TRUE, "1", gpu]


@pytest.mark.parametrize(("change", "instances"), REPARTITIONS.values(), ids=REPARTITIONS)
def test_mig_devices_are_those_of_the_second_start(
    installed: Installed, bundle: Maker, change: str, instances: set[str]
) -> None:
    tell = "cd /proc/driver/nvidia/capabilities 2>/dev/null && echo gpu1/mig/*/ci*"
    made = looks(bundle("busybox").asks("all"), f"{tell}; true")
    script = (
        f"{REFRESH}{start('runc', made, 'one')}\n{ANSWERS}{change}\n{start('runc', made, 'two')}"
    )
    done = on_node(installed, script, description="h100mig")
    assert done.code == 0, done.out + done.err
    first, count, *rest = done.out.split("\n")
    assert {f"gpu1/mig/{name}" for name in INSTANCES} == set(first.split())
    assert count == "1"
    found = {path for path in "".join(rest).split() if "*" not in path}
    assert found == {f"gpu1/mig/{name}" for name in instances}


LATER = {
    "a node's permissions": ("chmod 640 /dev/nvidia2", "stat -c %a /dev/nvidia2", "666", "640"),
    "a service that has started": (
        "mkdir -p /tmp/nvidia-mps",
        "test -d /tmp/nvidia-mps && echo there || echo not",
        "not",
        "there",
    ),
    "a service that has ended": (
        "rm -rf /tmp/nvidia-mps /run/nvidia-persistenced /var/run/nvidia-persistenced",
        "test -S /var/run/nvidia-persistenced/socket && echo there || echo not",
        "there",
        "not",
    ),
}


@pytest.mark.parametrize(("change", "tell", "before", "after"), LATER.values(), ids=LATER)
def test_what_is_looked_up_at_each_start_still_is(
    installed: Installed, bundle: Maker, change: str, tell: str, before: str, after: str
) -> None:
    made = looks(bundle("busybox").asks("0"), tell)
    prepare = "rm -rf /tmp/nvidia-mps\n" if before == "not" else ""
    script = f"{prepare}{REFRESH}{start('runc', made, 'one')}\n{ANSWERS}{change}\n{start('runc', made, 'two')}"
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    assert done.out.split() == [before, "1", after]


def test_another_request_or_image_gets_its_own(installed: Installed, bundle: Maker) -> None:
    one = looks(bundle("busybox").asks("0"), GPUS)
    two = looks(bundle("busybox").asks("1"), GPUS)
    debian = looks(bundle("debian").asks("0"), "ls /usr/lib/*-linux-gnu/libcuda.so.1 | wc -l")
    script = f"""{REFRESH}{start("runc", one, "one")}
{start("runc", two, "two")}
{start("runc", debian, "three")}
{start("runc", one, "four")}
{ANSWERS}"""
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    first, second, libraries, again, count = done.out.split()
    assert first == again != second
    assert (libraries, count) == ("1", "3")


def test_twenty_starts_at_once_all_get_theirs(installed: Installed, bundle: Maker) -> None:
    """While some keep an answer, others read it."""
    made = [looks(bundle("busybox").asks("0"), GPUS) for _ in range(20)]
    starts = " & ".join(start("runc", each, f"one-of-{n}") for n, each in enumerate(made))
    done = on_node(installed, f"{REFRESH}{starts} & wait\nls -A {FOLDER} | grep -c answer")
    assert done.code == 0, done.out + done.err
    assert done.out.split() == [TRUE] * 20 + ["1"]
