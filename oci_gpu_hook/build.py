# SPDX-License-Identifier: Apache-2.0
"""Which build of the hook is running.  Must not hold anything else: packaging/link.py writes this module anew."""

from __future__ import annotations

# A digest of the sources and of the Python that compiled them; "" if the modules are not linked.
DIGEST = ""
