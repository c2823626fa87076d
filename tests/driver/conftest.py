# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the integration tests: the same installation, roots and simulated kernel side."""

from __future__ import annotations

from tests.integration.conftest import _as_root, bundle, driver, installed, patterns

__all__ = ["_as_root", "bundle", "driver", "installed", "patterns"]
