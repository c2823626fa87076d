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
DRIVER = "driver/catalogue driver/elf driver/files driver/inventory driver/proc driver/survey"
VENDORS = (
    "vendors/folders vendors/tegra vendors/vendorfile vendors/vendorinventory vendors/vendorrules "
    "vendors/vendorsurvey vendors/wsl driver/inventory driver/nodes"
)
# Which sources say what is in the file of a heading.
SAVE = {"inventory": (inventory.HEADING, DRIVER), "vendors": (vendorinventory.HEADING, VENDORS)}


@pytest.mark.parametrize("name", SAVE)
def test_a_heading_is_made_of_the_sources_that_save(name: str) -> None:
    heading, files = SAVE[name]
    digest = hashlib.sha256()
    for file in files.split():
        digest.update(re.sub(rb"(?m)^HEADING = .*$", b"", (PACKAGE / f"{file}.py").read_bytes()))
    wanted = f"oci-gpu-hook {name} {digest.hexdigest()[:8]}\n".encode()
    assert heading == wanted, f"write HEADING = {wanted!r}"
