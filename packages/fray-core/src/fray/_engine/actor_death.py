"""Why an actor is dead, as its callers read it."""

from fray._contracts.task_runner import StoredError
from fray._values.errors import ActorDiedError


class DeathError(StoredError):
    """Why an actor is dead; an exception is made of it, and its cause loaded, by its first reader."""

    __slots__ = ("_cause", "_error", "_label", "_reason")

    def __init__(self, label: str, reason: str, cause: BaseException | StoredError | None) -> None:
        self._label, self._reason, self._cause = label, reason, cause
        self._error: ActorDiedError | None = None

    @property
    def cancelled(self) -> bool:
        return False

    def load(self) -> BaseException:
        """Return the ActorDiedError, with its cause."""
        if self._error is None:
            cause, reason = self._cause, self._reason
            if isinstance(cause, StoredError):
                cause = cause.load()
            if cause is not None:
                reason = reason.format(kind=type(cause).__name__, cause=cause)
            error = ActorDiedError(self._label, reason)
            error.__cause__ = cause
            self._error = error
        return self._error.with_traceback(None)
