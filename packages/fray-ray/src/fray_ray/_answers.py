"""Answers of Ray's dashboard, read as input from outside: what Ray gives, or an error with what it is."""

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

import requests

from fray_ray._ray_internals.dashboard import RefusedError, failure_of
from fray_ray._reading import UNREADABLE

T = TypeVar("T")
_VERSION = re.compile(r"(?![01]\.)\d+\.\d+.*")  # of a Ray that has jobs over HTTP
_SHOWN = 200  # characters of an answer that cannot be read


def unless_missing(ask: Callable[[], T]) -> T | None:
    """Return an answer; None where the dashboard says that nothing is there."""
    try:
        return ask()
    except RefusedError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return None


def good(answer: requests.Response) -> requests.Response:
    """Return an answer whose status says that all is well; else raise what it is."""
    if answer.status_code != HTTPStatus.OK:
        raise failure_of(answer)
    return answer


def empty(answer: requests.Response) -> bool:
    """Return True for a good answer without a body, as Ray gives it for what it stores."""
    if good(answer).content:
        raise _unread(answer, "which should be empty")
    return True


def read_as(answer: requests.Response, reading: Callable[[Any], T]) -> T:
    """Return what is read in the JSON of an answer; ConnectionError where it is cut off, or another's."""
    try:
        return reading(answer.json())
    except UNREADABLE as error:
        raise _unread(answer, f"which is not what Ray answers ({error!r:.100})") from error


def _unread(answer: requests.Response, why: str) -> ConnectionError:
    asked = answer.request
    return ConnectionError(f"{asked.method} {asked.url} answered {answer.text[:_SHOWN]!r}, {why}")


def _typed(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}: {value!r:.50}")
    return value


def text_at(name: str) -> Callable[[Any], str]:
    """Return what reads a text in an answer."""
    return lambda answer: _typed(answer[name], str)


def flag_at(name: str) -> Callable[[Any], bool]:
    """Return what reads true or false in an answer."""
    return lambda answer: _typed(answer[name], bool)


def version_in(answer: Any) -> str:
    """Return the version of Ray that a dashboard says."""
    found = text_at("ray_version")(answer)
    if not _VERSION.fullmatch(found):
        raise ValueError(f"no version of Ray that has jobs: {found!r:.50}")
    return found


def entry_in(answer: Any) -> dict[str, Any]:
    """Return an entry of the job table, whose fields `JobEntry` reads."""
    if "status" not in _typed(answer, dict):
        raise KeyError("status")
    return dict(answer)


def list_in(answer: Any) -> list[Any]:
    """Return a list."""
    return _typed(answer, list)


def anything(answer: Any) -> Any:
    """Return an answer whose parts are read one by one."""
    return answer
