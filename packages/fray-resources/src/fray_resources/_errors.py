"""Errors that name the field, the value, and what is close or allowed."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost as much as the whole package may
if TYPE_CHECKING:
    from collections.abc import Iterable


def invalid(field: str, allowed: str, value: object, hint: str = "") -> ValueError:
    """Make the error for a field; `allowed` completes "FIELD must be ..."."""
    return ValueError(f"{field} must be {allowed}, got {value!r}{hint}")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Give the end of a message that suggests the name nearest to `word`; empty when none is near."""
    # Here, because difflib imports re: only a message pays for it.
    from difflib import get_close_matches

    by_spelling = {name.lower(): name for name in names}
    near = get_close_matches(word.strip().lower(), by_spelling, n=1, cutoff=0.5)
    return f"; did you mean {by_spelling[near[0]]!r}?" if near else ""


def check_keys(owner: str, data: object, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not a dict, and keys that `owner` does not have."""
    if not isinstance(data, dict):
        raise invalid(f"the data of a {owner}", "a dict", data)
    for key in data:
        if key not in allowed:
            hint = did_you_mean(str(key), allowed)
            raise invalid(f"a key of {owner}", f"one of {', '.join(allowed)}", key, hint)


def check_count(field: str, value: object) -> int:
    """Return `value` when it is a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid(field, "a whole number of 1 or more", value)
    return int(value)
