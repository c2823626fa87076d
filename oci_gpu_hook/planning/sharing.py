# SPDX-License-Identifier: Apache-2.0
"""Shares of several drivers in one container: what two of them give alike is given once.  Pure.

Must not prefer one driver to another: if two want different things at one path, nothing is given.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.operations.mount import Mount
from oci_gpu_hook.operations.service import Service
from oci_gpu_hook.operations.symlink import Symlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.operations.operation import Operation
    from oci_gpu_hook.planning.plan import Share


def apart(shares: tuple[Share, ...]) -> tuple[Share, ...]:
    """The shares, each without what an earlier one gives; ConfigError names the two that cannot be together."""
    # What is at each path: who gives it, and what it is.
    taken: dict[str, tuple[str, object]] = {}
    found = []
    for share in shares:
        giver = share.giver
        nodes = [pair for pair in share.nodes if _is_new(taken, giver, {pair[0].path: (pair[0].major, pair[0].minor)})]
        operations = [operation for operation in share.operations if _is_new(taken, giver, _things(operation))]
        found.append(share._replace(nodes=tuple(nodes), operations=tuple(operations)))
    return tuple(found)


def _is_new(taken: dict[str, tuple[str, object]], giver: str, things: dict[str, object]) -> bool:
    """Whether any of `things` is at a path that is not taken yet; takes them."""
    is_new = not things
    for path, thing in things.items():
        earlier, there = taken.setdefault(path, (giver, thing))
        if there != thing and earlier != giver:
            raise ConfigError(
                f"{earlier} and {giver} both want {path} in the container, for different things",
                "the administrator must change one of them, or a container must not ask for both",
            )
        is_new = is_new or earlier == giver
    return is_new


def _things(operation: Operation) -> dict[str, object]:
    """What an operation puts at which paths, as far as two drivers can give the same."""
    if isinstance(operation, Mount):
        return dict.fromkeys(operation.paths(), operation.source)
    if isinstance(operation, Service):
        return {operation.target: operation.source}
    if isinstance(operation, Symlink):
        return {operation.path: operation.to}
    return {}
