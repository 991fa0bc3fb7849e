"""Older path of `fray.queue`."""

from typing import TYPE_CHECKING, Any

from fray import _legacy

if TYPE_CHECKING:
    from fray.queue import *  # noqa: F403

__path__: list[str] = []  # only of a package does the import statement ask the finder for a missing name


def __getattr__(name: str) -> Any:
    return _legacy.hand_on(__name__, name)
