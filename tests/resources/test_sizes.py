"""Sizes of memory and disk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fray_resources import ResourceConfig, format_size, parse_size

GIB = 2**30
SIZES = st.integers(1, 2**63 - 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512m", 512 * 2**20),
        ("8g", 8 * GIB),
        ("8G", 8 * GIB),
        ("16GB", 16 * GIB),
        ("16 GiB", 16 * GIB),
        ("10gb", 10 * GIB),
        ("1.5TiB", 1536 * GIB),
        (".5k", 512),
        ("1p", 2**50),
        ("100b", 100),
        ("16", 16 * GIB),
        (" 0.5 ", GIB // 2),
        (1000, 1000),
    ],
)
def test_a_size_is_read_in_binary_multiples(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@given(SIZES)
def test_a_written_size_is_read_as_the_same_number_of_bytes(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(SIZES)
def test_a_size_is_written_in_one_way_only(size: int) -> None:
    text = format_size(size)
    assert format_size(text) == text


@given(st.integers(1, 8000), st.sampled_from("bkmgt"), st.sampled_from(["", "b", "ib"]), st.booleans())
def test_the_spelling_of_a_unit_does_not_matter(number: int, unit: str, ending: str, upper: bool) -> None:
    spelled = f"{number}{unit}" if unit == "b" else f"{number}{unit}{ending}"
    assert parse_size(spelled.upper() if upper else spelled) == parse_size(f"{number}{unit}")


def test_the_largest_unit_that_divides_a_size_is_written() -> None:
    sizes = [GIB, 1024 * GIB, 1536 * 2**20, 2**20 + 1]
    assert [format_size(size) for size in sizes] == ["1g", "1t", "1536m", "1048577b"]


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            "",
            "g",
            "0.4b",
            "-1g",
            "+1g",
            "0",
            "0g",
            "1e3g",
            "1_000m",
            "1.2.3g",
            "10x",
            "10gg",
            "10bib",
            "nan",
            "inf",
        ),
        *("²g", "٣g", "9" * 5000, "8388608t", 0, -5, 2**63, True, 1.5, float("nan"), None, ["1g"], b"1g"),
    ],
)
@pytest.mark.parametrize("field", ["ram", "disk"])
def test_a_wrong_size_names_the_field_the_value_and_what_is_accepted(field: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be") as caught:
        ResourceConfig(**{field: wrong})  # type: ignore[arg-type]
    assert repr(wrong) in str(caught.value)
    assert '"512m", "8g" or "1.5TiB"' in str(caught.value)
