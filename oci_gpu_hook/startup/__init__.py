# SPDX-License-Identifier: Apache-2.0
"""A folder for the interpreter's path, not a package to import from: see encodings.py."""
