# SPDX-License-Identifier: Apache-2.0
"""What the tests of the policy share."""

from __future__ import annotations

import pytest

from tests.policy import debian, policies


@pytest.fixture(scope="session")
def ours() -> str:
    """Debian's policy with our modules."""
    return debian.binary(policies.build().ours)
