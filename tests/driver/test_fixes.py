# SPDX-License-Identifier: Apache-2.0
"""What doctor finds about a real driver, and its remedies, run as they are printed: each ends its finding.

apt has a repository of the fetched packages, which need nothing there: the lane leaves their largest ones out.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.driver.conftest import PACKAGES
from tests.integration import roots
from tests.integration.engines import in_turn

# Remedies, by how they begin, that are not run, and why.
NOT_RUN = {
    "systemctl reboot": "the node does not boot",
    "modprobe ": "the kernel's side is simulated, and has no module",
    "apt install nvidia-driver nvidia-smi": "it builds the kernel's module",
    "apt install --only-upgrade ": "the archive has one version of each driver",
    "journalctl --dmesg ": "it shows what the module has said, which there is not",
    "oci-gpu-hook info": "it shows what a vendor's file looks for; which package has it the vendor knows",
    "oci-gpu-hook validate": "it asks the GPU",
}
# Findings about the driver; others are of engines and of this machine.
CHECKS = ("driver", "libraries", "GPUs", "nodes", "inventory", "NVML", "OCI_AMD")
DEPENDENCIES = ("Pre-Depends", "Depends", "Recommends", "Suggests", "Conflicts", "Breaks", "Replaces")

# apt's own questions are answered; modprobe, which nvidia-modprobe starts, has nothing to load.
SET_UP = """
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/preferences.d /etc/apt/preferences
echo 'deb [trusted=yes] file:{repository} ./' >/etc/apt/sources.list
echo 'APT::Get::Assume-Yes "true"; APT::Sandbox::User "root";' >/etc/apt/apt.conf.d/99-lane
echo 'DPkg::Options {{"--force-depends";}};' >>/etc/apt/apt.conf.d/99-lane
needless() {{ sed -i -E '/^({dependencies}):/d' /var/lib/dpkg/status; }}
needless
export DEBIAN_FRONTEND=noninteractive
apt-get -q -q update >&2
rm -f /usr/sbin/modprobe; printf '#!/bin/sh\\n' >/usr/sbin/modprobe; chmod 0755 /usr/sbin/modprobe
doctor() {{ {{ oci-gpu-hook doctor --json || :; }} | tr -d '\\n'; echo; }}
oci-gpu-hook inventory refresh >&2
"""
# The remedy of the finding that is meant, as a shell runs it.
RUN = """
import json, subprocess, sys
check, seen, said = sys.argv[1:]
for item in json.JSONDecoder().raw_decode(open(said).read())[0]["findings"]:
    if item["check"] == check and seen in item["seen"] and item["level"] != "pass":
        done = subprocess.run(item["remedy"], shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            print(*[line for line in done.stdout.splitlines() if line.startswith(("dpkg: ", "E: "))], sep="\\n")
        break
else:
    print("not found")
"""
LIBCUDA = f"/usr/lib/{roots.MULTIARCH}/libcuda.so.1"
PYNVML = """
for folder in /usr/lib/python3/dist-packages /usr/local/lib/python3*/dist-packages /usr/lib/oci-gpu-hook/vendor; do
    rm -rf $folder/pynvml* $folder/nvidia_ml_py* $folder/__pycache__/pynvml*
done
oci-gpu-hook inventory refresh >&2
"""


class Fault(NamedTuple):
    """What plants a fault, the check that finds it, and what that says."""

    plant: str
    check: str
    seen: str


FAULTS = {
    "no pynvml": Fault(PYNVML, "inventory", "no pynvml"),
    "no package": Fault(
        "dpkg --purge --force-depends {libcuda} >&2; ldconfig", "libraries", "is missing: compute is not served"
    ),
    "cut off": Fault(f": >$(readlink -f {LIBCUDA})", "libraries", "is cut off or no library"),
    "an open file": Fault(f"chmod 0666 $(readlink -f {LIBCUDA})", "libraries", "others than root may write to it"),
    "an open folder above": Fault(
        f"chmod 0777 $(dirname $(readlink -f {LIBCUDA}))", "libraries", "is left out: others than root may write to it"
    ),
}
DRIVERS = {"535": "libcuda1:amd64", "tesla-470": "libnvidia-tesla-470-cuda1"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of all fetched packages."""
    folder = tmp_path_factory.mktemp("repository")
    for name in (*DRIVERS, "rocm", "fixes"):
        (folder / name).symlink_to(PACKAGES / name)
    paragraphs: dict[str, str] = {}
    for package in sorted(folder.glob("*/*.deb")):
        said = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
        lines = [line for line in said.splitlines() if not line.startswith((*[f"{it}:" for it in DEPENDENCIES], " "))]
        lines += [f"Filename: ./{package.relative_to(folder)}", f"Size: {package.stat().st_size}"]
        lines += [f"SHA256: {hashlib.sha256(package.read_bytes()).hexdigest()}"]
        paragraphs.setdefault(package.name, "\n".join(lines))
    (folder / "Packages").write_text("\n\n".join(paragraphs.values()) + "\n")
    for path in (folder, *list(folder.parents)[:3]):
        os.chmod(path, 0o755)
    return folder


def findings(line: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.JSONDecoder().raw_decode(line)[0]["findings"]
    return [it for it in found if it["level"] != "pass" and it["check"] in CHECKS]


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_remedy_ends_its_finding(repository: Path, tmp_path: Path, driver: str) -> None:
    (tmp_path / "run.py").write_text(RUN)
    set_up = SET_UP.format(repository=repository, dependencies="|".join(DEPENDENCIES))
    scripts = {
        # What a remedy before has installed again needs what the lane has not.
        name: f"needless\n{fault.plant.replace('{libcuda}', DRIVERS[driver])}\ndoctor >/run/said; cat /run/said\n"
        f"python3 {tmp_path}/run.py '{fault.check}' '{fault.seen}' /run/said\ndoctor\n"
        # For the next.
        "oci-gpu-hook inventory refresh >&2\n"
        for name, fault in FAULTS.items()
    }
    scripts["packages"] = "dpkg --list | sed -n 's/^ii  \\([^ ]*\\) .*/\\1/p'"
    seen = in_turn(scripts, set_up, driver=f"debian:{driver}")
    others = DRIVERS.keys() - {driver}
    assert not [
        name
        for name in seen.pop("packages")
        if name.partition(":")[0] in [DRIVERS[it].partition(":")[0] for it in others]
    ]
    for name, (said, *ended, again) in seen.items():
        fault = FAULTS[name]
        meant = [it for it in findings(said) if it["check"] == fault.check and fault.seen in it["seen"]]
        assert meant, (name, findings(said))
        assert ended == [], "\n".join([name, *ended])
        assert not [it for it in findings(again) if fault.seen in it["seen"]], (name, meant, findings(again))
    # What is left then is the kernel's side.
    for item in findings([*seen.values()][-1][-1]):
        assert item["remedy"].startswith(tuple(NOT_RUN)), item


def test_a_vendors_missing_library_is_found(repository: Path) -> None:
    set_up = SET_UP.format(repository=repository, dependencies="|".join(DEPENDENCIES))
    scripts = {
        "whole": "doctor",
        "without": "dpkg --purge libhsa-runtime64-1 >&2; ldconfig; oci-gpu-hook inventory refresh >&2; doctor",
        "again": "apt install libhsa-runtime64-1 >&2; oci-gpu-hook inventory refresh >&2; doctor",
    }
    seen = in_turn(scripts, set_up, packages=(PACKAGES / "rocm",), vendors=("amd",), description="none")
    found = {name: [it for it in findings(lines[0]) if it["check"] == "OCI_AMD"] for name, lines in seen.items()}
    assert (found["whole"], found["again"]) == ([], [])
    (item,) = found["without"]
    assert "libhsa-runtime64" in item["seen"] and item["remedy"].startswith(tuple(NOT_RUN))
