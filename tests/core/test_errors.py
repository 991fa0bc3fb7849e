"""Errors: what they are, and that they arrive whole in another process."""

import pickle
from types import SimpleNamespace

import pytest

import fray

EXAMPLES: list[fray.FrayError] = [
    fray.PluginNotFoundError("context type", "x", ("sync",), "fray-local"),
    fray.PluginConflictError("context type", "x", ("a", "b")),
    fray.PluginLoadError("context type", "x", "dist", "m:X", "ImportError: no"),
    fray.SerializationError("argument 1", "TypeError: no"),
    fray.TaskError("E", "message", "Traceback"),
    fray.ActorDiedError("Counter", "it was killed"),
    fray.ActorAlreadyExistsError("name"),
    fray.ActorNotFoundError("name", ("other",)),
    fray.JobNotFoundError("job-1"),
    fray.JobFailedError(SimpleNamespace(job_id="job-1", status="failed", error_message="why")),
    fray.LeaseExpiredError("lease-1"),
    fray.LeaseExpiredError("lease-1", "lease-2"),
    fray.NoReplyError("item-1", "expired"),
    fray.UnreadableItemError("item-1", "ModuleNotFoundError: No module named 'newer'"),
    *(
        kind("a message")
        for kind in (
            fray.FrayError,
            fray.SpecError,
            fray.PluginError,
            fray.UnsupportedError,
            fray.WrongProcessError,
            fray.ContextClosedError,
            fray.DeadlockError,
            fray.GetTimeoutError,
            fray.TaskCancelledError,
            fray.WorkerDiedError,
            fray.ClusterUnavailableError,
            fray.QueueFullError,
            fray.QueueUnavailableError,
        )
    ),
]
BUILTINS = {
    "SpecError": ValueError,
    "PluginNotFoundError": ValueError,
    "PluginConflictError": ValueError,
    "PluginLoadError": ImportError,
    "UnsupportedError": NotImplementedError,
    "SerializationError": (ValueError, TypeError),
    "GetTimeoutError": TimeoutError,
    "ActorAlreadyExistsError": ValueError,
    "ActorNotFoundError": (ValueError, KeyError),
    "JobNotFoundError": KeyError,
    "LeaseExpiredError": ValueError,
    "UnreadableItemError": ValueError,
    "ClusterUnavailableError": ConnectionError,
    "NoReplyError": RuntimeError,
    "QueueFullError": OSError,
    "QueueUnavailableError": ConnectionError,
    "WorkerDiedError": RuntimeError,
}


def test_every_error_has_an_example_here() -> None:
    public = {thing for name in fray.__all__ if isinstance(thing := getattr(fray, name), type)}
    errors = {thing for thing in public if issubclass(thing, fray.FrayError)}
    assert {type(error) for error in EXAMPLES} == errors
    beside = {kind for kind in errors_below(fray.FrayError) if kind.__module__ == fray.FrayError.__module__}
    assert beside < errors, "an error beside FrayError is public"


def errors_below(kind: type[Exception]) -> set[type[Exception]]:
    return {one for child in kind.__subclasses__() for one in (child, *errors_below(child))}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_means_the_same_after_it_was_pickled(error: fray.FrayError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy).keys() == vars(error).keys()
    assert str(error), "an error says something"


@pytest.mark.parametrize(("name", "kinds"), BUILTINS.items())
def test_an_error_is_the_builtin_that_its_caller_expects(name: str, kinds: type) -> None:
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        assert issubclass(getattr(fray, name), kind)
