# SPDX-License-Identifier: Apache-2.0
"""Where things lie in the virtual machine."""

SOURCES = "srv/oci-gpu-hook"
INSTALLED = "srv/installed"
