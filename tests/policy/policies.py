# SPDX-License-Identifier: Apache-2.0
"""The policies that the tests look at: Debian's, and Debian's with our modules, kept below .build/policy.

    python3 -m tests.policy.policies        build both, print where they are

Must not touch this machine's own policy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from typing import NamedTuple

from tests.policy import debian

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.path.join(REPOSITORY, os.environ.get("POLICIES", ".build/policy"))
FOLDER = os.environ.get("OUR_POLICY", os.path.join(REPOSITORY, "policy"))
MODULES = ("nvidia_container", "oci_gpu_hook")


class Policies(NamedTuple):
    """The roots of two module stores, both linked."""

    base: str
    ours: str


def texts() -> dict[str, str]:
    found = {}
    for name in MODULES:
        with open(f"{FOLDER}/{name}.cil", encoding="ascii") as file:
            found[name] = file.read()
    return found


def build() -> Policies:
    """Both, from the cache where nothing that makes them has changed."""
    with open(debian.__file__, "rb") as file:
        key = hashlib.sha256(file.read() + debian.version().encode()).hexdigest()[:16]
    base = os.path.join(CACHE, f"base-{key}")
    if not os.path.exists(f"{base}/complete"):
        print("test-policy: linking Debian's policy with its container module", file=sys.stderr)
        shutil.rmtree(CACHE, ignore_errors=True)
        debian.link(base, f"{base}.scratch")
        shutil.rmtree(f"{base}.scratch")
        _mark(base)
    changed = hashlib.sha256("".join(texts().values()).encode()).hexdigest()[:16]
    ours = os.path.join(CACHE, f"ours-{changed}")
    if not os.path.exists(f"{ours}/complete"):
        print("test-policy: installing our modules into a copy", file=sys.stderr)
        for name in os.listdir(CACHE):
            if name.startswith("ours-"):
                shutil.rmtree(os.path.join(CACHE, name))
        shutil.copytree(base, ours, symlinks=True, ignore=shutil.ignore_patterns("complete"))
        debian.install(ours, *[f"{FOLDER}/{name}.cil" for name in MODULES])
        _mark(ours)
    return Policies(base, ours)


def _mark(folder: str) -> None:
    with open(f"{folder}/complete", "w", encoding="ascii"):
        pass


if __name__ == "__main__":
    built = build()
    print(f"{debian.binary(built.base)}\n{debian.binary(built.ours)}")
