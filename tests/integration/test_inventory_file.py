# SPDX-License-Identifier: Apache-2.0
"""Every way in which the saved inventory's file can be unfit: damaged, another's, something else in its place.

The container gets what the host has, the file is made anew where that is possible, and nothing else is touched.
"""

from __future__ import annotations

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import Installed, on_node, start
from tests.integration.savedinventory import (
    FILE,
    FOLDER,
    LIE,
    LIES,
    REBUILT,
    REFRESH,
    TRUE,
    has_gpu,
    started,
)


def test_the_saved_inventory_is_what_a_start_goes_by(installed: Installed, bundle: Maker) -> None:
    """Else every other test here would be green for a hook that saves nothing."""
    seen, after = started(installed, bundle("busybox").asks("0"), "")
    has_gpu(seen, LIE)
    assert after == REBUILT._replace(true=False)


def written(change: str) -> str:
    """The file with other content in its own form: `change` makes it, of the stamp and the rows, or of nothing."""
    program = f"""import marshal
with open("{FILE}", "rb") as file:
    data = file.read()
heading, (stamp, rows) = data[:25], marshal.loads(data[29:])
content = {change}
if not isinstance(content, bytes):
    content = marshal.dumps(content, 2)
with open("{FILE}", "wb") as file:
    file.write(heading + len(content).to_bytes(4, "little") + content)
"""
    return f"/usr/bin/python3 -ISc '{program}'"


FILES = {
    "missing": f"rm {FILE}",
    "empty": f": >{FILE}",
    "one byte": f"truncate -s 1 {FILE}",
    "cut after a hundred bytes": f"truncate -s 100 {FILE}",
    "cut after a page": f"truncate -s 4096 {FILE}",
    "cut in the middle": f"truncate -s $(($(stat -c %s {FILE}) / 2)) {FILE}",
    "cut before its last byte": f"truncate -s -1 {FILE}",
    "zeros at its end": f"truncate -s +4096 {FILE}",
    "zeros instead of its first page": f"dd if=/dev/zero of={FILE} bs=4096 count=1 conv=notrunc status=none",
    "written twice": f"cat {FILE} {FILE} >/tmp/twice; cat /tmp/twice >{FILE}",
    "no inventory": f"head -c 40000 /dev/urandom >{FILE}",
    "what an older version saved": f'echo \'{{"format": 3, "stamp": [], "inventory": []}}\' >{FILE}',
    "a heading alone": f"truncate -s 25 {FILE}",
    "a heading and a length": f"truncate -s 29 {FILE}",
    "another length": f"printf '\\377' | dd of={FILE} bs=1 seek=25 conv=notrunc status=none",
    "a larger length": f"printf '\\377' | dd of={FILE} bs=1 seek=28 conv=notrunc status=none",
    "nothing": written('b""'),
    "nothing that marshal knows": written("bytes([255]) * 40000"),
    "an end that marshal does not know": written(
        "marshal.dumps((stamp, rows), 2)[:-1] + bytes([255])"
    ),
    "zeros": written("bytes(40000)"),
    "deep": written('b"(" + bytes([1, 0, 0, 0, 40]) * 100000'),
    "None": written("None"),
    "no stamp": written("(None, rows)"),
    "another stamp": written("(stamp[:-1], rows)"),
    "no rows": written("(stamp, None)"),
    "a shorter inventory": written("(stamp, rows[:2])"),
    "a longer inventory": written("(stamp, (*rows, ()))"),
    "a GPU of fewer fields": written("(stamp, (*rows[:2], (rows[2][0][:-1],), *rows[3:]))"),
    "a GPU of more fields": written('(stamp, (*rows[:2], ((*rows[2][0], ""),), *rows[3:]))'),
    "a string where a GPU belongs": written('(stamp, (*rows[:2], ("GPU",), *rows[3:]))'),
    "a number where GPUs belong": written("(stamp, (*rows[:2], 8, *rows[3:]))"),
    "an older format": f"LC_ALL=C sed -i '1s/4$/3/' {FILE}",
    "a newer format": f"LC_ALL=C sed -i '1s/4$/5/' {FILE}",
    "a longer format": f"LC_ALL=C sed -i '1s/4$/44/' {FILE}",
    "larger than memory": f"truncate -s 1T {FILE}",
    "larger than any": f"head -c 5000000 /dev/zero | tr '\\0' ' ' >>{FILE}",
    "of another owner": f"chown 1000 {FILE}",
    "writable by its group": f"chmod 664 {FILE}",
    "writable by all": f"chmod 606 {FILE}",
    "a link to another file": f"mv {FILE} /run/lie; ln -s /run/lie {FILE}",
    "a link to nothing": f"rm {FILE}; ln -s /run/nothing {FILE}",
    "a link to itself": f"rm {FILE}; ln -s inventory {FILE}",
    "a fifo": f"rm {FILE}; mkfifo {FILE}",
    "a fifo with a writer": f"mv {FILE} /run/lie; mkfifo {FILE}; cat /run/lie 1<>{FILE} >&1",
    "a device": f"rm {FILE}; mknod -m 644 {FILE} c 1 5",
    "a device that gives nothing": f"rm {FILE}; mknod -m 644 {FILE} c 1 3",
}


@pytest.mark.parametrize("spoil", FILES.values(), ids=FILES)
def test_a_file_that_cannot_be_believed_is_made_anew(
    installed: Installed, bundle: Maker, spoil: str
) -> None:
    seen, after = started(installed, bundle("busybox").asks("0"), spoil)
    has_gpu(seen, TRUE)
    assert after == REBUILT


@pytest.mark.parametrize("target", ["/run/lie", "/run/nothing"])
def test_what_a_link_in_its_place_leads_to_is_not_touched(
    installed: Installed, bundle: Maker, target: str
) -> None:
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", "true")
    script = f"""{REFRESH}{LIES}mv {FILE} /run/lie; ln -s {target} {FILE}
before=$(stat -c '%i %y %s' /run/lie)
{start("runc", made)}
[ "$before" = "$(stat -c '%i %y %s' /run/lie)" ] && [ ! -e /run/nothing ] && [ ! -L {FILE} ]
"""
    done = on_node(installed, script)
    assert done.code == 0, done.err


# Where it cannot be made anew, or must not be: what then lies there (None: whatever the spoiling left), and what
# ``inventory refresh`` says, which cannot mend it either.
PLACES = {
    "a folder in its place": (
        f"mv {FILE} /run/lie; mkdir {FILE}; mv /run/lie {FILE}/lie",
        ["inventory"],
        "Is a directory",
    ),
    "its folder is missing": (f"rm -r {FOLDER}", [], ""),
    "its folder is a file": (
        f"mv {FILE} /run/lie; rmdir {FOLDER}; mv /run/lie {FOLDER}",
        [],
        "Not a directory",
    ),
    "its folder is a link": (
        f"mv {FOLDER} /run/elsewhere; ln -s elsewhere {FOLDER}",
        ["inventory"],
        "Not a directory",
    ),
    "its folder is a link to nothing": (
        f"rm -r {FOLDER}; ln -s elsewhere {FOLDER}",
        [],
        "No such file or directory|Not a directory",
    ),
    "others may write to its folder": (
        f"chmod 777 {FOLDER}",
        ["inventory"],
        "others than root may write to it",
    ),
    "all may add to its folder": (
        f"chmod 1777 {FOLDER}",
        ["inventory"],
        "others than root may write to it",
    ),
    "its folder is another's": (
        f"chown 1000 {FOLDER}",
        ["inventory"],
        "others than root may write to it",
    ),
    "its folder is read-only": (
        f"rm {FILE}; mount -t tmpfs -o ro,mode=755 none {FOLDER}",
        [],
        "Read-only file system",
    ),
    "its folder is full": (
        f"mount -t tmpfs -o size=8k,mode=755 none {FOLDER}; head -c 9000 /dev/zero >{FILE} 2>/dev/null || true",
        ["inventory"],
        "No space left on device",
    ),
    "its folder has no room for a file": (
        f"mount -t tmpfs -o nr_inodes=1,mode=755 none {FOLDER}",
        [],
        "No space left on device",
    ),
}


@pytest.mark.parametrize(("spoil", "left", "said"), PLACES.values(), ids=PLACES)
def test_where_nothing_can_be_saved_the_container_gets_the_truth_and_nothing_else_is_touched(
    installed: Installed, bundle: Maker, spoil: str, left: list[str], said: str
) -> None:
    made = bundle("busybox").asks("0").runs("/bin/sh", "-c", "echo /dev/nvidia[0-9]*")
    # A folder's own times tell that a file was tried in it.
    tell = "find /run/oci-gpu-hook /run/elsewhere -printf '%p %y %m %U %i ' "
    tell += "'(' -type d -printf '\\n' -o -printf '%s %T@\\n' ')' 2>/dev/null | sort || true"
    script = f"""{REFRESH}{LIES}{spoil}
before=$({tell})
{start("runc", made)}
[ "$before" = "$({tell})" ] || {{ echo "$before"; {tell}; exit 3; }}
ls -A {FOLDER}/ 2>/dev/null | sed 's/^/left /'
oci-gpu-hook inventory refresh 2>&1 || true
"""
    done = on_node(installed, script)
    assert done.code == 0, done.out + done.err
    lines = done.out.splitlines()
    assert lines[0] == TRUE
    assert "Traceback" not in done.out + done.err
    assert not done.err, "the container got all that it asked for: there is nothing to say"
    assert [line for line in lines if line.startswith("left ")] == [f"left {name}" for name in left]
    told = lines[1 + len(left)]
    if said:
        assert told.startswith(f"oci-gpu-hook: cannot save the inventory in {FOLDER}: "), done.out
        assert any(words in told for words in said.split("|")), told
    else:
        assert told.startswith("saved /run/oci-gpu-hook/inventory: ")


def test_the_file_can_be_read_by_all_whatever_the_engines_umask(
    installed: Installed, bundle: Maker
) -> None:
    seen, after = started(installed, bundle("busybox").asks("0"), f"rm {FILE}; umask 077")
    has_gpu(seen, TRUE)
    assert after == REBUILT
