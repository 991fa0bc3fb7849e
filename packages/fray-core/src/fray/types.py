"""The options and environments that tasks, actors and older jobs take."""

from fray._values.options import ActorOptions, Lifetime, RuntimeEnv, TaskOptions

__all__ = ["ActorOptions", "Lifetime", "RuntimeEnv", "TaskOptions"]
