"""Older path of `fray.cluster`, which has `RayCluster`."""

from typing import TYPE_CHECKING, Any

from fray import _legacy

if TYPE_CHECKING:
    from fray.cluster import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return _legacy.hand_on(__name__, name)
