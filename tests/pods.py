# SPDX-License-Identifier: Apache-2.0
"""The pods that people paste, packaging/openshift/pods/nvidia-smi*.yaml, with an image and a UUID of the tests' own.

The image's own `nvidia-smi`, first in its PATH, tells what the container has and runs the node's.  Nothing else of a
pod is changed.  Must not import the source tree's modules, nor anything that is not Python's own.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "packaging/openshift/pods"
# Each by SELinux's type of its container.
FILES = {"container_t": "nvidia-smi.yaml", "nvidia_container_t": "nvidia-smi-selinux.yaml"}
IMAGE = "localhost/pod:1"
PATH = "PATH=/app:/usr/bin:/bin"
REQUIREMENT = "cuda>=5.0"
# What stands in the files; no GPU has it.
UNKNOWN = "GPU-00000000-0000-0000-0000-000000000000"

# One line a fact: NAME=VALUE, the value empty where what is tried succeeds.  Then it stays.
LOOK = """#!/bin/sh
echo "user=$(id -u)"
while read -r key value; do
    case $key in Cap*: | NoNewPrivs: | Seccomp:) echo "${key%:}=$value" ;; esac
done </proc/self/status
count=0
for node in /dev/nvidia*; do
    test -c $node || continue
    echo "$node=$({ true <$node; } 2>&1)"
    count=$((count + 1))
done
echo "nodes=$count"
echo "root=$({ true >/written; } 2>&1)"
echo "shm=$({ true >/dev/shm/written; } 2>&1)"
echo "smi=$(/usr/bin/nvidia-smi "$@" 2>&1)"
echo "looked=$(cat /proc/self/attr/current 2>&1)"
exec sleep 1000
"""


def text(type_: str, uuid: str = UNKNOWN, requirement: str = REQUIREMENT) -> str:
    """A pod that asks for this GPU."""
    found = (FOLDER / FILES[type_]).read_text(encoding="ascii")
    for words, other in (
        ("image: ubi9/ubi-minimal\n", f"image: {IMAGE}\n"),
        (UNKNOWN, uuid),
        (REQUIREMENT, requirement),
    ):
        assert found.count(words) == 1, f"{words!r} is not once in {FILES[type_]}"
        found = found.replace(words, other)
    return found
