"""The GPU types, and the ways people spell them."""

from __future__ import annotations

from fray_resources._errors import did_you_mean, invalid
from fray_resources._flops import GPU_PEAKS

# Ray 2.60 names these too (`ray/util/accelerators/accelerators.py`); their rates are not in _flops.
_WITHOUT_RATES = ("H20", "GB300", "MI100", "MI210", "MI300A", "MI308X", "RTX-PRO-6000")
_MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct")


def gpu_types() -> tuple[str, ...]:
    """List the GPU types in their canonical spelling."""
    return tuple(sorted((*GPU_PEAKS, *_WITHOUT_RATES)))


def canonical_gpu(text: object) -> str:
    """Return the canonical spelling: case, spaces, hyphens and the maker's name do not matter.

    Raises:
        ValueError: There is no such type; the message says which is close.
    """
    if not isinstance(text, str):
        raise invalid("type", 'the name of a GPU type such as "H100"', text)
    by_key = {_key(name): name for name in gpu_types()}
    if _key(text) not in by_key:
        hint = did_you_mean(_key(text), by_key.values())
        raise invalid("type", f"one of {', '.join(by_key.values())}", text, hint)
    return by_key[_key(text)]


def _key(text: str) -> str:
    key = "".join(letter for letter in text.lower() if letter.isalnum())
    for maker in _MAKERS:
        key = key.removeprefix(maker)
    return key
