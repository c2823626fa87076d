# SPDX-License-Identifier: Apache-2.0
"""typing.NamedTuple without importing typing: the one way in which this package writes a value.

Type checkers see the real thing.  At run time a small metaclass does the same work, because ``typing`` costs a
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

    class _RecordType(type):
        """Turns the annotations of a class body into tuple fields.

        The body's module needs ``from __future__ import annotations``: only then does every Python from 3.9 on
        put ``__annotations__`` into the namespace without evaluating anything.
        """

        def __new__(mcs, name, bases, namespace):
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace.pop(field) for field in fields if field in namespace}
            return make_record(name, fields, defaults, bases, namespace)

    def make_record(name, fields, defaults, bases=None, namespace=None):
        """A record class from its parts: what packaging/link.py writes for a class that is nothing but fields."""
        if len(fields) > len(_GETTERS):
            raise TypeError(f"{name} has more than {len(_GETTERS)} fields")
        getters = dict(zip(fields, _GETTERS))
        namespace = {**namespace, **getters} if namespace else getters
        namespace["_fields"] = namespace["__match_args__"] = fields
        namespace["_field_defaults"] = defaults
        namespace["__slots__"] = ()
        return type.__new__(_RecordType, name, bases or (NamedTuple,), namespace)

    # A record from its class and all of its values in their order, as packaging/link.py writes it.
    new_record = tuple.__new__

    class NamedTuple(tuple, metaclass=_RecordType):
        """A tuple whose items have names; see ``typing.NamedTuple``."""

        def __new__(cls, *values, **named):
            if named or len(values) != len(cls._fields):
                values = cls._complete(values, named)
            return tuple.__new__(cls, values)

        @classmethod
        def _complete(cls, values, named):
            """The full row of values, from positions, names and defaults; TypeError as a call would raise it."""
            missing = cls._fields[len(values) :]
            known = {**cls._field_defaults, **named}
            if len(values) > len(cls._fields) or not set(named) <= set(missing):
                raise TypeError(f"{cls.__name__}() takes the fields {cls._fields}")
            try:
                return values + tuple([known[field] for field in missing])
            except KeyError as err:
                raise TypeError(f"{cls.__name__}() needs the field {err}") from None

        def _replace(self, **changes):
            values = list(map(changes.pop, self._fields, self))
            if changes:
                raise TypeError(f"{type(self).__name__}() has no field {list(changes)}")
            return tuple.__new__(type(self), values)

        def _asdict(self):
            return dict(zip(self._fields, self))

        # As in typing.NamedTuple: no look at the number of values.
        _make = classmethod(tuple.__new__)

        def __repr__(self):
            pairs = ", ".join([f"{field}={value!r}" for field, value in zip(self._fields, self)])
            return f"{type(self).__name__}({pairs})"

        def __getnewargs__(self):
            return tuple(self)
