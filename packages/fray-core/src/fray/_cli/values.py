"""What the command line takes as text: durations, ages, `KEY=VALUE`."""

import json
import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _Seconds = click.ParamType[float]
else:  # not a generic class in every version that will do
    _Seconds = click.ParamType

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
EXPECTED = "a duration such as 90, 45s, 30m, 2h, 1h30m or 7d"


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `45s`, `2h`, `1h30m`, `7d`.

    Raises:
        ValueError: It is none of these.
    """
    plain = text.strip()
    if _DURATION.fullmatch(plain):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(plain))
    try:
        seconds = float(plain)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"expected {EXPECTED}, got {text!r}")
    return seconds


class Duration(_Seconds):
    """Seconds, with or without a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(_Seconds):
    """A time, `10m` ago or as ISO 8601 has it, as seconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        if _DURATION.fullmatch(text):
            return time.time() - parse_duration(text)
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            expected = "an age such as 30s, 10m, 2h or 1d, or a time such as 2026-05-01T12:00"
            self.fail(f"expected {expected}, got {value!r}", param, ctx)


class Age(_Seconds):
    """Seconds, with a unit: `--older-than 7` would be about nearly everything."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        if isinstance(value, float):
            return value
        if not _DURATION.fullmatch(str(value).strip()):
            self.fail(f"expected an age such as 30m, 12h or 7d, got {value!r}", param, ctx)
        return parse_duration(str(value))


DURATION, AGE, MOMENT = Duration(), Age(), Moment()


def pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """Read `KEY=VALUE` texts; the last one of a key counts.

    Raises:
        UsageError: A text has no key or no `=`.
    """
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes KEY=VALUE, got {text!r}")
        found[key] = value
    return found


def literal(text: str) -> Any:
    """Return what a text stands for: a JSON value, else itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
