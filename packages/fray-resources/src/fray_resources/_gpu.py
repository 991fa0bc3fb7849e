"""The names of GPU types.

Any name may be requested: a cluster may have a type that no table here knows.
"""

from __future__ import annotations

from fray_resources._errors import invalid
from fray_resources._flops import GPU_PEAKS
from fray_resources._tpu import is_tpu_type

ANY = "any"

# Ray 2.60 names these too (`ray/util/accelerators/accelerators.py`), or people often do.
_WITHOUT_RATES = (
    "H20",
    "K80",
    "MI100",
    "MI210",
    "MI300A",
    "MI308X",
    "P100",
    "P4",
    "RTX-3090",
    "RTX-6000-ADA",
    "RTX-PRO-6000",
)
_MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct")


def gpu_types() -> tuple[str, ...]:
    """List the GPU types with a canonical spelling; others may be requested as they are."""
    return tuple(sorted((*GPU_PEAKS, *_WITHOUT_RATES)))


def canonical_gpu(text: object) -> str:
    """Return the canonical spelling: case, spaces, hyphens and the maker's name do not matter.

    A type that is in no table is returned as it is. `any`, and the older `auto`, is `any`.

    Raises:
        ValueError: It is not the name of a GPU type, or it is that of a TPU.
    """
    if not isinstance(text, str) or not _key(text) or not text.isprintable():
        raise invalid("type", 'the name of a GPU type such as "H100", or "any"', text)
    if is_tpu_type(text):
        raise invalid("type", "that of a GPU", text, "; TpuConfig takes TPU types")
    by_key = {ANY: ANY, "auto": ANY, **{_key(name): name for name in gpu_types()}}
    return by_key.get(_key(text), text.strip())


def _key(text: str) -> str:
    key = "".join(letter for letter in text.lower() if letter.isalnum())
    for maker in _MAKERS:
        key = key.removeprefix(maker)
    return key
