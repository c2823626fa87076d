# SPDX-License-Identifier: Apache-2.0
"""The version, as setup.cfg and the spec have it.  Must not hold anything else."""

from __future__ import annotations

VERSION = "0.1.0"
