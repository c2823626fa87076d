# SPDX-License-Identifier: Apache-2.0
"""What one version of ours has saved in /run, another does not believe: headings are made of the sources that save."""

from __future__ import annotations

import hashlib
import re

import pytest

from oci_gpu_hook.driver import inventory
from oci_gpu_hook.vendors import vendorinventory
from tests.unit import starts

PACKAGE = starts.ROOT / "oci_gpu_hook"
DRIVER = ("catalogue", "elf", "files", "inventory", "proc", "survey")
VENDORS = ("folders", "tegra", "vendorfile", "vendorinventory", "vendorrules", "vendorsurvey", "wsl")
# Which sources say what is in the file of a heading.
SAVE = {
    "inventory": (inventory.HEADING, [f"driver/{name}.py" for name in DRIVER]),
    "vendors": (
        vendorinventory.HEADING,
        [*[f"vendors/{name}.py" for name in VENDORS], *[f"driver/{name}.py" for name in ("inventory", "nodes")]],
    ),
}


@pytest.mark.parametrize("name", SAVE)
def test_a_heading_is_made_of_the_sources_that_save(name: str) -> None:
    heading, files = SAVE[name]
    digest = hashlib.sha256()
    for file in files:
        digest.update(re.sub(rb"(?m)^HEADING = .*$", b"", (PACKAGE / file).read_bytes()))
    wanted = f"oci-gpu-hook {name} {digest.hexdigest()[:8]}\n".encode()
    assert heading == wanted, f"write HEADING = {wanted!r}"
