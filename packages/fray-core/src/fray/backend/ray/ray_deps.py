"""Older path of `fray_ray.deps`."""

from typing import Any

from fray import _legacy

__path__: list[str] = []  # only of a package does the import statement ask the finder for a missing name


def __getattr__(name: str) -> Any:
    return _legacy.hand_on(__name__, name)
