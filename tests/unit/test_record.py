# SPDX-License-Identifier: Apache-2.0
"""Our NamedTuple behaves as typing's: the same source, run with either."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from oci_gpu_hook import record

pytestmark = pytest.mark.pythons

SOURCE = '''
from __future__ import annotations
class Point(NamedTuple):
    """A point."""
    x: int
    y: int = 2
    @property
    def total(self) -> int:
        return self.x + self.y
'''


def points() -> list[Any]:
    made = []
    for base in (record.NamedTuple, typing.NamedTuple):
        names: dict[str, Any] = {"NamedTuple": base, "__name__": __name__}
        exec(SOURCE, names)
        made.append(names["Point"])
    return made


@pytest.mark.parametrize("point", points())
def test_a_record_is_as_typings(point: Any) -> None:
    value = point(1)
    assert (value.x, value.y, value.total, point.__doc__) == (1, 2, 3, "A point.")
    assert value == (1, 2) == point(y=2, x=1)
    assert repr(value) == "Point(x=1, y=2)"
    assert (value._asdict(), value._replace(x=5).x, point._fields) == ({"x": 1, "y": 2}, 5, ("x", "y"))
    wrong: list[tuple[Any, Any]] = [((), {}), ((1, 2, 3), {}), ((1,), {"x": 2}), ((1,), {"z": 2})]
    for arguments, named in wrong:
        with pytest.raises(TypeError):
            point(*arguments, **named)
    for name in ("x", "other"):
        with pytest.raises(AttributeError):
            setattr(value, name, 3)
