# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the integration tests: the same installation, roots and simulated driver."""

from __future__ import annotations

from tests.integration.conftest import _as_root as _as_root
from tests.integration.conftest import driver as driver
from tests.integration.conftest import installed as installed
