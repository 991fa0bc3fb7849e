"""What processes that a user waits for have in place of `typing.NamedTuple` and `json`."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any
from typing import NamedTuple as TypingNamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fray.backend import NamedTuple, to_json


class Light(NamedTuple):
    name: str
    size: int = 2
    rest: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return self.size + sum(self.rest)


class Typing(TypingNamedTuple):
    name: str
    size: int = 2
    rest: tuple[int, ...] = ()


class Empty(NamedTuple):
    """Nothing to say."""


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("a",), {}),
    (("a", 1, (2,)), {}),
    (("a", 1, (2,), 3), {}),
    (("a",), {"rest": (1,)}),
    ((), {"rest": (1,), "name": "a"}),
    (("a",), {"name": "b"}),
    (("a",), {"other": 1}),
    ((), {"size": 1}),
]


@pytest.mark.parametrize(("values", "named"), CALLS)
def test_it_takes_and_refuses_what_a_namedtuple_does(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        expected = Typing(*values, **named)
    except TypeError:
        with pytest.raises(TypeError):
            Light(*values, **named)
        return
    made = Light(*values, **named)
    assert tuple(made) == tuple(expected)
    assert made._asdict() == expected._asdict()
    assert repr(made) == repr(expected).replace("Typing", "Light")


def test_it_does_what_a_namedtuple_does() -> None:
    made = Light("a", rest=(5,))
    assert (made.name, made.size, made.rest, made.total) == ("a", 2, (5,), 7)
    assert Light._fields == Typing._fields
    assert made._replace(size=3) == ("a", 3, (5,))
    assert made == ("a", 2, (5,))
    assert Light._make(["a", 2, (5,)]) == made
    with pytest.raises(TypeError, match="other"):
        made._replace(other=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        made.name = "b"  # type: ignore[misc]
    match made:
        case Light(name, size=size):
            assert (name, size) == ("a", 2)
    for same in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (type(same), same) == (Light, made)
    assert (Empty(), repr(Empty())) == ((), "Empty()")


TEXT = st.text(st.characters(codec=None, exclude_categories=()))  # half a surrogate pair too: names of files
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(PLAIN)
def test_json_is_what_json_writes(value: object) -> None:
    assert to_json(value) == json.dumps(value, indent=2)


def test_what_is_no_plain_value_is_refused() -> None:
    with pytest.raises(TypeError, match="not a plain value"):
        to_json({"at": {1, 2}})
