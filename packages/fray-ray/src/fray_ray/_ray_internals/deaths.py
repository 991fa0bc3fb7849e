"""Why an actor has ended, where the error of its call does not say it."""

import re
from typing import Any

from ray._private.state import state
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError, RaySystemError, RuntimeEnvSetupError

# What the memory monitor has ended: an actor is a task until it is made.
_ENDED = re.compile(r"\((Actor|Task)\b.*?task name=(.+?)(\.__init__)?,")


def is_death_without_cause(error: BaseException) -> bool:
    """Whether an error of a call is one of an actor that has ended, of a cause that the caller's Ray lacks.

    Read in Ray 2.60: its `_deserialize_actor_died_error` asserts that there is one, and has no text for it.
    """
    return isinstance(error, AssertionError) and not isinstance(error, RayError)


def is_of_actor(error: BaseException) -> bool:
    """Whether an error that Ray raises for tasks too says that an actor has ended, or could not be made.

    Read in Ray 2.60: the text tells which the memory monitor has ended, and of which the environment could
    not be made. Where Ray asserts that a death has a cause, `get` raises a RaySystemError of that.
    """
    if isinstance(error, OutOfMemoryError):
        selected = re.search(r"^Selected to kill: (.*?)^\]", str(error), re.MULTILINE | re.DOTALL)
        ended = _ENDED.findall(selected[1]) if selected else []
        return bool(ended) and all(kind == "Actor" or made for kind, _, made in ended)
    if isinstance(error, RuntimeEnvSetupError):
        return "Could not create the actor" in str(error)
    if isinstance(error, RaySystemError) and is_death_without_cause(error.client_exc):
        return "_deserialize_actor_died_error" in (error.traceback_str or "")
    return False


def actor_in(text: str) -> tuple[str | None, str | None]:
    """Return the class and the name of the actor that the text of an error is about, None where it says none.

    Read in Ray 2.60: the memory monitor names the call that had made it.
    """
    name, kind = (re.search(rf"^\s*{field}: (.+)$", text, re.MULTILINE) for field in ("name", "class_name"))
    ended = _ENDED.search(text, max(0, text.find("Selected to kill:")))
    made = ended[2] if ended and ended[3] else None
    return (kind[1] if kind else made), (name[1] if name else None)


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
