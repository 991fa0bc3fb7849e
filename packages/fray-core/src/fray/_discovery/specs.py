"""Read `NAME?key=value&key=value` and turn its values into what a plugin's signature takes."""

import contextlib
import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from fray._values.errors import SpecError, did_you_mean

_BOOLEANS = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}
_BAD = object()  # what a conversion answers where the text is not of its type


@dataclass(frozen=True)
class Spec:
    """A plugin's name and the options written behind it, still text."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """Read a spec.

        Raises:
            SpecError: The text is not `NAME` or `NAME?key=value&key=value`.
        """
        if not isinstance(text, str):
            raise SpecError(f"a spec is text such as 'local' or 'ray?namespace=exp1', got {text!r}")
        name, mark, query = text.partition("?")
        if not name or name != name.strip():
            raise SpecError(f"spec {text!r} has no name; expected NAME or NAME?key=value&key=value")
        return cls(name, parse_query(query, f"spec {text!r}") if mark else {})

    def __str__(self) -> str:
        query = "&".join(f"{key}={quote(value, safe=':/,@')}" for key, value in self.options.items())
        return f"{self.name}?{query}" if query else self.name


def parse_query(query: str, what: str) -> dict[str, str]:
    """Read `key=value&key=value`, percent-decoded.

    Args:
        what: What the query is of, as messages should call it; they repeat nothing of the query but a key.
    """
    options: dict[str, str] = {}
    for number, pair in enumerate(query.split("&"), 1):
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise SpecError(f"{what}: option {number} is not key=value")
        key = unquote(key)
        if key in options:
            raise SpecError(f"{what}: option {key!r} is given twice")
        options[key] = unquote(value)
    return options


def bind_options(
    factory: Callable[..., Any], what: str, texts: Mapping[str, str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return keyword arguments for `factory`: `texts` converted by its signature, `values` winning over them.

    A value that is a str where the signature takes none is converted too, so that an
    option means the same in a spec and as a keyword.

    Args:
        what: The plugin as messages should call it, e.g. "context 'threadpool'".

    Raises:
        SpecError: An option is unknown, or its text is not of the option's type.
    """
    hints, open_ended = _accepted(factory)
    bound: dict[str, Any] = {}
    for key, value in {**texts, **values}.items():
        if key not in hints and not open_ended:
            raise SpecError(_unknown_option(what, key, value, hints))
        hint = hints.get(key, int | float | bool | str)
        bound[key] = convert(value, hint, f"{what}: option {key!r}") if isinstance(value, str) else value
    return bound


def convert(text: str, hint: Any, what: str) -> Any:
    """Turn text into a value of the annotated type.

    Raises:
        SpecError: The text is not of that type; the message lists what would be.
    """
    value = _convert(text, hint)
    if value is _BAD:
        raise SpecError(f"{what} must be {_describe(hint)}, got {text!r}")
    return value


def _accepted(factory: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """The options that a factory takes with their types, and whether it takes any other."""
    function = factory.__init__ if inspect.isclass(factory) else factory
    types_of = _type_hints(function)
    hints: dict[str, Any] = {}
    open_ended = False
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            hints[parameter.name] = types_of.get(parameter.name, Any)
    return hints, open_ended


def _type_hints(function: Any) -> dict[str, Any]:
    """Return the types of a function's parameters; one that exists for the type checker only is left out."""
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - whatever an annotation raises where it is evaluated
        found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(Exception):
            found |= typing.get_type_hints(alone, getattr(function, "__globals__", None))
    return found


def _unknown_option(what: str, key: str, value: Any, known: Iterable[str]) -> str:
    accepted = ", ".join(sorted(known)) or "none"
    hint = did_you_mean(key, known)
    return f"{what} has no option {key!r} (given {value!r}); accepted: {accepted}" + (
        f"; {hint}" if hint else ""
    )


def _convert(text: str, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        results = (_convert(text, member) for member in typing.get_args(hint))
        return next((value for value in results if value is not _BAD), _BAD)
    if origin is typing.Literal:
        return next((value for value in typing.get_args(hint) if str(value) == text), _BAD)
    if origin in (list, tuple, set, frozenset) or _is_sequence(origin):
        return _convert_sequence(text, origin, typing.get_args(hint))
    return _convert_scalar(text, hint)


def _is_sequence(origin: Any) -> bool:
    return inspect.isclass(origin) and issubclass(origin, Iterable) and not issubclass(origin, Mapping)


def _convert_sequence(text: str, origin: Any, members: tuple[Any, ...]) -> Any:
    kind = origin if origin in (list, set, frozenset) else tuple
    values = [_convert(part, members[0] if members else str) for part in text.split(",") if part]
    return _BAD if _BAD in values else kind(values)


def _convert_scalar(text: str, hint: Any) -> Any:
    if hint is Any or hint is str or hint is object:
        return text
    if hint is None or hint is type(None):
        return None if text.lower() in ("", "none") else _BAD
    if hint is bool:
        return _BOOLEANS.get(text.lower(), _BAD)
    if hint in (int, float, Path) or (inspect.isclass(hint) and issubclass(hint, enum.Enum)):
        try:
            return hint(text)
        except ValueError:
            return _BAD
    return _BAD  # an object that no text stands for: only a keyword can pass it


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_describe(member) for member in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(repr(member.value) for member in hint)
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        type(None): "none",
        Path: "a path",
    }
    return names.get(hint, f"a {getattr(hint, '__name__', hint)} (pass it as a keyword)")
