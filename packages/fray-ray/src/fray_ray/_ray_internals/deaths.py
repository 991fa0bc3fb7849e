"""Why an actor has ended, where the error of its call does not say it."""

from typing import Any

from ray._private.state import state
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError


def is_death_without_cause(error: BaseException) -> bool:
    """Whether an error of a call is one of an actor that has ended, of a cause that the caller's Ray lacks.

    Read in Ray 2.60: its `_deserialize_actor_died_error` asserts that there is one, and has no text for it.
    """
    return isinstance(error, AssertionError) and not isinstance(error, RayError)


def death_of(actor_id: str) -> RayError:
    """Return why an actor has ended, as the head knows it. Read in Ray 2.60.

    Args:
        actor_id: In hexadecimal digits.
    """
    cause: Any = state.actor_table(actor_id).get("DeathCause")
    if cause is not None and cause.HasField("oom_context"):
        return OutOfMemoryError(cause.oom_context.error_message)  # type: ignore[no-untyped-call]
    if cause is not None and cause.HasField("actor_died_error_context"):
        return ActorDiedError(cause.actor_died_error_context)
    return ActorDiedError()
