# SPDX-License-Identifier: Apache-2.0
"""What commands and the node's services know of the machine.

May use what a container's start uses; nothing of a start uses this package (`.importlinter`).
"""
