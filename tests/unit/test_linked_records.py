# SPDX-License-Identifier: Apache-2.0
"""What the linker makes of records: the same classes and the same values, and what is wrong is left to the class."""

from __future__ import annotations

import marshal
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oci_gpu_hook import record

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, HOME = "oci_gpu_hook", "oci_gpu_hook.record"
LINKER = runpy.run_path(str(ROOT / "packaging/link.py"))

FIRST = '''
"""A room with records."""
from oci_gpu_hook.record import NamedTuple

class Plain(NamedTuple):
    """Nothing but fields."""

    one: int
    two: str = "zwei"
    three: tuple[int, ...] = (1, 2)

class Same(NamedTuple):
    one: int

class WithMethod(NamedTuple):
    one: int

    def double(self) -> int:
        return self.one * 2

class Late(NamedTuple):
    left: int
    right: int = 7

class Other:
    def __init__(self, one: int) -> None:
        self.one = one

class NoRecord:
    one: int = 1

_TWELVE = 12

class ByName(NamedTuple):
    one: int
    two: int = _TWELVE
'''
SECOND = '''
"""A room that makes them."""
from oci_gpu_hook import first
from oci_gpu_hook.first import ByName, Late, Other, Plain, WithMethod
from oci_gpu_hook.record import NamedTuple

class Same(NamedTuple):
    two: int
    one: int

def call():
    return CALL
'''


class Rooms:
    """The two rooms, linked and run; CALL stands in a function of the second."""

    def __init__(self, folder: Path, call: str = "None", late: str = "") -> None:
        self._folder = folder / PACKAGE
        self._folder.mkdir()
        (self._folder / "__init__.py").write_text("")
        (self._folder / "first.py").write_text(FIRST)
        (self._folder / "second.py").write_text(SECOND.replace("CALL", call))
        names = {f"{PACKAGE}.first": late.split()} if late else {}
        self._linker = LINKER["_Linker"](str(folder), "/library", names)
        self._modules = {PACKAGE: ModuleType(PACKAGE), HOME: record}
        self.first, self.second = self._load("first"), self._load("second")

    def _load(self, room: str) -> ModuleType:
        """As oci_gpu_hook.linked has it, but that what is late is made at once."""
        name = f"{PACKAGE}.{room}"
        *_, imports, (_, place), code = self._linker.room(name, [*self._modules])
        module = self._modules[name] = ModuleType(name)
        space = vars(module)
        space[name] = module
        for source, words in imports:
            space[source] = self._modules[source]
            space.update({word: vars(self._modules[source])[word] for word in words})
        exec(code, space)
        if place[1]:
            begin = place[0] - LINKER["HEAD"]
            exec(marshal.loads(self._linker.made_late[begin : begin + place[1]]), space)
        vars(self._modules[PACKAGE])[room] = module
        return module


def plain(call: str = "None") -> dict[str, Any]:
    """The second room as it is without the linker, and what it imports of the first."""
    first, second = ModuleType("first"), ModuleType("second")
    exec(compile("from __future__ import annotations\n" + FIRST, "first", "exec"), vars(first))
    vars(second).update(vars(first), first=first)
    own = SECOND.replace("CALL", call).replace("from oci_gpu_hook", "# from oci_gpu_hook")
    exec(compile("from __future__ import annotations\n" + own, "second", "exec"), vars(second))
    return vars(second)


def said(call: Any) -> tuple[str, str]:
    """What comes of a call: the value and its fields, or what is wrong."""
    try:
        value = call()
        return repr(value), str(getattr(value, "_asdict", dict)())
    except (TypeError, NameError) as err:
        return type(err).__name__, str(err)


# Each is written as one tuple, and is the same.
REWRITTEN = (
    "Plain(1)",
    "Plain(1, 'two')",
    "Plain(1, 'two', ())",
    "Plain(three=(), one=1)",
    "Plain(two='two', three=(3,), one=[Plain(2), Plain(one=3)])",
    "Late(1)",
    "Late(right=1, left=2)",
    "Same(1, 2)",
    "Same(one=1, two=2)",
    "first.Same(1)",
    "first.Plain(1, three=())",
    "ByName(1, 2)",
)
# Each is left to the class, which does it or has the words for what is wrong.
LEFT = (
    "Plain()",
    "Plain(two='two')",
    "Plain(1, 'two', (), 4)",
    "Plain(1, 2, 3, 4, one=5)",
    "Plain(1, four=4)",
    "Plain(1, one=2)",
    "Plain(1, 'two', one=2)",
    "Plain(1, 'two', (), one=2)",
    "Plain(*[1, 'two'])",
    "Plain(1, **{'two': 'two'})",
    "Plain(**{})",
    "Same(1)",
    "first.Same(1, 2)",
    "first.Same(two=1)",
    "WithMethod(4)",
    "WithMethod(4).double()",
    "Other(4).one",
    "ByName(1)",
    "ByName(one=1)",
    "Plain._make([1, 2, 3])",
)


@pytest.mark.parametrize("late", ["", "Late", "Plain Late", "Same ByName"])
@pytest.mark.parametrize("call", REWRITTEN)
def test_a_call_with_all_values_is_one_tuple(tmp_path: Path, call: str, late: str) -> None:
    made = Rooms(tmp_path, call, late).second.call
    assert "new_record" in made.__code__.co_names
    assert said(made) == said(plain(call)["call"])
    assert "Error" not in said(made)[0]


@pytest.mark.parametrize("call", LEFT)
def test_any_other_call_is_left_to_the_class(tmp_path: Path, call: str) -> None:
    made = Rooms(tmp_path, call).second.call
    assert "new_record" not in made.__code__.co_names
    assert said(made) == said(plain(call)["call"])


def test_a_class_that_is_nothing_but_fields_is_made_by_one_call(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path, late="Late")
    made = {kind for kind in ("Plain", "Same", "Late", "ByName") if hasattr(rooms.first, kind)}
    assert made == {"Plain", "Same", "Late", "ByName"}
    assert type(rooms.first.NoRecord) is type
    # One that comes by the class statement has its annotations.
    by_statement = [
        kind for kind in vars(rooms.first).values() if "__annotations__" in vars_of(kind)
    ]
    assert [kind.__name__ for kind in by_statement] == ["WithMethod", "NoRecord"]


def vars_of(kind: object) -> dict[str, Any]:
    return dict(vars(kind)) if isinstance(kind, type) and kind is not record.NamedTuple else {}


@pytest.mark.parametrize("kind", ["Plain", "Same", "Late", "ByName", "WithMethod"])
def test_a_linked_record_behaves_as_the_plain_one(tmp_path: Path, kind: str) -> None:
    ours, theirs = getattr(Rooms(tmp_path).first, kind), getattr(plain()["first"], kind)
    assert (ours.__name__, ours._fields) == (theirs.__name__, theirs._fields)
    assert ours._field_defaults == theirs._field_defaults
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__slots__ == ()
    assert ours.__mro__ == theirs.__mro__ or ours.__mro__[1:] == (tuple, object)
    one, other = ours(1), theirs(1)
    assert one == other
    assert hash(one) == hash(other)
    assert (repr(one), one._asdict()) == (repr(other), other._asdict())
    changes = {ours._fields[0]: 5}
    changed = one._replace(**changes)
    assert (repr(changed), type(changed)) == (repr(other._replace(**changes)), ours)
    assert [getattr(changed, field) for field in ours._fields] == list(changed)
    assert ours._make(changed) == changed
    assert said(ours) == said(theirs)
    assert said(lambda: one._replace(nothing=1)) == said(lambda: other._replace(nothing=1))
    with pytest.raises(AttributeError):
        setattr(one, ours._fields[0], 2)


def test_two_records_of_one_name_are_two() -> None:
    linker = LINKER["_Linker"](str(ROOT), "/library", {})
    before = [PACKAGE, HOME]
    for room in ("mountinfo", "operations"):
        linker.room(f"{PACKAGE}.{room}", before)
    mounts = [linker._records[f"{PACKAGE}.{room}"]["Mount"] for room in ("mountinfo", "operations")]
    assert list(mounts[0]) != list(mounts[1])
    assert "folder" in mounts[1]
