# SPDX-License-Identifier: Apache-2.0
"""``features`` by the installed command on the simulated nodes: written, renewed and removed.

Must not import the source tree's modules.
"""

from __future__ import annotations

import json

from tests.integration.engines import REPOSITORY, Installed, in_turn, on_node

FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
FILE = f"{FOLDER}/oci-gpu-hook"
SETTINGS = f"features = {FILE}\n"
VALIDATION = json.dumps(
    {
        "time": 1_700_000_000,
        "driver_version": "590.48.01",
        "steps": [{"name": "driver", "outcome": "passed", "why": ""}],
    }
)
OURS = "feature.node.kubernetes.io/oci-gpu-hook"


def test_the_file_says_what_the_node_has_and_goes_with_its_driver(installed: Installed) -> None:
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
    done = in_turn(installed, scripts, description="h100mig", settings=SETTINGS)
    said, *lines = done["written"]
    assert said.startswith(f"wrote {FILE}: "), said
    found = dict(line.split("=", 1) for line in lines)
    # What is below nvidia.com is GPU Feature Discovery's.
    assert {name.partition("/")[0] for name in found} == {OURS.partition("/")[0]}
    assert found[f"{OURS}.validation"] == "none"
    assert done["validated"] == [
        f"{OURS}.validation=incomplete",
        f"{OURS}.validation.driver=passed",
        f"{OURS}.validation.timestamp=1700000000",
        "644",
        "oci-gpu-hook",
    ]
    half, code = done["upgrade"]
    assert "the driver 590.48.07 lacks libnvidia-ml" in half
    assert code == "6"
    refused, code = done["readonly"]
    assert refused.startswith(f"oci-gpu-hook: cannot write {FILE}: Read-only file system")
    assert code == "7"
    assert done["renamed"] == ["other", f"removed {FOLDER}/other", "no setting 'features': nothing written"]
    assert done["removed"] == [f"removed {FILE}", "there is no file of features", "2"]
    assert done["gone"] == [f"no driver is loaded: removed {FILE}", f"no driver is loaded: there is no {FILE}"]
    assert done["unset"] == ["no setting 'features': nothing written"]
    assert done["no folder"][0].startswith("oci-gpu-hook: cannot write /proc/nowhere/f: ")


def test_an_uninstallation_takes_the_file_with_it() -> None:
    """Else the node would keep its labels for ever."""
    for name in ("install.sh", "oci-gpu-hook.spec", "debian/oci-gpu-hook.prerm"):
        assert "features --remove >/dev/null" in (REPOSITORY / "packaging" / name).read_text()


def test_a_node_without_a_driver_has_no_features(installed: Installed) -> None:
    done = on_node(installed, "oci-gpu-hook features", faults=("no-proc-driver",), description="v100")
    assert (done.code, done.out) == (6, "")
    assert "Traceback" not in done.err


def test_other_vendors_devices_are_features_with_and_without_nvidias_driver(installed: Installed) -> None:
    script = f"oci-gpu-hook features --write; cat {FILE}"
    done = on_node(installed, script, settings=SETTINGS, description="none", vendors=("amd",))
    said, *lines = done.out.splitlines()
    assert (done.code, said.startswith(f"wrote {FILE}: ")) == (0, True), done.err
    found = dict(line.split("=", 1) for line in lines)
    assert found["amd.com/oci-gpu-hook.gpu.present"] == "true"
    assert int(found["amd.com/oci-gpu-hook.gpu.count"]) > 0
    assert not [name for name in found if "validation" in name]
    adapters = "openfabrics.org/oci-gpu-hook.hca.present=true"
    for gpus in (True, False):
        done = on_node(installed, script, settings=SETTINGS, faults=() if gpus else ("no-proc-driver",))
        lines = done.out.splitlines()
        assert (adapters in lines, f"{OURS}.validation=none" in lines) == (True, gpus), done.err


def test_watch_keeps_the_file_and_removes_it_with_the_driver(installed: Installed) -> None:
    script = f"""
until_it() {{ for try in $(seq 6000); do ! "$@" || return 0; sleep 0.1; done; cat /run/said; return 1; }}
said_twice() {{ [ $(grep -c "^wrote {FILE}" /run/said) = 2 ]; }}
oci-gpu-hook inventory watch --interval 0.2 >/run/said 2>&1 & watch=$!
until_it test -e {FILE}
mkdir /tmp/none && mount --bind /tmp/none /proc/driver/nvidia
until_it test ! -e {FILE}
umount /proc/driver/nvidia
until_it said_twice
kill -TERM $watch && wait $watch
cat /run/said
"""
    # The default node has InfiniBand, too, of which the file tells on.
    done = on_node(installed, script, settings=SETTINGS, description="v100")
    assert done.code == 0, done.out + done.err
    told = [line.partition(":")[0] for line in done.out.splitlines() if FILE in line]
    assert told == [f"wrote {FILE}", "no driver is loaded", f"wrote {FILE}"]
    assert "Traceback" not in done.out
