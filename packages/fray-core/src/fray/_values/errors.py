"""Every error that Fray raises on purpose.

    FrayError
    ├── SpecError (ValueError)
    ├── PluginError
    │   ├── PluginNotFoundError (ValueError)
    │   ├── PluginConflictError (ValueError)
    │   └── PluginLoadError (ImportError)
    ├── UnsupportedError (NotImplementedError)
    ├── SerializationError (ValueError, TypeError)
    ├── WrongProcessError (RuntimeError)
    ├── ContextClosedError (RuntimeError)
    ├── DeadlockError (RuntimeError)
    ├── GetTimeoutError (TimeoutError)
    ├── TaskError (RuntimeError)
    ├── TaskCancelledError (concurrent.futures.CancelledError)
    ├── WorkerDiedError (RuntimeError)
    ├── ActorDiedError (RuntimeError)
    ├── ActorAlreadyExistsError (ValueError)
    ├── ActorNotFoundError (ValueError, KeyError)
    ├── JobNotFoundError (KeyError)
    ├── JobFailedError (RuntimeError)
    ├── ClusterUnavailableError (ConnectionError)
    ├── LeaseExpiredError (ValueError)
    ├── UnreadableItemError (ValueError)
    ├── NoReplyError (RuntimeError)
    ├── QueueFullError (OSError)
    └── QueueUnavailableError (ConnectionError)

Facts are attributes and constructor arguments, so that an error means the same
after it was pickled to another process; `__str__` makes the sentence of them.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any


class FrayError(Exception):
    """Base of all errors that Fray raises on purpose."""

    # KeyError and OSError print their arguments their own way; a Fray message reads the same everywhere.
    def __str__(self) -> str:
        return " ".join(str(arg) for arg in self.args)


class SpecError(FrayError, ValueError):
    """A spec string, or an option in it, cannot be read."""


class PluginError(FrayError):
    """Something is wrong with an installed, or a missing, plugin."""


class PluginNotFoundError(PluginError, ValueError):
    """No installed distribution provides the name that was requested."""

    def __init__(
        self, kind: str, name: str, installed: Sequence[str] = (), install: str | None = None
    ) -> None:
        super().__init__(kind, name, tuple(installed), install)
        self.kind, self.name, self.installed, self.install = kind, name, tuple(installed), install

    def __str__(self) -> str:
        found = ", ".join(self.installed) or "none"
        if self.install:
            advice = f"{self.name!r} comes with {self.install}: pip install {self.install}"
        else:
            advice = did_you_mean(self.name, self.installed)
        return f"Unknown {self.kind} {self.name!r}; installed: {found}" + (advice and f"; {advice}")


class PluginConflictError(PluginError, ValueError):
    """Two installed distributions claim the same name."""

    def __init__(self, kind: str, name: str, distributions: Sequence[str]) -> None:
        super().__init__(kind, name, tuple(distributions))
        self.kind, self.name, self.distributions = kind, name, tuple(distributions)

    def __str__(self) -> str:
        claimants = " and ".join(repr(name) for name in self.distributions)
        return f"{self.kind} {self.name!r} is claimed by {claimants}; uninstall all but one of them"


class PluginLoadError(PluginError, ImportError):
    """An installed plugin cannot be imported."""

    def __init__(self, kind: str, name: str, distribution: str, entry_point: str, reason: str) -> None:
        super().__init__(kind, name, distribution, entry_point, reason)
        self.kind, self.distribution, self.entry_point, self.reason = kind, distribution, entry_point, reason
        self.name = name

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.name!r} of {self.distribution!r} cannot be loaded "
            f"({self.entry_point}): {self.reason}"
        )


class UnsupportedError(FrayError, NotImplementedError):
    """This backend cannot do what was requested; the message names what can."""


class SerializationError(FrayError, ValueError, TypeError):
    """A value cannot be pickled; the message says which one, and why."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"{self.what} cannot be pickled: {self.reason}"


class WrongProcessError(FrayError, RuntimeError):
    """An object that lives in one process's memory arrived in another process."""


class ContextClosedError(FrayError, RuntimeError):
    """The context was shut down before this call."""


class DeadlockError(FrayError, RuntimeError):
    """The wait could never end, because what it waits for can only happen afterwards."""


class GetTimeoutError(FrayError, TimeoutError):
    """The result was not there in time; the task goes on."""


class TaskError(FrayError, RuntimeError):
    """A task failed with an exception that cannot travel between processes."""

    def __init__(self, type_name: str, message: str, traceback: str) -> None:
        super().__init__(type_name, message, traceback)
        self.type_name, self.message, self.traceback = type_name, message, traceback

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}\n\n{self.traceback}"


class TaskCancelledError(FrayError, CancelledError):
    """The task, or one that it depends on, was cancelled."""


class WorkerDiedError(FrayError, RuntimeError):
    """The worker process ended while it ran a task."""


class ActorDiedError(FrayError, RuntimeError):
    """The actor is dead: killed, or its constructor failed, or its process ended."""

    def __init__(self, actor: str, reason: str) -> None:
        super().__init__(actor, reason)
        self.actor, self.reason = actor, reason

    def __str__(self) -> str:
        return f"actor {self.actor} is dead: {self.reason}"


class ActorAlreadyExistsError(FrayError, ValueError):
    """The name belongs to a living actor of this namespace."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"an actor named {self.name!r} exists already; pass get_if_exists=True to share it"


class ActorNotFoundError(FrayError, ValueError, KeyError):
    """No living actor of this namespace has the name."""

    def __init__(self, name: str, existing: Sequence[str] = ()) -> None:
        super().__init__(name, tuple(existing))
        self.name, self.existing = name, tuple(existing)

    def __str__(self) -> str:
        found = ", ".join(map(repr, self.existing)) or "no named actor"
        return f"no actor named {self.name!r} here; found: {found}"


class JobNotFoundError(FrayError, KeyError):
    """The cluster has no job of this id."""

    def __init__(self, job_id: str, where: str = "this cluster") -> None:
        super().__init__(job_id, where)
        self.job_id, self.where = job_id, where

    def __str__(self) -> str:
        return f"no job {self.job_id!r} on {self.where}"


class JobFailedError(FrayError, RuntimeError):
    """A job that was waited for did not succeed; `info` is its final JobInfo."""

    def __init__(self, info: Any) -> None:
        super().__init__(info)
        self.info = info

    def __str__(self) -> str:
        return f"job {self.info.job_id} {self.info.status}: {self.info.error_message or 'no error message'}"


class ClusterUnavailableError(FrayError, ConnectionError):
    """The cluster cannot be reached, or refuses this process; the message names it, and what to check."""


class LeaseExpiredError(FrayError, ValueError):
    """The lease expired and its item was taken or settled since, or the lease was settled before.

    Args:
        others: Further leases of the same call that are no longer held; `lease_ids` has them all.
    """

    def __init__(self, lease_id: str, *others: str) -> None:
        super().__init__(lease_id, *others)
        self.lease_id, self.lease_ids = lease_id, (lease_id, *others)

    def __str__(self) -> str:
        more = f" (nor are {len(self.lease_ids) - 1} others)" if len(self.lease_ids) > 1 else ""
        return (
            f"lease {self.lease_id!r} is no longer held{more}; "
            "its item was settled, or may run again elsewhere"
        )


class UnreadableItemError(FrayError, ValueError):
    """An item of a queue cannot be unpickled in this process."""

    def __init__(self, item_id: str, error: str) -> None:
        super().__init__(item_id, error)
        self.item_id, self.error = item_id, error

    def __str__(self) -> str:
        return (
            f"item {self.item_id!r} cannot be unpickled in this process: {self.error}; "
            "run this where the code that pushed it is installed"
        )


class NoReplyError(FrayError, RuntimeError):
    """An item whose producer waits for an answer will never get one.

    Args:
        reason: `dead` (after its last attempt), `expired` (before a worker took it) or `gone`.
    """

    def __init__(self, item_id: str, reason: str) -> None:
        super().__init__(item_id, reason)
        self.item_id, self.reason = item_id, reason

    def __str__(self) -> str:
        why = {
            "dead": "its last attempt ended without one; requeue_dead brings the item back",
            "expired": "nobody took it within its ttl; requeue_dead brings the item back",
        }.get(
            self.reason,
            "the queue has neither the item nor an answer: it was collected before, dropped after reply_ttl, "
            "or the item was removed",
        )
        return f"item {self.item_id!r} has no answer: {why}"


class QueueFullError(FrayError, OSError):
    """The queue, its server or its disk can store no more; what is stored is kept.

    Args:
        waited: Seconds for which the push waited for room. 0 where it was not to wait, or no wait helps.
    """

    waited = 0.0

    def __init__(self, *args: object, waited: float = 0.0) -> None:
        super().__init__(*args)
        self.waited = waited

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (it waited {self.waited:g} s)" if self.waited else text


class QueueUnavailableError(FrayError, ConnectionError):
    """The queue's server or store did not answer in time."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the known name closest to `given`, or an empty string."""
    import difflib  # only once something went wrong

    close = difflib.get_close_matches(given, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""
