# SPDX-License-Identifier: Apache-2.0
"""Where things lie in the virtual machine, below its root.

Must not hold anything else: the machine's own programs read it too.
"""

MODULE = "srv/regions.ko"
NEWEST = "srv/newest"
