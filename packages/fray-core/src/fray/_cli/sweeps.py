"""`fray run --sweep`: many runs of one command, one for each combination of parameters."""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

_AXIS = re.compile(r"(?P<name>[A-Za-z_][\w-]*)=(?P<values>.*)", re.DOTALL)
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w-]*)\}")
_MOST = 10_000

Parameters = Mapping[str, str]


def combinations(sweeps: Sequence[str], zips: Sequence[str]) -> list[Parameters]:
    """Return the parameters of each run: every combination of the axes, the last one changing first.

    Args:
        sweeps: An axis each: `lr=0.1,0.01`, `seed=0..9`, `names=["a,b", "c"]`.
        zips: Axes that go together: the first values of all, then the second ones.

    Raises:
        UsageError: One is wrong; the message says which, and what it takes.
    """
    axes: list[list[Parameters]] = []
    zipped: dict[str, list[str]] = {}
    for text in sweeps:
        name, values = _axis("--sweep", text)
        axes.append([{name: value} for value in values])
    for text in zips:
        name, values = _axis("--zip", text)
        if name in zipped:
            raise click.UsageError(f"--zip {name} is given twice")
        zipped[name] = values
    if zipped:
        axes.append(_together(zipped))
    _check_names([name for axis in axes for name in axis[0]])
    count = math.prod(map(len, axes))
    if count > _MOST:
        raise click.UsageError(f"the sweep has {count} runs, more than the {_MOST} that one may have")
    return [
        {name: value for part in parts for name, value in part.items()} for parts in itertools.product(*axes)
    ]


def _axis(option: str, text: str) -> tuple[str, list[str]]:
    found = _AXIS.fullmatch(text)
    if found is None:
        raise click.UsageError(
            f"{option} takes NAME=VALUE,VALUE,…, NAME=FIRST..LAST or a JSON list, got {text!r}"
        )
    values = _values(found["values"])
    if not values or "" in values:
        raise click.UsageError(f'{option} {text!r} has no value, or an empty one; an empty text is NAME=[""]')
    return found["name"], [value or "" for value in values]


def _values(text: str) -> "list[str | None]":
    """Read the values of an axis; an empty one that is meant, in a JSON list, is None."""
    if text.startswith("["):
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise click.UsageError(f"{text!r} starts like a JSON list, but is not one: {error}") from error
        return [(each if isinstance(each, str) else json.dumps(each)) or None for each in listed]
    values: list[str | None] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        values += _range(part, found) if found else [part]
    return values


def _range(text: str, found: "re.Match[str]") -> list[str]:
    try:
        first, last = int(found[1]), int(found[2])
        step = int(found[3] or (1 if last >= first else -1))
    except ValueError as error:  # Python converts some thousand digits
        raise click.UsageError(f"{text[:40]}… has a number of too many digits") from error
    if step == 0 or (last - first) * step < 0:
        raise click.UsageError(f"{text!r} has no end: it goes from {first} to {last} by {step}")
    if abs(last - first) // abs(step) >= _MOST:
        raise click.UsageError(f"{text!r} has more than the {_MOST} values that a sweep may have runs")
    return [str(number) for number in range(first, last + (1 if step > 0 else -1), step)]


def _together(zipped: Mapping[str, list[str]]) -> list[Parameters]:
    lengths = {name: len(values) for name, values in zipped.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise click.UsageError(f"what is given by --zip has as many values each; got {counts}")
    return [dict(zip(zipped, values, strict=True)) for values in zip(*zipped.values(), strict=True)]


def _check_names(names: Sequence[str]) -> None:
    variables: dict[str, str] = {}
    for name in names:
        other = variables.setdefault(variable_of(name), name)
        if names.count(name) > 1 or other != name:
            which = (
                f"{name!r} is swept twice" if other == name else f"{other!r} and {name!r} are one variable"
            )
            raise click.UsageError(which)


def variable_of(name: str) -> str:
    """Return the variable in which a run finds a parameter: of `lr` it is `FRAY_PARAM_LR`."""
    return "_".join(["FRAY", "PARAM", name.replace("-", "_").upper()])


def filler(parameters: Parameters) -> Callable[[str], str]:
    """Return what puts parameters into a text: `{lr}`; `{{` and `}}` are braces.

    The function raises a `UsageError` for a placeholder that is not a parameter.
    """

    def value_of(found: "re.Match[str]") -> str:
        name = found[1]
        if name is None:
            return found[0][0]
        if name not in parameters:
            known = ", ".join(parameters)
            itself = f"{{{{{name}}}}} is the text itself"
            raise click.UsageError(f"{{{name}}} is not a parameter of the sweep, which has {known}; {itself}")
        return parameters[name]

    return lambda text: _PLACEHOLDER.sub(value_of, text)


def options_of(given: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Return the options of `fray run` for one run: placeholders filled, parameters added."""
    fill = filler(parameters)
    filled = {name: tuple(map(fill, given[name])) for name in ("command", "args")}
    variables = [*map(fill, given["variables"]), *_pairs(parameters, variable_of)]
    labels = [*map(fill, given["labels"]), *_pairs(parameters, str)]
    name = None if given["name"] is None else fill(given["name"])
    return {**given, **filled, "variables": tuple(variables), "labels": tuple(labels), "name": name}


def _pairs(parameters: Parameters, named: Callable[[str], str]) -> Iterator[str]:
    yield from (f"{named(name)}={value}" for name, value in parameters.items())


def member_name(name: str, parameters: Parameters) -> str:
    """Return what one run is called: `train lr=0.1 seed=3`."""
    return " ".join([name, *_pairs(parameters, str)])[:200]
