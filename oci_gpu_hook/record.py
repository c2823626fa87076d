# SPDX-License-Identifier: Apache-2.0
"""typing.NamedTuple without importing typing: the one way in which this package writes a value.

Type checkers see the real thing.  At run time we do the same work, because ``typing`` costs a
third of the interpreter's own start and NamedTuple compiles source text for every class, at every container start.

Must not grow: no validation, no conversion, no inheritance between records.
As with every named tuple, two records of different classes with equal fields compare equal.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    try:
        from _collections import _tuplegetter
    except ImportError:
        # What it does, only slower, where a later Python has none.
        def _tuplegetter(index, doc):
            return property(lambda self: self[index])

    # A getter knows its index and nothing of its class, so all classes share them.
    _GETTERS = [_tuplegetter(index, "") for index in range(24)]

    def make_record(name, fields, defaults, others=()):
        """A record class from its parts: what packaging/link.py writes for a class that is nothing but fields.

        Right below tuple: of every class on the way there, each name that a type may define is asked for.
        """
        if len(fields) > len(_GETTERS):
            raise TypeError(f"{name} has more than {len(_GETTERS)} fields")
        namespace = {**_METHODS, **dict(zip(fields, _GETTERS)), **dict(others)}
        namespace["_fields"] = namespace["__match_args__"] = fields
        namespace["_field_defaults"] = defaults
        namespace["__slots__"] = ()
        return type(name, (tuple,), namespace)

    # A record from its class and all of its values in their order, as packaging/link.py writes it.
    new_record = tuple.__new__

    def _new(cls, *values, **named):
        if named or len(values) != len(cls._fields):
            values = _completed(cls, values, named)
        return tuple.__new__(cls, values)

    def _completed(cls, values, named):
        """The full row of values, from positions, names and defaults; TypeError as a call would raise it."""
        missing = cls._fields[len(values) :]
        known = {**cls._field_defaults, **named}
        if len(values) > len(cls._fields) or not set(named) <= set(missing):
            raise TypeError(f"{cls.__name__}() takes the fields {cls._fields}")
        try:
            return values + tuple([known[field] for field in missing])
        except KeyError as err:
            raise TypeError(f"{cls.__name__}() needs the field {err}") from None

    def _replaced(self, **changes):
        values = list(map(changes.pop, self._fields, self))
        if changes:
            raise TypeError(f"{type(self).__name__}() has no field {list(changes)}")
        return tuple.__new__(type(self), values)

    def _written(self):
        pairs = ", ".join([f"{field}={value!r}" for field, value in zip(self._fields, self)])
        return f"{type(self).__name__}({pairs})"

    def _plain(self):
        return tuple(self)

    def _by_name(self):
        return dict(zip(self._fields, self))

    _METHODS = {
        "__new__": _new,
        "__repr__": _written,
        "__getnewargs__": _plain,
        # As in typing.NamedTuple: no look at the number of values.
        "_make": classmethod(tuple.__new__),
        "_replace": _replaced,
        "_asdict": _by_name,
    }

    class _RecordType(type):
        """Turns the annotations of a class body into tuple fields.

        The body's module needs ``from __future__ import annotations``: only then does every Python from 3.9 on
        put ``__annotations__`` into the namespace without evaluating anything.
        """

        def __new__(mcs, name, bases, namespace):
            if not bases:
                return type.__new__(mcs, name, bases, namespace)
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace.pop(field) for field in fields if field in namespace}
            return make_record(name, fields, defaults, namespace)

    class NamedTuple(metaclass=_RecordType):
        """What the class of a record is written below; see ``typing.NamedTuple``."""
