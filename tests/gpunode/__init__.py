# SPDX-License-Identifier: Apache-2.0
"""A simulated GPU node for tests and the demo: see README.md. Must not: hold any code."""
