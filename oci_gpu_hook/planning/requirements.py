# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_REQUIRE_*: what an image needs of the driver and the GPU, parsed and evaluated.  Pure.

An expression is alternatives, separated by spaces; an alternative is conditions, separated by commas, all of which
must hold: ``cuda>=12.4 brand=tesla,driver>=535,driver<536``.  An unknown fact meets no condition.
"""

from __future__ import annotations

from oci_gpu_hook.errors import LONGEST_LIST, RequestError, quoted
from oci_gpu_hook.formats.decimal import decimals

# ``cuda>=12.4``: one of `_PROPERTIES`, one of `_OPERATORS`, and a version or, for brand, a word.
Condition = tuple[str, str, str]
# The host's value of each property; of GPUs it has none if there is no GPU.
Facts = dict[str, str]
_UNKNOWN = "what is unknown, 'oci-gpu-hook inventory refresh' may find out"
_AUTHOR = "the image's author must fix it, or the container set NVIDIA_DISABLE_REQUIRE=1"
# Each with the comparisons that meet it: -1 is less, 0 equal, 1 more.  Longer ones first: "<=" starts with "<".
_OPERATORS = {"!=": (-1, 1), "<=": (-1, 0), ">=": (0, 1), "=": (0,), "<": (-1,), ">": (1,)}
_PROPERTIES = ("cuda", "driver", "arch", "brand")
# For an error.  CUDA's images list an alternative for each brand and branch of the driver, some sixty.
_MAX_SHOWN = 100


def check(expressions: tuple[str, ...], driver: str, cuda: str, gpus: tuple[tuple[str, str], ...]) -> None:
    """RequestError if an expression is malformed, or no alternative holds for one of the GPUs: two may meet two.
    "" is unknown.  gpus: compute capability (``9.0``) and brand of each.
    """
    host = {"cuda": cuda, "driver": driver}
    each = [{**host, "arch": arch, "brand": brand} for arch, brand in dict.fromkeys(gpus)] or [host]
    for alternatives in map(parse_requirement, expressions):
        failing = [facts for facts in each if not any([_is_met(it, facts) for it in alternatives])]
        if failing and alternatives:
            raise _unmet(alternatives, failing)


def parse_requirement(expression: str) -> tuple[tuple[Condition, ...], ...]:
    alternatives = [tuple([_condition(factor) for factor in term.split(",") if factor]) for term in expression.split()]
    return tuple([conditions for conditions in alternatives if conditions])


def _condition(factor: str) -> Condition:
    for operator in _OPERATORS:
        name, found, value = factor.partition(operator)
        if name == "brand" and found and (operator not in ("=", "!=") or not value):
            break
        if found and name in _PROPERTIES:
            if name != "brand":
                _version(value, factor)
            return name, operator, value
    raise RequestError(f"{quoted(factor)} is not a requirement that can be checked", _AUTHOR)


def _version(text: str, factor: str) -> tuple[int, ...]:
    """Numbers of a dotted version, without zeros at its end: 12.0 is 12."""
    numbers = [*decimals(text)]
    if not numbers:
        raise RequestError(f"{quoted(text)} in {quoted(factor)} is not a version", _AUTHOR)
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _is_met(conditions: tuple[Condition, ...], facts: Facts) -> bool:
    return all([_compares(one, facts[one[0]]) for one in conditions if one[0] in facts])


def _compares(condition: Condition, value: str) -> bool:
    name, operator, required = condition
    if not value:
        return False
    if name == "brand":
        return (value.lower() == required.lower()) == (operator == "=")
    left, right = _version(value, value), _version(required, "".join(condition))
    return (left > right) - (left < right) in _OPERATORS[operator]


def _unmet(alternatives: tuple[tuple[Condition, ...], ...], each: list[Facts]) -> RequestError:
    # Each once: images repeat a branch for each brand, and the host has one driver.
    required = [*dict.fromkeys([quoted(",".join(map("".join, alternative))) for alternative in alternatives])]
    if len(required) > _MAX_SHOWN:
        required[_MAX_SHOWN:] = [f"{len(required) - _MAX_SHOWN} more"]
    compared = [(one, facts[one[0]]) for it in alternatives for one in it for facts in each if one[0] in facts]
    failing = dict.fromkeys([(one[0], value) for one, value in compared if not _compares(one, value)])
    here = ", ".join([f"{name} is {value or 'unknown'}" for name, value in failing])
    is_known = all([value for _, value in failing])
    hint = "use an image for this driver, or have the driver updated" if is_known else _UNKNOWN
    return RequestError(f"the image requires {' or '.join(required)} (here {here})", hint, most=LONGEST_LIST)
