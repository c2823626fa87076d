# SPDX-License-Identifier: Apache-2.0
"""The strictest settings, for a container whose engine does not say which sections are its own.  Pure.

Any of the sections could be its own, or none: a restriction in one of them must not fail open.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable


class Setting(NamedTuple):
    """One line: its place, for whom it holds ("" is everybody), the field of `Settings` and its value."""

    where: str
    scope: str
    pattern: str
    field: str
    value: object


# The later one has precedence.
SCOPES = ("", "image", "namespace")

# For each setting that sections may differ in, its values, the strictest first.  Those that stand together restrict in
# different ways and none is the stricter: if both are possible, the container is refused.
STRICTEST_FIRST: dict[str, tuple[tuple[object, ...], ...]] = {
    "accept_environment": (("privileged",), ("always",)),
    "unaccepted_requests": (("refuse",), ("ignore",)),
    "accept_volume_mounts": ((False,), (True,)),
    "disable_requirements": ((False,), (True,)),
    "ignore_imex_channels": ((True,), (False,)),
    "ipc_context_mismatch": (("refuse",), ("warn",)),
    "records": ((True,), (False,)),
    # "off" leaves devices closed, and "on" refuses a container that nothing would close them to.
    "device_cgroup": (("on", "off"), ("auto",)),
    # No restriction, either way: what stands outside of such sections holds.
    "cuda_forward_compatibility": (),
}
# A list: what all of them allow.
LISTS = ("allowed_capabilities", "allowed_vendors")


def strictest(
    lines: Iterable[Setting], unmatched: Container[str], decided: dict[str, Setting], values: dict[str, object]
) -> dict[str, object]:
    """The fields that lines of the `unmatched` scopes could set, each with the strictest value.

    decided: the lines that decide, of those that are known to be the container's; values: their result.
    """
    possible: dict[str, dict[tuple[str, str], object]] = {}
    for line in lines:
        known = decided[line.field].scope if line.field in decided else ""
        if line.scope in unmatched and SCOPES.index(line.scope) > SCOPES.index(known):
            # Of two lines for the same containers the later one holds.
            possible.setdefault(line.field, {})[line.scope, line.pattern] = line.value
    found: dict[str, object] = {}
    for field, others in possible.items():
        chosen = _strictest(field, [values[field], *others.values()])
        if len(chosen) > 1:
            found["unmatched_sections"] = "refuse"
        found[field] = chosen[0]
    return found


def _strictest(field: str, values: list[object]) -> list[object]:
    """The strictest of these values, of which the first is certain; several if none is the strictest."""
    if field in LISTS:
        # "all" stands for every vendor; of capabilities it stands for a list of all.
        lists = [value for value in values if isinstance(value, tuple) and value != (ALL,)]
        first = lists[0] if lists else (ALL,)
        return [tuple([word for word in first if all([word in other for other in lists])])]
    for alike in STRICTEST_FIRST[field]:
        found = [value for value in alike if value in values]
        if found:
            return found
    return values[:1]
