"""Exceptions on their way through Ray, in both directions.

In the worker, an exception goes into Ray as itself with all that `pack` keeps of it attached, so that plain
Ray code catches its type too; one that would not survive goes as `WrappedError`. Ray 2.60 pickles exceptions
outside of what it counts: the references in one are held by the worker that raised it until that ends.
At `get`, whatever Ray raises becomes what every other backend raises.
"""

import pickle
import re

from ray import exceptions as rx

from fray import (
    ActorDiedError,
    GetTimeoutError,
    SerializationError,
    TaskCancelledError,
    TaskError,
    WorkerDiedError,
)
from fray_ray._context.captured import Packed, pack, unpack
from fray_ray._ray_internals.deaths import actor_in, is_death_without_cause, is_of_actor
from fray_ray._ray_internals.errors import ends_worker

_PACKED = "_fray_packed"
_ACTOR_DIED = (rx.RayActorError, rx.ActorUnschedulableError, rx.ActorPlacementGroupRemoved)
_PROMISES = "FrayPromises"  # the class of the actors that have the futures which were passed to tasks
OURS: set[str] = set()
"""The ids of those that this process made, as hexadecimal digits: all that Ray says of a lost connection."""
_DIED = (
    rx.WorkerCrashedError,
    rx.NodeDiedError,
    rx.OutOfMemoryError,
    rx.ObjectLostError,
    rx.LocalRayletDiedError,
)


class WrappedError(Exception):
    """An exception that Ray would not bring back as it was. Ray's logs show it; `get` unwraps it."""

    def __init__(self, packed: Packed, text: str) -> None:
        super().__init__(packed, text)
        self.__dict__[_PACKED], self._text = packed, text

    def __str__(self) -> str:
        return self._text


def portable(error: BaseException) -> BaseException:
    """Return what a worker raises for the exception of a task."""
    if isinstance(error, rx.RayError) or ends_worker(error):
        return error
    getattr(error, "__dict__", {}).pop(_PACKED, None)  # of an earlier time that it was raised
    packed = pack(error)
    wrapped = WrappedError(packed, f"{type(error).__name__}: {error!r}")
    # Ray gives StopIteration, and what is not an Exception, meanings of its own.
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return wrapped
    try:
        error.__dict__[_PACKED] = packed
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever the class does when it is pickled, the wrapper travels
        return wrapped
    kept = copy.__dict__.get(_PACKED) or (None,)
    return error if type(copy) is type(error) and kept[0] == packed[0] else wrapped


def translate(error: BaseException, *, timeout: float | None = None) -> BaseException:
    """Return what Fray raises for what `ray.get` raised."""
    for link in _causes(error):
        packed = getattr(link, "__dict__", {}).get(_PACKED)
        if packed is not None:
            return unpack(packed)
    deepest = _causes(error)[-1]
    if isinstance(deepest, rx.GetTimeoutError):
        return GetTimeoutError(f"no result within {timeout} s; the task goes on")
    if isinstance(deepest, rx.TaskCancelledError):
        return TaskCancelledError("the task was cancelled")
    if isinstance(deepest, _ACTOR_DIED) or is_of_actor(deepest) or is_death_without_cause(error):
        return _actor_died(deepest)
    if isinstance(deepest, _DIED):
        return WorkerDiedError(str(deepest).strip() or type(deepest).__name__)
    if isinstance(error, rx.RayTaskError):
        return _outside_the_task(error, deepest)
    return deepest


def _causes(error: BaseException) -> list[BaseException]:
    """The exception, and what Ray wrapped in it, from the outside inwards."""
    found = [error]
    while isinstance(inner := getattr(found[-1], "cause", None), BaseException) and inner not in found:
        found.append(inner)
    return found


def _outside_the_task(error: BaseException, cause: BaseException) -> BaseException:
    """Name what failed around the task's own code: pickling its result, or unpickling its arguments."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    name = re.search(r"ray::(.+?)\(\)", text)
    if "pickle" in text and isinstance(cause, TypeError | pickle.PicklingError | AttributeError):
        what = f"the result of {name[1]}()" if name else "the result"
        return SerializationError(what, f"{type(cause).__name__}: {cause}")
    if isinstance(cause, rx.RayError):
        return TaskError(type(cause).__name__, str(cause), text)
    cause.__cause__ = TaskError(type(cause).__name__, str(cause), text)  # with the traceback of the worker
    return cause  # as Ray raises it for its own tasks: by its type


def _actor_died(error: BaseException) -> ActorDiedError | WorkerDiedError:
    text = str(error).strip()
    if not text or isinstance(error, rx.RaySystemError):
        text = "it has ended, and Ray does not say why"
    kind, name = actor_in(text)
    if kind == _PROMISES or getattr(error, "actor_id", None) in OURS:
        return WorkerDiedError(f"the process that kept a future for this task died: {text}")
    label = kind or "of this handle"
    return ActorDiedError(f"{label}({name!r})" if name else label, text)
