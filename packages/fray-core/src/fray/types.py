"""The options and environments that tasks, actors and older jobs take."""

from typing import Any

from fray import _legacy
from fray._values.options import ActorOptions, Lifetime, RuntimeEnv, TaskOptions

__all__ = ["ActorOptions", "Lifetime", "RuntimeEnv", "TaskOptions"]
__path__: list[str] = []  # only of a package does the import statement ask the finder for a missing name


def __getattr__(name: str) -> Any:
    return _legacy.find_name(__name__, name)
