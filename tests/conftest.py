# SPDX-License-Identifier: Apache-2.0
"""What all tests share: options."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", action="store_true", help="write the goldens anew, for review"
    )
