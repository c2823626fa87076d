# SPDX-License-Identifier: Apache-2.0
"""Root's commands believe root alone: each attack of a user and of a container, and the matrix, under each runtime."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from oci_gpu_hook.errors import plain
from tests.hostile import beliefs, limits, matrix
from tests.hostile.commands import Done
from tests.hostile.conftest import parameters, played
from tests.hostile.scene import Kit

ATTACKS = {**beliefs.ATTACKS, **limits.ATTACKS}
# The rest has no container of root's in it.
OF_CONTAINERS = ("anothers-", "node-", "many-links", "many-names", "many-processes")
CASES = [("runc", name) for name in (*ATTACKS, *matrix.ATTACKS)]
CASES += [("crun", name) for name in ATTACKS if name.startswith(OF_CONTAINERS)]
CASES += [("crun", name) for name in matrix.ATTACKS if name.startswith(matrix.OF_CONTAINERS)]

Results = dict[str, "Future[dict[str, list[str]]]"]


def play(kit: Kit, runtime: str, names: list[str]) -> dict[str, list[str]]:
    before = "oci-gpu-hook inventory refresh >/dev/null 2>&1 || :"
    if matrix.IS_WHOLE:
        before += "; export HOSTILE_MATRIX=all"
    return dict(played("commands", kit, runtime, *names, before=before, timeout=2400))


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, kit: Kit) -> Iterator[Results]:
    names: dict[str, list[str]] = {}
    for _, its in parameters(request, "belief"):
        names.setdefault(its["runtime"], []).append(its["belief"])
    with ThreadPoolExecutor(1) as pool:
        yield {key: pool.submit(play, kit, key, wanted) for key, wanted in names.items()}


@pytest.mark.parametrize(("runtime", "belief"), CASES)
def test_root_believes_nobody(results: Results, runtime: str, belief: str) -> None:
    wrong = results[runtime].result()[belief]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@pytest.mark.parametrize("kind", ["shell", "escapes"])
def test_what_must_not_be_pasted_is_noticed(kind: str) -> None:
    """A text of others' as a word that is not quoted, a control character, and a line that it begins."""
    text = matrix.TEXTS[kind]
    raw = f"fail  x  y\n{matrix.REMEDY}podman restart {text}\n"
    assert matrix.printed(Done(1, raw, "", 0, 0), False)
    quoted = f"fail  x  y\n{matrix.REMEDY}podman restart {shlex.quote(plain(text))}\n"
    assert matrix.printed(Done(1, quoted, "", 0, 0), False) == []
