# SPDX-License-Identifier: Apache-2.0
"""``features`` by the installed command on the simulated nodes: written, renewed and removed."""

from __future__ import annotations

import json

import pytest

from tests.integration.engines import REPOSITORY, in_turn, watched

FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
FILE = f"{FOLDER}/oci-gpu-hook"
SETTINGS = f"features = {FILE}\n"
STEP = {"name": "driver", "outcome": "passed", "why": ""}
VALIDATION = json.dumps({"time": 1_700_000_000, "driver_version": "590.48.01", "steps": [STEP]})
OURS = "feature.node.kubernetes.io/oci-gpu-hook"


@pytest.fixture(scope="module")
def done() -> dict[str, list[str]]:
    scripts = {
        "written": f"oci-gpu-hook inventory refresh >&2; oci-gpu-hook features --write; cat {FILE}",
        "validated": f"""printf %s '{VALIDATION}' >/run/oci-gpu-hook/validation.json
oci-gpu-hook features --write >/dev/null; grep validation {FILE}; stat -c %a {FILE}; ls -A {FOLDER}""",
        "upgrade": f"""sed 's/590.48.01/590.48.07/' /proc/driver/nvidia/version >/tmp/version
mount --bind /tmp/version /proc/driver/nvidia/version
oci-gpu-hook features --write 2>&1 || echo $?; ls -A {FOLDER}; umount /proc/driver/nvidia/version""",
        "readonly": f"""oci-gpu-hook features --write >/dev/null
mount --bind {FOLDER} {FOLDER} && mount -o remount,bind,ro {FOLDER}
oci-gpu-hook features --write 2>&1 || echo $?
umount {FOLDER}""",
        "renamed": f"""printf 'features = {FOLDER}/other\\n' >/tmp/conf
oci-gpu-hook features --write --config /tmp/conf >/dev/null; ls -A {FOLDER}
: >/tmp/conf; oci-gpu-hook features --write --config /tmp/conf
oci-gpu-hook features --write --config /tmp/conf; ls -A {FOLDER}""",
        "removed": f"""oci-gpu-hook features --write >/dev/null
oci-gpu-hook features --remove; oci-gpu-hook features --remove; ls -A {FOLDER}
oci-gpu-hook features --write --remove 2>/dev/null || echo $?
oci-gpu-hook features --write >/dev/null""",
        "gone": f"""mkdir /tmp/empty && mount --bind /tmp/empty /proc/driver/nvidia
oci-gpu-hook features --write; oci-gpu-hook features --write; ls -A {FOLDER}""",
        "unset": "rm /etc/oci-gpu-hook.conf; oci-gpu-hook features --write",
        "no folder": """printf 'features = /proc/nowhere/f\\n' >/etc/oci-gpu-hook.conf
umount /proc/driver/nvidia; oci-gpu-hook features --write 2>&1 || echo $?""",
    }
    return in_turn(scripts, description="h100mig", settings=SETTINGS)


def test_the_file_says_what_the_node_has(done: dict[str, list[str]]) -> None:
    said, *lines = done["written"]
    assert said.startswith(f"wrote {FILE}: "), said
    found = dict(line.split("=", 1) for line in lines)
    # What is below nvidia.com is GPU Feature Discovery's.
    assert {name.partition("/")[0] for name in found} == {OURS.partition("/")[0]}
    assert found[f"{OURS}.validation"] == "none"
    validation = [f"{OURS}.validation{it}" for it in ("=incomplete", ".driver=passed", ".timestamp=1700000000")]
    assert done["validated"] == [*validation, "644", "oci-gpu-hook"]


# A piece of each line: what cannot be written leaves nothing, and the file goes with its setting and its driver.
SAID = {
    "upgrade": ["the driver 590.48.07 lacks libnvidia-ml", "6"],
    "readonly": [f"oci-gpu-hook: cannot write {FILE}: Read-only file system", "7"],
    "no folder": ["oci-gpu-hook: cannot write /proc/nowhere/f: ", "7"],
    "renamed": ["other", f"removed {FOLDER}/other", "no setting 'features': nothing written"],
    "removed": [f"removed {FILE}", "there is no file of features", "2"],
    "gone": [f"no driver is loaded: removed {FILE}", f"no driver is loaded: there is no {FILE}"],
    "unset": ["no setting 'features': nothing written"],
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_and_what_is_left(done: dict[str, list[str]], name: str) -> None:
    said = list(zip(SAID[name], done[name]))
    assert len(done[name]) == len(SAID[name]) and all(piece in line for piece, line in said), said


def test_an_uninstallation_takes_the_file_with_it() -> None:
    """Else the node would keep its labels for ever, and an alert for old metrics."""
    for name in ("install.sh", "oci-gpu-hook.spec", "debian/oci-gpu-hook.prerm"):
        text = (REPOSITORY / "packaging" / name).read_text()
        assert "features --remove >/dev/null" in text and "metrics --remove >/dev/null" in text


def test_watch_keeps_the_file_and_removes_it_with_the_driver() -> None:
    steps = f"""
until_said '^wrote {FILE}'
[ -e {FILE} ]
mkdir /tmp/none && mount --bind /tmp/none /proc/driver/nvidia
until_said '^no driver is loaded'
[ ! -e {FILE} ]
umount /proc/driver/nvidia
until_said '^wrote {FILE}' 2
"""
    # The default node has InfiniBand, too, of which the file tells on.
    out = watched(steps, settings=SETTINGS, description="v100")
    told = [line.partition(":")[0] for line in out.splitlines() if FILE in line]
    assert told == [f"wrote {FILE}", "no driver is loaded", f"wrote {FILE}"]
