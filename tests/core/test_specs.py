"""Spec strings: what they mean and how they are refused."""

import enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fray import SpecError
from fray.backend import Spec, bind_options


class Mode(enum.StrEnum):
    FAST = "fast"
    SAFE = "safe"


class Plugin:
    def __init__(
        self,
        workers: int = 1,
        timeout: float | None = None,
        *,
        checked: bool = False,
        mode: Mode = Mode.SAFE,
        level: Literal[1, 2] = 1,
        folder: Path = Path(),
        hosts: tuple[str, ...] = (),
        clock: Any = None,
        name: str = "",
    ) -> None: ...


class Open:
    def __init__(self, address: str = "auto", **options: Any) -> None: ...


def bind(text: str, factory: Any = Plugin, **values: Any) -> dict[str, Any]:
    spec = Spec.parse(text)
    return bind_options(factory, f"thing {spec.name!r}", spec.options, values)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("local", "local", {}),
        ("local?use_isolated_env=true", "local", {"use_isolated_env": "true"}),
        (
            "ray?namespace=exp1&address=10.0.0.5:6379",
            "ray",
            {"namespace": "exp1", "address": "10.0.0.5:6379"},
        ),
        ("iris?controller=http://host:1/p", "iris", {"controller": "http://host:1/p"}),
        ("x?a=1%262&b=a+b&c=", "x", {"a": "1&2", "b": "a+b", "c": ""}),
    ],
)
def test_a_spec_is_a_name_and_options(text: str, name: str, options: dict[str, str]) -> None:
    spec = Spec.parse(text)
    assert (spec.name, spec.options) == (name, options)


@given(st.text("abcXYZ09-_.", min_size=1), st.dictionaries(st.text(min_size=1), st.text(), max_size=4))
def test_what_a_spec_prints_reads_back_as_itself(name: str, options: dict[str, str]) -> None:
    options = {key: value for key, value in options.items() if key.isidentifier()}
    assert Spec.parse(str(Spec(name, options))) == Spec(name, options)


@pytest.mark.parametrize("text", ["", "?a=1", " local", "x?a", "x?=1", "x?a=1&&b=2", "x?a=1&a=2", "x?"])
def test_a_malformed_spec_is_refused_and_shown(text: str) -> None:
    with pytest.raises(ValueError, match="spec") as caught:
        Spec.parse(text)
    assert repr(text) in str(caught.value)


def test_a_spec_that_is_no_text_is_refused() -> None:
    with pytest.raises(SpecError, match="42"):
        Spec.parse(42)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("workers=8", 8),
        ("timeout=2.5", 2.5),
        ("timeout=none", None),
        ("checked=true", True),
        ("checked=0", False),
        ("mode=fast", Mode.FAST),
        ("level=2", 2),
        ("folder=/tmp/x", Path("/tmp/x")),
        ("hosts=a,b", ("a", "b")),
        ("name=42", "42"),
    ],
)
def test_an_option_becomes_what_the_signature_says(option: str, value: Any) -> None:
    assert bind(f"p?{option}") == {option.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("option", "accepted"),
    [
        ("workers=many", "a whole number"),
        ("workers=1.5", "a whole number"),
        ("timeout=soon", "a number or none"),
        ("checked=maybe", "true or false"),
        ("mode=slow", "'fast', 'safe'"),
        ("level=3", "1, 2"),
    ],
)
def test_a_bad_value_names_the_option_the_value_and_what_is_accepted(option: str, accepted: str) -> None:
    key, _, value = option.partition("=")
    with pytest.raises(ValueError, match=accepted) as caught:
        bind(f"p?{option}")
    assert repr(key) in str(caught.value)
    assert repr(value) in str(caught.value)


def test_an_unknown_option_is_named_with_the_accepted_ones_and_the_closest() -> None:
    with pytest.raises(ValueError, match=r"no option 'worker' .*accepted: .*workers.*did you mean 'workers'"):
        bind("p?worker=3")
    with pytest.raises(ValueError, match="no option 'worker'"):
        bind("p", worker=3)


def test_keywords_win_over_the_spec_and_mean_the_same() -> None:
    assert bind("p?workers=8&checked=true", workers=2) == {"workers": 2, "checked": True}
    assert bind("p", workers="4") == {"workers": 4}
    with pytest.raises(ValueError, match="'many'"):
        bind("p", workers="many")


def test_a_plugin_that_takes_any_option_gets_numbers_as_numbers() -> None:
    options = bind("r?memory=2048&num_cpus=0.5&namespace=x&flag=true", Open)
    assert options == {"memory": 2048, "num_cpus": 0.5, "namespace": "x", "flag": True}
