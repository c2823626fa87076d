# SPDX-License-Identifier: Apache-2.0
"""typing.NamedTuple without an import of typing, for all records of this package.

Type checkers see the real one.  To import ``typing`` takes a third of the time of the interpreter's start, and its
NamedTuple compiles source text for every class, at every container start.  Must not grow: no validation, no conversion,
no inheritance between records, no pickle.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    try:
        from _collections import _tuplegetter
    except ImportError:
        # If a later Python has none: the same, only slower.
        def _tuplegetter(index, doc):
            return property(lambda self: self[index])

    # A getter only has an index, so all classes can share them.
    _GETTERS = [_tuplegetter(index, "") for index in range(32)]

    def _new(cls, *values, **named):
        if named or len(values) != len(cls._fields):
            values = _completed(cls, values, named)
        return tuple.__new__(cls, values)

    def _completed(cls, values, named):
        """All values, from positions, names and defaults; TypeError for a wrong call."""
        missing = cls._fields[len(values) :]
        by_name = {**cls._field_defaults, **named}
        if len(values) > len(cls._fields) or not set(named) <= set(missing):
            raise TypeError(f"{cls.__name__}() takes the fields {cls._fields}")
        try:
            return values + tuple([by_name[field] for field in missing])
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

    _METHODS = {
        "__new__": _new,
        "__repr__": _written,
        # As in typing.NamedTuple, it does not check the number of values.
        "_make": classmethod(tuple.__new__),
        "_replace": _replaced,
        "_asdict": lambda self: dict(zip(self._fields, self)),
    }

    class _RecordType(type):
        """Makes the annotations of a class body the fields of a tuple, in a module with ``from __future__ import
        annotations``: only then has the namespace them, not evaluated, on every Python from 3.9 on.
        """

        def __new__(mcs, name, bases, namespace):
            if not bases:
                return type.__new__(mcs, name, bases, namespace)
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace.pop(field) for field in fields if field in namespace}
            if len(fields) > len(_GETTERS):
                raise TypeError(f"{name} has more than {len(_GETTERS)} fields")
            own = {**_METHODS, **dict(zip(fields, _GETTERS)), **namespace}
            own["_fields"] = fields
            own["_field_defaults"] = defaults
            own["__slots__"] = ()
            # Directly below tuple: in every class between, Python would look up all names that a type may define.
            return type(name, (tuple,), own)

    class NamedTuple(metaclass=_RecordType):
        """The base of every record's class; see ``typing.NamedTuple``."""
