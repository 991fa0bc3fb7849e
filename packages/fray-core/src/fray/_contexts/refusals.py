"""What a context refuses because its capabilities do not declare it: said at the call, the same for all."""

from collections.abc import Callable
from typing import Any

from fray._serialization.functions import is_generator_function
from fray._values.capabilities import ContextCapabilities
from fray._values.options import ActorOptions, Lifetime, TaskOptions


def check_task(can: ContextCapabilities, who: str, fn: Callable[..., Any], options: TaskOptions) -> None:
    """Refuse a task that the context cannot run as it is asked to.

    Raises:
        UnsupportedError: It streams, needs an environment or retries, and the context declares none.
    """
    if not can.streams and is_generator_function(fn):
        can.check("streams", f"{who}: a generator function as a task", "return a list")
    if options.runtime_env:
        instead = "use 'process' or 'ray', or launch a job with create_environment(...)"
        can.check("runtime_env", f"{who}: runtime_env, an environment for one task,", instead)
    if options.max_retries and can.isolation:  # else nothing dies but the program
        can.check("retries", f"{who}: max_retries", "retry in the program")


def check_actor(can: ContextCapabilities, who: str, options: ActorOptions) -> None:
    """Refuse an actor that the context cannot make as it is asked to.

    Raises:
        UnsupportedError: It has no actors, or none with a name, a detached life or restarts.
    """
    can.check("actors", f"{who}: an actor", "use tasks, or another context")
    if options.name is not None:
        can.check("named_actors", f"{who}: a named actor", "pass the handle to what needs it")
    if options.lifetime is Lifetime.DETACHED:
        can.check("detached_actors", f"{who}: lifetime='detached'", "keep the context open, or use 'ray'")
    if options.max_restarts and can.isolation:
        can.check("max_restarts", f"{who}: max_restarts", "make the actor again when it has died")
