"""Exceptions and calls on their way to another process."""

import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from fray import SerializationError, TaskError
from fray.backend import (
    WrappedClass,
    dumps_call,
    is_async_class,
    pack_exception,
    register_reducer,
    unpack_exception,
)


class Awkward(ValueError):
    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code} {why}")
        self.code, self.why = code, why


class Holder(Exception):
    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Noted(Exception):
    __notes__ = ("of the class",)  # type: ignore[assignment]


def travel(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return unpack_exception(pack_exception(raised))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", 3),
        KeyError("k"),
        OSError(2, "No such file", "path"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
        StopIteration(4),
        SystemExit(3),
        Awkward(7, why="so"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_as_itself(error: BaseException) -> None:
    copy = travel(error)
    assert type(copy) is type(error)
    assert (str(copy), copy.args) == (str(error), error.args)
    assert {**vars(copy), "__notes__": None} == {**vars(error), "__notes__": None}


def test_it_brings_its_traceback_its_notes_and_its_causes() -> None:
    error = ValueError("outer")
    error.add_note("a note")
    error.__cause__ = KeyError("inner")
    copy = travel(error)
    assert isinstance(copy.__cause__, KeyError)
    text = "".join(traceback.format_exception(copy))
    assert "a note" in text
    assert "raise error" in text


@pytest.mark.parametrize("kind", ["same", "cause", "held cause", "group"])
def test_its_text_does_not_double_with_each_process_that_it_passes(kind: str) -> None:
    def next_one(depth: int, error: BaseException) -> BaseException:
        if kind == "same":
            return error
        if kind == "group":
            return BaseExceptionGroup("some", [error])
        made = Holder() if kind == "held cause" and depth % 2 else ValueError(depth)
        made.__cause__ = error
        return made

    lengths, error = [], travel(ValueError("deepest"))
    for depth in range(12):
        error = travel(next_one(depth, error))
        lengths.append(len("".join(traceback.format_exception(error))))
    text = "".join(traceback.format_exception(error))
    assert "ValueError: deepest" in text
    assert text.count("Traceback where it was raised") > 5  # the earlier ones are in it
    assert lengths[-1] < 4 * lengths[len(lengths) // 2]


@pytest.mark.parametrize(("error", "message"), [(Holder(), "held"), (Mute(), "<no message: ")])
def test_one_that_cannot_travel_is_reported(error: BaseException, message: str) -> None:
    copy = travel(error)
    assert isinstance(copy, TaskError)
    assert copy.type_name.endswith(type(error).__name__)
    assert copy.message.startswith(message)
    assert "raise error" in copy.traceback


@pytest.mark.parametrize("error", [Frozen(3), Noted("x")], ids=lambda error: type(error).__name__)
def test_one_that_takes_no_note_brings_its_traceback_and_its_cause(error: BaseException) -> None:
    BaseException.__setattr__(error, "__cause__", ValueError("cause"))
    copy = travel(error)
    assert type(copy) is type(error)
    assert (str(copy), copy.args, str(copy.__cause__)) == (str(error), error.args, "cause")
    assert "raise error" in "".join(traceback.format_exception(copy))


def test_a_cycle_of_causes_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert str(travel(first)) == "1"


def test_a_call_that_cannot_be_pickled_names_the_part() -> None:
    lock = threading.Lock()
    with pytest.raises(SerializationError, match=r"argument 2 \('b'\) of .*f\(\)"):
        dumps_call(f, (1, lock), {})
    with pytest.raises(SerializationError, match=r"argument 3 of .*f\(\)"):
        dumps_call(f, (1, 2, lock), {})
    with pytest.raises(SerializationError, match=r"argument 'c' of .*f\(\)"):
        dumps_call(f, (1,), {"c": lock})
    with pytest.raises(SerializationError, match=r"the function .*<lambda>"):
        dumps_call(lambda: lock, (), {})
    assert pickle.loads(dumps_call(f, (1,), {"b": 2}))[1:] == ((1,), {"b": 2})


def f(a: int, b: int = 0, **more: object) -> int:
    return a + b


around: list[str] = []


class Greeter:
    kind = "plain"

    def __init__(self, name: str) -> None:
        self.name = name
        around.append("constructs")

    async def greet(self) -> str:
        return f"hello {self.name}"


@contextmanager
def block(label: str) -> Iterator[None]:
    around.append(f"{label} begins")
    yield
    around.append(f"{label} ends")


def labelled(label: str, name: str, method: Callable[..., Any]) -> tuple[str, str, Callable[..., Any]]:
    return label, name, method


def test_a_wrapped_class_travels_with_what_is_around_it_and_shows_the_real_one() -> None:
    around.clear()
    wrapped: Any = WrappedClass(Greeter, partial(block, "it"), partial(labelled, "it"))  # type: ignore[arg-type]
    there = pickle.loads(pickle.dumps(wrapped))
    assert (there.__name__, there.__wrapped__, is_async_class(there)) == ("Greeter", Greeter, True)
    made = there("Ada")
    assert around == ["it begins", "constructs", "it ends"]
    assert (made.name, made.kind) == ("Ada", "plain")
    assert made.greet[:2] == ("it", "greet")
    assert made.greet[2].__func__ is Greeter.greet


class Token:
    """What a backend recognizes, wherever a function or an exception holds it."""

    def __init__(self, name: str) -> None:
        self.name = name


def token_again(name: str) -> Token:
    return Token(f"{name} again")


def test_a_backend_says_how_a_type_travels_in_functions_and_exceptions() -> None:
    seen = []

    def reduce(token: Token) -> tuple[Any, ...]:
        seen.append(token.name)
        return token_again, (token.name,)

    register_reducer(Token, reduce)
    token, error = Token("held"), ValueError("it failed")
    error.__dict__["token"] = Token("raised")
    there, args, _ = pickle.loads(dumps_call(lambda: token.name, (token,), {}))
    assert (there(), args[0].name) == ("held again", "held again")
    assert vars(unpack_exception(pack_exception(error)))["token"].name == "raised again"
    assert seen == ["held", "raised"]
