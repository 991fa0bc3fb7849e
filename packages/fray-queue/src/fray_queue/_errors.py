"""The errors that only queues raise; the shared ones are in `fray`."""

from fray import FrayError
from fray import QueueFullError as QueueFullError  # it is public here as well
from fray.backend import did_you_mean


class DamagedError(FrayError, ValueError):
    """Stored data differs from what was written; nothing was dropped or repaired."""


class QueueNotFoundError(FrayError, KeyError):
    """The server has no queue of that name."""

    def __init__(self, name: str, existing: tuple[str, ...] = ()) -> None:
        super().__init__(name, existing)
        self.name, self.existing = name, existing

    def __str__(self) -> str:
        hint = did_you_mean(self.name, self.existing) or "create it with server.new_queue or create=True"
        return f"no queue {self.name!r} on this server; {hint}"


class QueueExistsError(FrayError, ValueError):
    """The server has a queue of that name with other settings."""


class TokenError(FrayError, PermissionError):
    """The server refuses the token, or requires one."""


class ForeignHostError(FrayError, PermissionError):
    """The server does not answer requests to this name, as a defence against DNS rebinding."""


class LimitError(FrayError, ValueError):
    """The request exceeds a limit of the server or the store; nothing was changed."""


class LateRequestError(FrayError, ValueError):
    """The client has sent a later request on the same connection, and waits for this one no more."""


class UnknownRouteError(FrayError, ValueError):
    """The server knows no such request."""


class NoRoomError(QueueFullError):
    """A queue has as many items as its `max_size`; a client waits, and then raises a QueueFullError.

    Args:
        ever: Whether the items can fit at all.
        count: How many of them need room.
    """

    def __init__(self, message: str, ever: bool = True, count: int = 1) -> None:
        super().__init__(message)
        self.ever, self.count = ever, count


class QueueRemovedError(FrayError, FileNotFoundError):
    """The folder of an open FileQueue was removed, with everything in it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"the queue {self.name!r} was removed while it was open, with the items in it; "
            "open a new FileQueue there to start an empty one"
        )


class TimeLimitError(FrayError, TimeoutError):
    """The function of a pool ran longer than `time_limit`; its item went back to the queue."""


class AccessRefusedError(FrayError, PermissionError):
    """The engine refuses the user, or the user lacks a right, which the message names."""


class QueueVersionError(FrayError, RuntimeError):
    """The engine holds the queue in the format of another release of Fray."""
