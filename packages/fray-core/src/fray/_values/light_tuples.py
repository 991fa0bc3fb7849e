"""`typing.NamedTuple` without the import of `typing`, for processes that a user waits for.

That import takes 2 ms and each class of its making 0.2 ms: together a third of what a job's supervisor took
before it could start anything. A type checker sees `typing.NamedTuple` itself. Use it with
`from __future__ import annotations`, so that the types of fields are not evaluated.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Maker(type):
        """Turns the annotations of a class into fields, in their order, as `typing.NamedTuple` does."""

        def __new__(cls, name, bases, namespace):
            fields = tuple(namespace.get("__annotations__", ()))
            if not fields:  # one without fields, as an event may be, or this module's own
                fields = tuple(field for base in bases for field in getattr(base, "_fields", ()))
            defaults = {field: namespace.pop(field) for field in fields if field in namespace}
            namespace |= {field: property(_getter(at)) for at, field in enumerate(fields)}
            namespace |= {"__slots__": (), "__match_args__": fields, "_fields": fields}
            return super().__new__(cls, name, bases, {**namespace, "_field_defaults": defaults})

    def _getter(at):
        return lambda values: tuple.__getitem__(values, at)

    class NamedTuple(tuple, metaclass=_Maker):
        """A tuple whose fields have names."""

        def __new__(cls, *values, **named):
            missing = cls._fields[len(values) :]
            if named or missing:
                given = cls._field_defaults | named
                values += tuple(given[field] for field in missing if field in given)
                if not named.keys() <= set(missing):
                    raise TypeError(f"{cls.__name__} got {sorted(named)} beside {len(values)} values")
            if len(values) != len(cls._fields):
                raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}; got {len(values)} values")
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes):
            return type(self)(**{**self._asdict(), **changes})

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            fields = (f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({', '.join(fields)})"
