# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_REQUIRE_*: what an image needs of the driver and the GPU, parsed and evaluated.  Pure.

An expression is alternatives, separated by spaces; an alternative is conditions, separated by commas, all of which
must hold: ``cuda>=12.4 brand=tesla,driver>=535,driver<536``.  All expressions must hold.  Must not know where a fact
comes from; a fact that nobody knows fulfils nothing.
"""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.record import NamedTuple

_AUTHOR = "the image's author must mend it, or the container set NVIDIA_DISABLE_REQUIRE=1"
# Longer ones first: "<=" starts with "<".
_OPERATORS = ("!=", "<=", ">=", "=", "<", ">")
_PROPERTIES = ("cuda", "driver", "arch", "brand")
_DECIMAL = frozenset("0123456789")
_MOST_DIGITS = 9
# CUDA's images list an alternative for each brand and branch of the driver, some sixty; no image needs more than these.
_MOST_TOLD = 100


class HostFacts(NamedTuple):
    """What requirements can ask about.  "" is unknown.

    gpus: compute capability (``9.0``) and brand of each selected GPU, MIG devices' parents included.
    """

    driver: str
    cuda: str
    gpus: tuple[tuple[str, str], ...]


class Condition(NamedTuple):
    """``cuda>=12.4``: one of `_PROPERTIES`, one of `_OPERATORS`, and a version or, for brand, a word."""

    property: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.property}{self.operator}{self.value}"


def check(expressions: tuple[str, ...], facts: HostFacts) -> None:
    """RequestError where an expression is malformed, or a GPU is there for which none of its alternatives holds.

    Each GPU by itself: of two brands, one may meet another alternative than the other.
    """
    each = [facts._replace(gpus=(gpu,)) for gpu in dict.fromkeys(facts.gpus)] or [facts]
    for expression in expressions:
        alternatives = parse(expression)
        failing = [one for one in each if not _is_met(alternatives, one)]
        if failing:
            gpus = tuple([gpu for one in failing for gpu in one.gpus])
            raise _unmet(alternatives, facts._replace(gpus=gpus))


def parse(expression: str) -> tuple[tuple[Condition, ...], ...]:
    """Alternatives, each with its conditions; empty ones are dropped."""
    alternatives = [
        tuple([_condition(factor) for factor in term.split(",") if factor])
        for term in expression.split()
    ]
    return tuple([conditions for conditions in alternatives if conditions])


def _condition(factor: str) -> Condition:
    for operator in _OPERATORS:
        name, found, value = factor.partition(operator)
        if not found or name not in _PROPERTIES:
            continue
        if name != "brand":
            _version(value, factor)
        elif operator not in ("=", "!=") or not value:
            break
        return Condition(name, operator, value)
    raise RequestError(f"{quoted(factor)} is no requirement that can be checked", _AUTHOR)


def _version(text: str, factor: str) -> tuple[int, ...]:
    """Numbers of a dotted version, without zeros at its end: 12.0 is 12."""
    parts = text.split(".")
    if not all(
        [part and len(part) <= _MOST_DIGITS and _DECIMAL.issuperset(part) for part in parts]
    ):
        raise RequestError(f"{quoted(text)} in {quoted(factor)} is no version", _AUTHOR)
    numbers = [int(part) for part in parts]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _is_met(alternatives: tuple[tuple[Condition, ...], ...], facts: HostFacts) -> bool:
    return not alternatives or any([_holds(conditions, facts) for conditions in alternatives])


def _holds(conditions: tuple[Condition, ...], facts: HostFacts) -> bool:
    return all(
        [
            have and _compares(condition, have)
            for condition in conditions
            for have in _haves(condition.property, facts)
        ]
    )


def _haves(name: str, facts: HostFacts) -> list[str]:
    """What the host has of a property: of each GPU where it is a GPU's, so without a GPU nothing is asked of one."""
    if name == "cuda":
        return [facts.cuda]
    if name == "driver":
        return [facts.driver]
    return [gpu[0 if name == "arch" else 1] for gpu in facts.gpus]


def _compares(condition: Condition, have: str) -> bool:
    operator = condition.operator
    if condition.property == "brand":
        return (have.lower() == condition.value.lower()) == (operator == "=")
    left, right = _version(have, have), _version(condition.value, str(condition))
    return {
        "=": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]


def _unmet(alternatives: tuple[tuple[Condition, ...], ...], facts: HostFacts) -> RequestError:
    """What was required, each alternative of it, and what the host has of what failed."""
    required = [
        quoted(",".join([str(condition) for condition in conditions]))
        for conditions in alternatives
    ]
    # Each once: images repeat a branch for each brand, and the host has one driver.
    required = list(dict.fromkeys(required))
    told = required[:_MOST_TOLD]
    if len(required) > len(told):
        told.append(f"{len(required) - len(told)} more")
    failing = dict.fromkeys(
        [
            (condition.property, have)
            for conditions in alternatives
            for condition in conditions
            for have in _haves(condition.property, facts)
            if not have or not _compares(condition, have)
        ]
    )
    here = ", ".join([f"{name} is {have or 'unknown'}" for name, have in failing])
    sentence = f"the image requires {' or '.join(told)} (here {here})"
    if any([not have for _, have in failing]):
        return RequestError(
            sentence, "what is unknown, 'oci-gpu-hook inventory refresh' may find out"
        )
    return RequestError(sentence, "use an image for this driver, or have the driver updated")
