"""Frozen values with the manners of a dataclass, without its import cost.

`import dataclasses` alone costs more than all of this package may. Classes
decorated here compare, hash, print, pickle and refuse changes as frozen
dataclasses do, and answer `dataclasses.fields`, `replace` and `asdict`; what
those functions look for is made when they first ask. Type checkers are shown
the standard decorator.
"""

from __future__ import annotations

__all__ = ["fill", "value"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as value
    from typing import Any
else:

    def value(*, frozen: bool) -> Any:
        """Make a value of a class that has `__slots__`, `__init__` and its fields in `__match_args__`."""
        assert frozen

        def add_methods(cls: type) -> type:
            for method in _METHODS:
                setattr(cls, method.__name__, method)
            for name in ("__dataclass_fields__", "__dataclass_params__"):
                setattr(cls, name, _OnDemand(name))
            return cls

        return add_methods


def fill(target: object, **values: object) -> None:
    """Set the fields of a value that is being made."""
    for name, field in values.items():
        object.__setattr__(target, name, field)


class _OnDemand:
    """Stand in for an attribute that the functions of `dataclasses` read from a class."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> object:
        import dataclasses
        import inspect
        import typing

        hints = typing.get_type_hints(owner)
        parameters = inspect.signature(owner).parameters
        specs: list[Any] = []
        for name in _names(owner):
            default = parameters[name].default
            has_default = default is not inspect.Parameter.empty
            specs.append((name, hints[name], default) if has_default else (name, hints[name]))
        return getattr(dataclasses.make_dataclass(owner.__name__, specs, frozen=True), self.name)


def _names(cls: type) -> tuple[str, ...]:
    return cls.__match_args__  # type: ignore[attr-defined, no-any-return]


def _values(self: object) -> dict[str, object]:
    return {name: getattr(self, name) for name in _names(type(self))}


def _restore(cls: type, values: dict[str, object]) -> object:
    return cls(**values)


def __setattr__(self: object, name: str, field: object) -> None:  # noqa: ARG001, N807
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: object, name: str) -> None:  # noqa: ARG001, N807
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def __eq__(self: object, other: object) -> bool:  # noqa: N807
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def __hash__(self: object) -> int:  # noqa: N807
    return hash((type(self), *_values(self).values()))


def __repr__(self: object) -> str:  # noqa: N807
    fields = ", ".join(f"{name}={field!r}" for name, field in _values(self).items())
    return f"{type(self).__qualname__}({fields})"


def __reduce__(self: object) -> tuple[object, ...]:  # noqa: N807
    return _restore, (type(self), _values(self))


def __replace__(self: object, /, **changes: object) -> object:  # noqa: N807
    return _restore(type(self), _values(self) | changes)


_METHODS = (__setattr__, __delattr__, __eq__, __hash__, __repr__, __reduce__, __replace__)
