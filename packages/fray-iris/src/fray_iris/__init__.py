"""Fray on Iris: jobs and named actors on an Iris controller.

Iris itself (the distribution `marin-iris`) is imported when a controller is first asked, and not before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fray.backend import require_api

if TYPE_CHECKING:
    from fray_iris._cluster import IrisCluster
    from fray_iris._context import IrisContext

__all__ = ["IrisCluster", "IrisContext"]

_HOMES = {"IrisCluster": "_cluster", "IrisContext": "_context"}

require_api(1)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
