# SPDX-License-Identifier: Apache-2.0
"""Where things lie in the virtual machine, below its root.

Must not hold anything else: the machine's own programs read it too.
"""

SOURCES = "srv/oci-gpu-hook"
INSTALLED = "srv/installed"
# The word of --only.
ONLY = "etc/e2e-only"
# Of the lane of GPU memory.
MODULE = "srv/regions.ko"
NEWEST = "srv/newest"
