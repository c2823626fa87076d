# SPDX-License-Identifier: Apache-2.0
"""Every way in which the saved inventory's file can be unfit: damaged, another's, something else in its place.

The container gets what the host has, the file is made again where that is possible, and nothing else is touched.  What
the file's content can be is shown with values in tests/unit/test_statefile.py.
"""

from __future__ import annotations

from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, in_turn, start
from tests.integration.inside import REFRESH

# A lie is another minor for GPU 0: a start that believes it gives another GPU.
FOLDER = "/run/oci-gpu-hook"
FILE = f"{FOLDER}/inventory"
# Behind ls: what is there beside what is known of other vendors; a file that was left unfinished shows.
NO_VENDORS = "| grep -v -e '^vendors$' -e '^vendor[.][A-Z_]*$' || true"
# Of h100x8: the first GPU by address has minor 2, the second 0; the lie says 7.
TRUE, SECOND, LIE = "/dev/nvidia2", "/dev/nvidia0", "/dev/nvidia7"
# By the bytes of the file: a number is an "i" and four of them, a string a "u", its length and itself.
HAS_LIED = f"LC_ALL=C grep -aqP '00000000:1b:00\\.0i\\x07\\0' {FILE}"
ASKED_NVML = f"LC_ALL=C grep -aqP 'u\\x03\\0\\0\\0009\\.0u' {FILE}"
LIES = f"""{REFRESH}LC_ALL=C sed -i 's/\\(00000000:1b:00\\.0i\\)\\x02/\\1\\x07/' {FILE}
{HAS_LIED}
"""


def shows_gpus(made: Bundle, devices: str = "0") -> Bundle:
    """The bundle of a container that asks for GPUs and prints which it has."""
    return made.asks(devices).runs("/bin/sh", "-c", "echo /dev/nvidia[0-9]*")


FILES = {
    "missing": f"rm {FILE}",
    "missing, and the umask of an engine is narrow": f"rm {FILE}; umask 077",
    "larger than memory": f"truncate -s 1T {FILE}",
    "larger than any": f"head -c 5000000 /dev/zero | tr '\\0' ' ' >>{FILE}",
    "of another owner": f"chown 1000 {FILE}",
    "writable by its group": f"chmod 664 {FILE}",
    "writable by all": f"chmod 606 {FILE}",
    "a link to another file": f"mv {FILE} /run/lie; ln -s /run/lie {FILE}",
    "a link to itself": f"rm {FILE}; ln -s inventory {FILE}",
    "a fifo": f"rm {FILE}; mkfifo {FILE}",
    "a device": f"rm {FILE}; mknod -m 644 {FILE} c 1 5",
}
# What a start saves that finds nothing; then before each case the lie, which is saved as it was before.
KEPT = f"""{LIES}rm -f {FOLDER}/vendor*
cp -a {FOLDER} /run/kept
{{empty}}
cp {FILE} /run/anew
renew() {{{{
    umount -l {FOLDER} 2>/dev/null || :
    rm -rf {FOLDER} /run/lie /run/elsewhere
    cp -a /run/kept {FOLDER}
}}}}
"""
# What lies elsewhere must stay as it is.
ELSEWHERE = "stat -c '%n %i %y %s' /run/lie /run/nothing 2>/dev/null || :"


def test_a_file_that_cannot_be_believed_is_made_anew(bundle: Maker) -> None:
    made = shows_gpus(bundle("busybox"))
    case = f"""renew
{{spoil}}
before=$({ELSEWHERE})
{start("runc", made)}
[ "$before" = "$({ELSEWHERE})" ] || echo touched
ls -A {FOLDER}/ {NO_VENDORS}
stat -c '%F %a %u:%g' {FILE}
cmp {FILE} /run/anew || :
"""
    before = KEPT.format(empty=f"rm -r {FOLDER}/*\n{start('runc', made)}")
    # Else every case would be green for a hook that saves nothing, or believes nothing.
    scripts = {"believed": f"renew\n{start('runc', made)}"}
    scripts.update({name: case.format(spoil=spoil) for name, spoil in FILES.items()})
    found = in_turn(scripts, before)
    assert found.pop("believed") == [LIE]
    anew = [TRUE, "inventory", "regular file 644 0:0"]
    assert {name: lines for name, lines in found.items() if lines != anew} == {}
    assert set(found) == set(FILES)


# Where it cannot be made again, or must not be: what then lies there, and what ``inventory refresh`` says, which cannot
# fix it either.
OTHERS, FULL = "is not root's alone", "No space left on device"
PLACES = {
    "a folder in its place": (
        f"mv {FILE} /run/lie; mkdir {FILE}; mv /run/lie {FILE}/lie",
        ["inventory"],
        "Is a directory",
    ),
    "its folder is a file": (f"mv {FILE} /run/lie; rmdir {FOLDER}; mv /run/lie {FOLDER}", [], "Not a directory"),
    "its folder is a link": (f"mv {FOLDER} /run/elsewhere; ln -s elsewhere {FOLDER}", ["inventory"], "Not a directory"),
    "others may write to its folder": (f"chmod 777 {FOLDER}", ["inventory"], OTHERS),
    "its folder is another's": (f"chown 1000 {FOLDER}", ["inventory"], OTHERS),
    "its folder is read-only": (f"rm {FILE}; mount -t tmpfs -o ro,mode=755 none {FOLDER}", [], "Read-only file system"),
    "its folder is full": (
        f"mount -t tmpfs -o size=8k,mode=755 none {FOLDER}; head -c 9000 /dev/zero >{FILE} 2>/dev/null || true",
        ["inventory"],
        FULL,
    ),
    "its folder has no room for a file": (f"mount -t tmpfs -o nr_inodes=1,mode=755 none {FOLDER}", [], FULL),
}


def test_where_nothing_can_be_saved_it_is_the_truth(bundle: Maker) -> None:
    made = shows_gpus(bundle("busybox"))
    # A folder's own times tell that a file was tried in it.
    look = f"find {FOLDER} /run/elsewhere -printf '%p %y %m %U %i ' "
    look += "'(' -type d -printf '\\n' -o -printf '%s %T@\\n' ')' 2>/dev/null | sort || true"
    case = f"""renew
{{spoil}}
before=$({look})
{start("runc", made)} 2>&1
[ "$before" = "$({look})" ] || {{{{ echo "$before"; {look}; }}}}
ls -A {FOLDER}/ 2>/dev/null || :
oci-gpu-hook inventory refresh 2>&1 | head -n 1
"""
    before = KEPT.format(empty=REFRESH)
    scripts = {name: case.format(spoil=spoil) for name, (spoil, _, _) in PLACES.items()}
    found = in_turn(scripts, before)
    for name, (_, left, said) in PLACES.items():
        *lines, told = found[name]
        assert lines == [TRUE, *left], (name, found[name])
        assert told.startswith(f"oci-gpu-hook: cannot save the inventory in {FOLDER}: ") and said in told, (name, told)
