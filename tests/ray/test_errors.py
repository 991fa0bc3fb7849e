"""What Fray raises for each exception that Ray has."""

import inspect
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import ray as typed_ray
from ray import exceptions
from ray.core.generated import common_pb2

from fray import (
    ActorDiedError,
    ActorOptions,
    GetTimeoutError,
    JobContext,
    TaskCancelledError,
    TaskError,
    WorkerDiedError,
    create_context,
)
from fray.testing.context import ContextFixtures  # noqa: F401 - it registers what pytest rewrites
from fray.testing.tasks import Counter
from fray_ray.testing import LocalRayCluster

rx: Any = exceptions  # Ray's constructors have no types
messages: Any = common_pb2

LOST = ("00" * 28, messages.Address().SerializeToString(), "")
SELECTED = """\
Ray killed 1 worker(s) based on the killing policy
Considered workers: [
Selected to kill: ({}: job ID=01, task name={}, pid=3)
]
Total non-selected idle workers: 0
"""
DEAD = messages.ActorDiedErrorContext(
    class_name="Counter", name="tally", actor_id=b"0" * 16, error_message="its process has ended"
)
# Where the cause of a death is none that Ray knows.
ASSERTS = 'line 418, in _deserialize_actor_died_error\n    assert ray_error_info.HasField("actor_died_error")'
UNSET = RuntimeError("no such package")


def of_task(cause: BaseException) -> Any:
    """What `ray.get` raises where a task has failed by an exception."""
    text = "".join(traceback.format_exception(cause))
    return rx.RayTaskError("work", text, cause).as_instanceof_cause()


# As Ray constructs each of them, what `get` raises for it, and words of the message.
AS_RAY_MAKES_THEM: list[tuple[Any, type[BaseException], str]] = [
    # A task, or its value, is lost.
    (rx.WorkerCrashedError(), WorkerDiedError, "died unexpectedly"),
    (rx.NodeDiedError("its node is gone"), WorkerDiedError, "its node is gone"),
    (rx.LocalRayletDiedError(), WorkerDiedError, "raylet died"),
    (rx.OutOfMemoryError(SELECTED.format("Task", "work")), WorkerDiedError, "task name=work"),
    (of_task(rx.OutOfMemoryError(SELECTED.format("Task", "work"))), WorkerDiedError, "task name=work"),
    (rx.ObjectLostError(*LOST), WorkerDiedError, "have been lost"),
    (rx.ObjectFetchTimedOutError(*LOST), WorkerDiedError, "timed out"),
    (rx.ReferenceCountingAssertionError(*LOST), WorkerDiedError, "deleted"),
    (rx.ObjectFreedError(*LOST), WorkerDiedError, "freed"),
    (rx.OwnerDiedError(*LOST), WorkerDiedError, "owner has exited"),
    (rx.ObjectReconstructionFailedError(LOST[0]), WorkerDiedError, "Unknown error reason"),
    # An actor has ended, or never began.
    (rx.RayActorError(), ActorDiedError, "experienced an error"),
    (rx.RayActorError(error_msg=""), ActorDiedError, "Ray does not say why"),
    (rx.ActorDiedError(), ActorDiedError, "died unexpectedly"),
    (rx.RaySystemError(AssertionError(), ASSERTS), ActorDiedError, "of this handle .*does not say why"),
    (rx.ActorDiedError(cause=DEAD), ActorDiedError, r"Counter\('tally'\) is dead.*its process has ended"),
    (of_task(rx.ActorDiedError(cause=DEAD)), ActorDiedError, r"Counter\('tally'\) is dead: The actor died"),
    (rx.ActorUnavailableError("it does not answer", b"0" * 16), ActorDiedError, "does not answer"),
    (rx.ActorUnschedulableError("its node is gone"), ActorDiedError, "not schedulable: its node is gone"),
    (rx.ActorPlacementGroupRemoved(), ActorDiedError, "placement group .* has been removed"),
    (
        rx.OutOfMemoryError(SELECTED.format("Actor(ab)", "Counter.__init__")),
        ActorDiedError,
        "actor Counter is",
    ),
    (
        of_task(rx.OutOfMemoryError(SELECTED.format("Actor(ab)", "Counter.__init__"))),
        ActorDiedError,
        "actor Counter is dead.*Ray killed",
    ),
    (rx.OutOfMemoryError(SELECTED.format("Task", "Counter.__init__")), ActorDiedError, "actor Counter is"),
    (
        rx.RuntimeEnvSetupError("Could not create the actor because its environment failed: no such package"),
        ActorDiedError,
        "no such package",
    ),
    # A call's own end.
    (rx.GetTimeoutError("later"), GetTimeoutError, "no result within 3 s"),
    (rx.TaskCancelledError(), TaskCancelledError, "was cancelled"),
    (of_task(rx.TaskCancelledError()), TaskCancelledError, "was cancelled"),
    (of_task(UNSET), RuntimeError, "no such package"),
    (of_task(rx.RayError("another's")), TaskError, "another's"),
    # What Ray says is clear, and has no counterpart elsewhere.
    (rx.RuntimeEnvSetupError("no such package"), rx.RuntimeEnvSetupError, "no such package"),
    (rx.TaskUnschedulableError("its node is gone"), rx.TaskUnschedulableError, "its node is gone"),
    (rx.TaskPlacementGroupRemoved(), rx.TaskPlacementGroupRemoved, "has been removed"),
    (rx.RayError("unknown"), rx.RayError, "unknown"),
    (rx.RaySystemError("no such type of error"), rx.RaySystemError, "no such type"),
    (rx.RaySystemError(AssertionError("the user's"), "in __setstate__"), rx.RaySystemError, "the user's"),
    (rx.StreamingGeneratorReplayInconsistentError("fewer"), rx.RaySystemError, "fewer"),
    (rx.ObjectStoreFullError("full"), rx.ObjectStoreFullError, "full"),
    (rx.OutOfDiskError(*LOST), rx.OutOfDiskError, "disk"),
    (rx.PlasmaObjectNotAvailable("no"), rx.PlasmaObjectNotAvailable, "no"),
    (rx.ObjectRefStreamEndOfStreamError("end"), rx.ObjectRefStreamEndOfStreamError, "end"),
    (rx.AsyncioActorExit("exit"), rx.AsyncioActorExit, "exit"),
    (rx.PendingCallsLimitExceeded("many"), rx.PendingCallsLimitExceeded, "many"),
    (rx.UserCodeException("user"), rx.UserCodeException, "user"),
    (rx.UnserializableException("where"), rx.UnserializableException, "where"),
    (
        rx.CrossLanguageError(
            messages.RayException(language=messages.Language.JAVA, formatted_exception_string="in Java")
        ),
        rx.CrossLanguageError,
        "in Java",
    ),
    (rx.OufOfBandObjectRefSerializationException("ref"), rx.OufOfBandObjectRefSerializationException, "ref"),
    (rx.RpcError("no answer"), rx.RpcError, "no answer"),
    (rx.AuthenticationError("no token"), rx.AuthenticationError, "no token"),
    (rx.ActorAlreadyExistsError("tally"), rx.ActorAlreadyExistsError, "tally"),
    (rx.ActorHandleNotFoundError("tally"), rx.ActorHandleNotFoundError, "tally"),
    # Of Ray's compiled graphs and direct transport, which Fray does not use.
    (rx.RayChannelError("closed"), rx.RayChannelError, "closed"),
    (rx.RayChannelTimeoutError("late"), rx.RayChannelTimeoutError, "late"),
    (rx.RayCgraphCapacityExceeded("full"), rx.RayCgraphCapacityExceeded, "full"),
    (rx.RayDirectTransportError("lost"), rx.RayDirectTransportError, "lost"),
]


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


@pytest.mark.parametrize(
    ("given", "raised", "words"),
    AS_RAY_MAKES_THEM,
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_what_ray_raises_becomes_what_every_backend_raises(
    context: JobContext,
    monkeypatch: pytest.MonkeyPatch,
    given: BaseException,
    raised: type[BaseException],
    words: str,
) -> None:
    def get(*_: Any, **__: Any) -> None:
        raise given

    ref = context.put(1)
    with monkeypatch.context() as patched:
        patched.setattr(typed_ray, "get", get)
        with pytest.raises(raised, match=rf"(?s){words}"):
            context.get(ref, timeout=3)


def test_every_exception_that_ray_has_is_in_the_table() -> None:
    known = {type(given) for given, _, _ in AS_RAY_MAKES_THEM}
    has = {kind for _, kind in inspect.getmembers(rx, inspect.isclass) if issubclass(kind, rx.RayError)}
    assert has == known & has


def test_a_task_fails_as_the_call_of_a_dead_actor_that_it_takes_or_makes(context: JobContext) -> None:
    def call_as_ray_does(actor: Any) -> int:
        return int(typed_ray.get(actor.increment.remote()))

    counter = context.create_actor(Counter, name="tally")
    plain = typed_ray.get_actor("tally", namespace=typed_ray.get_runtime_context().namespace)
    context.kill(counter)
    for ref in context.run(abs, counter.increment()), context.run(call_as_ray_does, plain):
        with pytest.raises(ActorDiedError, match=r"(?s)Counter\('tally'\) is dead: The actor died"):
            context.get(ref, timeout=200)


def test_an_actor_whose_environment_cannot_be_made_is_dead_and_says_why(context: JobContext) -> None:
    nowhere = {"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"}
    options = ActorOptions(backend={"ray": {"runtime_env": nowhere}})
    counter = context.create_actor(Counter, options=options)
    for _ in range(2):
        with pytest.raises(ActorDiedError, match=r"(?s)actor .* is dead: .*0123456789abcdef"):
            context.get(counter.increment(), timeout=200)
