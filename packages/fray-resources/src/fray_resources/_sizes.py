"""Amounts of memory and disk."""

from __future__ import annotations

from fray_resources._errors import invalid

_LARGEST = 2**63 - 1
_PREFIXES = {prefix: 1 << 10 * power for power, prefix in enumerate("kmgtp", start=1)}
_UNITS = {"": 2**30, "b": 1} | {
    prefix + suffix: factor for prefix, factor in _PREFIXES.items() for suffix in ("", "b", "ib")
}
_FORMS = (
    'a size above zero and below 8 EiB: a string such as "512m", "8g" or "1.5TiB" (binary multiples; '
    "a bare number is GiB), or an int of bytes"
)


def parse_size(size: str | int, *, field: str = "size") -> int:
    """Return a size in bytes, rounded down to a whole one.

    Args:
        size: A number with a unit (`b`, `k`, `m`, `g`, `t`, `p`, each also as `GB` or `GiB`, in
            any case, all of them binary), a bare number as a string (GiB), or an int (bytes).
        field: What the error calls the value.

    Raises:
        ValueError: The size is none of these, or not between 1 byte and 8 EiB.
    """
    amount = _from_text(size) if isinstance(size, str) else size
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 < amount <= _LARGEST:
        raise invalid(field, _FORMS, size)
    return int(amount)


def _from_text(text: str) -> int | None:
    number = text.strip().rstrip("bBiIkKmMgGtTpP")
    unit = text.strip()[len(number) :].lower()
    whole, _, fraction = number.rstrip().partition(".")
    digits = whole + fraction
    # isdigit alone takes "²" and "٣"; the length keeps int() fast and within its own limit.
    if unit not in _UNITS or len(digits) > 40 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) * _UNITS[unit] // int("1" + "0" * len(fraction))


def format_size(size: str | int) -> str:
    """Write a size with the largest unit that divides it: `"8g"`, `"1536m"`, `"1000b"`."""
    amount = parse_size(size)
    for prefix in reversed(_PREFIXES):
        if amount % _PREFIXES[prefix] == 0:
            return f"{amount // _PREFIXES[prefix]}{prefix}"
    return f"{amount}b"
