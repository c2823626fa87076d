# SPDX-License-Identifier: Apache-2.0
"""Every attack on our hook: nothing of the host changes.  And on the naive one: the attack is real, and is seen."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.hostile.conftest import parameters, played
from tests.hostile.play import BY_NAME
from tests.hostile.scene import BOTH, Attack, Kit, Outcome, shown

Lane = tuple[str, str, str]  # runtime, cgroup, injector
Results = dict[Lane, "Future[dict[str, list[Outcome]]]"]
FEWEST_EXCHANGES = 100_000

CASES = [(runtime, name) for name, it in BY_NAME.items() for runtime in it.runtimes]
NAIVE = [(runtime, name) for name, it in BY_NAME.items() for runtime in it.bites]


def lane(runtime: str, attack: Attack, injector: str) -> Lane:
    return runtime, attack.cgroup, injector


def play(kit: Kit, lane: Lane, names: list[str]) -> dict[str, list[Outcome]]:
    runtime, cgroup, injector = lane
    found: dict[str, list[Outcome]] = {}
    for name, *words in played("play", kit, runtime, injector, *names, cgroup=cgroup):
        found.setdefault(name, []).append(Outcome(*words))
    return found


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, kit: Kit) -> Iterator[Results]:
    """What came of all attacks that were selected: two lanes at a time, as one waits for a start half of its time."""
    names: dict[Lane, list[str]] = {}
    for test, its in parameters(request, "attack"):
        key = lane(its["runtime"], BY_NAME[its["attack"]], "naive" if "naive" in test else "ours")
        names.setdefault(key, []).append(its["attack"])
    with ThreadPoolExecutor(2) as pool:
        yield {key: pool.submit(play, kit, key, wanted) for key, wanted in names.items()}


@pytest.mark.parametrize(("runtime", "attack"), CASES)
def test_nothing_gets_out(results: Results, runtime: str, attack: str) -> None:
    it = BY_NAME[attack]
    for outcome in results[lane(runtime, it, "ours")].result()[attack]:
        wrong = faults(it, outcome)
        if wrong:
            pytest.fail(f"{wrong}\n{shown(outcome)}", pytrace=False)


def faults(attack: Attack, outcome: Outcome) -> list[str]:
    wrong = [*outcome.escapes, *[f"left in the root: {line}" for line in outcome.left]]
    if "Traceback" in outcome.said or "internal error" in outcome.said:
        wrong.append("our bug")
    if attack.says not in outcome.said:
        wrong.append(f"does not say {attack.says!r}")
    if attack.codes and outcome.code not in attack.codes:
        wrong.append(f"exit {outcome.code}, not one of {attack.codes}")
    # Where the hook was content the container has run.
    if not outcome.code and "started" not in outcome.out:
        wrong.append("the container has not run")
    return wrong[:8]


@pytest.mark.parametrize(("runtime", "attack"), NAIVE)
def test_the_naive_one_is_caught(results: Results, runtime: str, attack: str) -> None:
    it = BY_NAME[attack]
    starts = results[lane(runtime, it, "naive")].result()[attack]
    if not starts[-1].escapes:
        pytest.fail(shown(starts[-1]), pytrace=False)


@pytest.mark.parametrize("runtime", BOTH)
def test_there_were_exchanges(results: Results, runtime: str) -> None:
    """On our own hook, while containers started."""
    if (runtime, "v2", "ours") not in results:
        pytest.skip("no race was selected")
    found = results[runtime, "v2", "ours"].result()
    races = [it for name, starts in found.items() if name.startswith("race-") for it in starts]
    count = sum(it.exchanges for it in races)
    print(f"{runtime}: {count} exchanges in {len(races)} starts")
    assert not races or count >= FEWEST_EXCHANGES
