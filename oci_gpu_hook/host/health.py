# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are not healthy, as commands and services of this host have found them, saved for starts.

The file is there only if some are not.  Must not ask a GPU.
"""

from __future__ import annotations

from oci_gpu_hook.host import saved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot

HEADING = b"oci-gpu-hook unhealthy 1\n"


def read(host: HostRoot) -> dict[str, str]:
    """For each GPU that is not healthy, by its PCI address (`Gpu.bus_id`), a clause that says why."""
    rows = saved.load(host, saved.UNHEALTHY, HEADING)
    try:
        return {str(key): str(why) for key, why in rows or ()}
    except (ValueError, TypeError):
        return {}
