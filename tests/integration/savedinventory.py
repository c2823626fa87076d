# SPDX-License-Identifier: Apache-2.0
"""A node whose saved inventory lies, and how a container is started on it.

The lie is another minor for GPU 0: a start that believes it gives another GPU.  Must not import the source
tree's modules.
"""

from __future__ import annotations

from tests.integration.engines import Bundle
from tests.integration.inside import REFRESH

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
