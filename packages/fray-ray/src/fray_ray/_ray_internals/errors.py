"""How Ray words the failure of a task, or of its environment."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from ray.exceptions import RayTaskError

_HEAD, _TAIL = 4_000, 12_000  # characters of an error's text: the last failure, and the first one


def ends_worker(error: BaseException) -> bool:
    """Whether Ray has raised an exception so that its worker ends: on SIGTERM, or in `ray.actor.exit_actor`.

    Read in Ray 2.60. It is a SystemExit with a message for the raylet. Ray reports the end of the worker, and
    a task that may be retried runs again; as the failure of a task it would be the caller's SystemExit.
    """
    return isinstance(error, SystemExit) and hasattr(error, "ray_terminate_msg")


def installers_output(error: str) -> str | None:
    """Return what pip or uv wrote, from Ray's error of an environment; None where there is none of it.

    Read in Ray 2.60.
    """
    _, quoted, output = error.partition("lines of stdout:")
    return output if quoted else None


def bound_error_texts() -> None:
    """Let the text of a failure that runs down a chain of tasks stop growing.

    Read in Ray 2.60: a task whose argument failed fails with the text of that failure below its own, so a
    chain of n tasks stores and formats n * n lines (24 s for 2,000 tasks). Longer ones are cut in the middle.
    """
    whole: Callable[[Any], str] = RayTaskError.__str__
    if hasattr(whole, "__wrapped__"):
        return

    @wraps(whole)
    def text(self: Any) -> str:
        traceback_text = self.traceback_str
        if len(traceback_text) <= _HEAD + _TAIL:
            return whole(self)
        cut = len(traceback_text) - _HEAD - _TAIL
        self.traceback_str = f"{traceback_text[:_HEAD]}\n  [{cut} characters cut]\n{traceback_text[-_TAIL:]}"
        try:
            return whole(self)
        finally:
            self.traceback_str = traceback_text

    RayTaskError.__str__ = text  # type: ignore[method-assign]
