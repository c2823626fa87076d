# SPDX-License-Identifier: Apache-2.0
"""What commands and the node's services know of the machine."""
