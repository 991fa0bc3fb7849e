"""What the entry of a sweep in Ray's job table says of its members; each function takes its metadata.

Of many members Ray's own entry has only the number while it is new: Ray cannot pass on more. The scheduler
adds what is known of them in a moment.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from fray_ray._entry_text import from_text, to_text
from fray_ray._reading import number_in

COUNT, MEMBERS, UNSTARTED = (f"fray.{name}" for name in ("count", "members", "unstarted"))
_LARGE = 16_000  # characters of what is known of members
_MOST = 1_000_000  # members; another number is none of ours


def described_members(members: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the metadata that says of each member its `name`, `replicas`, `labels` and `after`."""
    return {COUNT: str(len(members)), MEMBERS: to_text(members)}


def for_ray(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a job's metadata that Ray can pass on; `TableEntry` adds the rest."""
    large = len(metadata.get(MEMBERS, "")) > _LARGE
    return {name: text for name, text in metadata.items() if not (large and name == MEMBERS)}


def is_of_a_sweep(metadata: Mapping[str, str]) -> bool:
    """Whether it is that of a sweep."""
    return COUNT in metadata


def count_of_members(metadata: Mapping[str, str]) -> int:
    """Return how many members a sweep has; 0 where that cannot be read."""
    count = number_in(metadata.get(COUNT, ""), 0)
    return count if count <= _MOST else 0


def member_in(metadata: Mapping[str, str], position: int) -> Any:
    """Return what is known of a member that has no entry of its own; None where nothing is, yet.

    Raises:
        ValueError: It cannot be read; or another of `UNREADABLE`.
    """
    members = _parsed(metadata.get(MEMBERS, "null"))
    return None if members is None else members[position]


def unstarted_in(metadata: Mapping[str, str], position: int) -> Any:
    """Return how a member ended that was never started; None where it has not.

    Raises:
        ValueError: It cannot be read; or another of `UNREADABLE`.
    """
    return _parsed(metadata.get(UNSTARTED, "{}")).get(str(position))


@lru_cache(maxsize=4)  # all members of a sweep are looked at, one after the other
def _parsed(text: str) -> Any:
    return from_text(text)
