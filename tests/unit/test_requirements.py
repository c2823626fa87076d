# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_REQUIRE_*: the grammar, the comparisons, and the sentence that says what is missing."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.planning import requirements
from oci_gpu_hook.request.settings import Settings
from tests.unit.asking import env, request_of
from tests.unit.bounded import is_linear

TESLA = ("8.0", "Tesla")
HOPPER = ("9.0", "Nvidia")


class Facts(NamedTuple):
    """What is known of the host."""

    driver: str
    cuda: str
    gpus: tuple[tuple[str, str], ...]


FACTS = Facts("550.54.15", "12.4", (TESLA,))


def refusal(facts: Facts, *expressions: str) -> RequestError | None:
    try:
        requirements.check(expressions, *facts)
    except RequestError as err:
        return err
    return None


def holds(expression: str, facts: Facts = FACTS) -> bool:
    """Whether it is met; a malformed one is a test's own fault."""
    found = refusal(facts, expression)
    assert found is None or "the image requires" in found.message, found
    return found is None


def refused(expression: str) -> str:
    """The sentence about an expression that does not hold or is malformed."""
    found = refusal(FACTS, expression)
    assert found is not None, f"{expression!r} was accepted"
    return str(found)


@pytest.mark.parametrize(
    ("operator", "less", "same", "more"),
    [("=", 0, 1, 0), ("!=", 1, 0, 1), ("<", 0, 0, 1), ("<=", 0, 1, 1), (">", 1, 0, 0), (">=", 1, 1, 0)],
)
@pytest.mark.parametrize(
    ("name", "below", "at", "above"),
    [("cuda", "12.3", "12.4", "12.10"), ("driver", "550.54", "550.54.15", "550.100"), ("arch", "7.5", "8.0", "8.6")],
)
def test_every_comparison_of_versions(
    name: str, below: str, at: str, above: str, operator: str, less: int, same: int, more: int
) -> None:
    values = (below, at, above)
    assert [holds(f"{name}{operator}{value}") for value in values] == [less, same, more]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # Zeros at the end and in front are none, and brands are compared without case.
        *[(f"cuda={value}", True) for value in ("12.4.0", "012.4.0.0", "12.04")],
        *[(f"cuda!={value}", False) for value in ("12.4.0", "012.4.0.0", "12.04")],
        *[(f"brand={value}", True) for value in ("tesla", "TESLA")],
        *[(f"brand!={value}", False) for value in ("tesla", "TESLA")],
        *[("brand=teslax", False), ("brand!=teslax", True)],
        # Spaces are "or", commas are "and".
        ("cuda>=99 cuda>=12", True),
        ("cuda>=12 cuda>=99", True),
        ("cuda>=98 cuda>=99", False),
        ("cuda>=12,driver>=550", True),
        ("cuda>=12,driver>=999", False),
        ("cuda>=99,driver>=550 brand=tesla,arch=9", False),
        # A space is an "or" also where its writer meant none.
        ("cuda>=12, driver>=999", True),
        # Empty alternatives and conditions are dropped.
        *[(expression, True) for expression in ("", " ", " , ,, ")],
        (" ,, cuda>=99,,driver>=1, , ", False),
    ],
)
def test_what_an_expression_means(expression: str, expected: bool) -> None:
    assert holds(expression) is expected


def test_all_expressions_must_hold() -> None:
    assert refusal(FACTS, "cuda>=12", "driver>=550") is None
    assert "'driver>=999'" in str(refusal(FACTS, "cuda>=12", "driver>=999"))
    assert "requires 'cuda>=99' (here cuda is 12.4)" in str(refusal(FACTS, "cuda>=99", "driver>=550"))


@pytest.mark.parametrize("value", ["12..4", ".4", "12.", "12.4-1", "v12", "+1", "1_0", "12.٤", "1" * 10])  # fmt: skip
@pytest.mark.parametrize("name", ["cuda", "driver", "arch"])
def test_what_is_no_version_is_refused(name: str, value: str) -> None:
    sentence = refused(f"{name}>={value}")
    assert "is not a version" in sentence
    assert len(sentence) < 700


@pytest.mark.parametrize(
    "factor",
    ["cuda", "cuda12", "=12", ">=", "CUDA>=12", "cuda>=", "cuda==12", "cuda=>12", "cuda<>12", "cuda~12", "memory>=80",
     "cudaversion>=12", "brand=", "brand!=", "brand<=", "brand>tesla", "cudа>=12", "cuda>=12;driver>=1", "cuda>=12\x00",
     "\x1b[2J",
     "\udcff>=1", "!", "cuda>=1>=2", "x" * 1_000, "cuda>=1 memory", "cuda>=1 cuda>=12..4"])  # fmt: skip
def test_what_cannot_be_checked_is_refused_by_name(factor: str) -> None:
    sentence = refused(factor)
    assert "is not a requirement that can be checked" in sentence or "is not a version" in sentence
    assert "the image's author must fix it" in sentence
    assert sentence.isascii() and sentence.isprintable()
    assert len(sentence) < 700


def test_each_gpu_must_meet_an_alternative_and_may_meet_one_of_its_own() -> None:
    """As NVIDIA's stack evaluates them: CUDA's images have an alternative for each brand."""
    both = FACTS._replace(gpus=(TESLA, HOPPER))
    assert holds("arch>=8", both)
    assert not holds("arch>=9", both)
    assert not holds("brand=nvidia", both)
    assert holds("brand=tesla brand=nvidia", both)
    assert holds("cuda>=99 brand=tesla,driver>=1 arch>=9,driver>=1", both)
    assert not holds("brand=tesla,driver>=1 brand=nvidia,driver>=999", both)
    # The sentence is about the GPU that fails.
    sentence = str(refusal(both, "brand=tesla"))
    assert f"brand is {HOPPER[1]}" in sentence and f"brand is {TESLA[1]}" not in sentence


@pytest.mark.parametrize("name", ["cuda", "driver", "arch"])
def test_a_fact_that_nobody_knows_fulfils_nothing(name: str) -> None:
    unknown = Facts("", "", (("", ""),))
    for operator in ("=", "!=", "<", "<=", ">", ">="):
        found = refusal(unknown, f"{name}{operator}1")
        assert found is not None
        assert f"(here {name} is unknown)" in found.message
        assert "inventory refresh" in found.hint


@pytest.mark.parametrize("expression", ["brand=tesla", "brand!=tesla", "brand=unknown"])
def test_a_brand_that_nobody_has_asked_for_is_no_brand(expression: str) -> None:
    assert not holds(expression, Facts("550.54.15", "12.4", (("8.0", ""),)))
    # NVML's own word for a brand that it does not know, which images name on purpose.
    assert holds("brand=unknown", Facts("550.54.15", "12.4", (("8.0", "Unknown"),)))


def test_a_huge_list_is_shown_in_part() -> None:
    found = refusal(FACTS, " ".join([f"cuda>={number}" for number in range(100, 10_100)]))
    assert "'cuda>=199' or 9900 more (here cuda is 12.4)" in str(found)
    assert len(str(refusal(FACTS, " ".join(["cuda>=99"] * 10_000)))) < 200


@pytest.mark.parametrize("separator", [" ", ","])
def test_time_grows_with_the_expression_and_no_faster(separator: str) -> None:
    def unmet(entries: int) -> None:
        factors = [f"driver>={number}" for number in range(600, 600 + entries)]
        assert refusal(FACTS, separator.join(factors)) is not None

    assert is_linear(unmet)


def required(environment: dict[str, str], settings: Settings = Settings()) -> tuple[str, ...]:  # noqa: B008  read only
    """The requirements of a container that asks for a GPU."""
    return request_of(env(**environment), settings).requirements


def test_every_variable_with_the_prefix_counts() -> None:
    environment = {
        "NVIDIA_REQUIRE_CUDA": "cuda>=12",
        "NVIDIA_REQUIRE_": "driver>=1",
        "NVIDIA_REQUIRE_ANY WORD": "arch>=8",
        "NVIDIA_REQUIRE_BLANK": "  ",
        "nvidia_require_cuda": "cuda>=99",
        "XNVIDIA_REQUIRE_CUDA": "cuda>=99",
        "NVIDIA_REQUIRE": "cuda>=99",
    }
    assert required(environment) == ("cuda>=12", "driver>=1", "arch>=8")


@pytest.mark.parametrize(
    ("value", "is_off"),
    [
        *dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True).items(),
        *dict.fromkeys(("", "0", "tRUE", "yes", " 1"), False).items(),
    ],
)
def test_requirements_are_off_where_the_container_says_so(value: str, is_off: bool) -> None:
    found = required({"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": value})
    assert found == (() if is_off else ("cuda>=99",))


@pytest.mark.parametrize(
    ("version", "expected"),
    [("12.4", "cuda>=12.4"), ("12", "cuda>=12.0"), (" 9.0.176 ", "cuda>=9.0"), ("010.01", "cuda>=10.1")]
    + [("11.0.3-1", "cuda>=11.0")],
)
def test_a_legacy_image_requires_its_own_cuda(version: str, expected: str) -> None:
    assert required({"CUDA_VERSION": version}) == (expected,)
    assert required({"CUDA_VERSION": version, "NVIDIA_REQUIRE_CUDA": ""}) == (expected,)
    requirements.check((expected,), "", "999.0", ())


BAD_VERSIONS = ["ten", "12.", ".4", " ", "-1.0", "12.x", "١٢.٤", "12\x00.4", "9" * 5_000]


@pytest.mark.parametrize("version", BAD_VERSIONS, ids=lambda text: ascii(text)[:20])
def test_a_legacy_image_with_no_version_is_refused(version: str) -> None:
    with pytest.raises(RequestError, match=r"CUDA_VERSION is .* which is not a version") as caught:
        required({"CUDA_VERSION": version})
    assert len(str(caught.value)) < 400
    # One that names its requirement is none.
    assert required({"CUDA_VERSION": version, "NVIDIA_REQUIRE_CUDA": "cuda>=9"}) == ("cuda>=9",)


def test_where_requirements_are_off_none_is_read() -> None:
    for environment in ({"CUDA_VERSION": "ten"}, {"NVIDIA_REQUIRE_X": "nonsense"}):
        assert required({**environment, "NVIDIA_DISABLE_REQUIRE": "1"}) == ()
        assert required(environment, Settings(disable_requirements=True)) == ()
    assert required({"CUDA_VERSION": ""}) == (), "an empty version is none"
