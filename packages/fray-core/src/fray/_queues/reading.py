"""Items as their takers get them: unpickled, or set aside when that fails."""

import contextlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from fray._values.errors import FrayError, UnreadableItemError
from fray._values.leases import Attempt, DeadLetter, GivenUp, Lease, UnreadableItem


def take_readable(
    take: Callable[[], list[Lease[bytes]]],
    *,
    set_aside: Callable[[Lease[bytes], str], None],
    give_back: Callable[[Sequence[Lease[Any]]], object],
) -> list[Lease[Any]]:
    """Take items until there is one that can be unpickled here, or none at all.

    Args:
        take: Leases items; an empty list when none wait.
        set_aside: Is called with a lease whose item cannot be unpickled, and the error's text.
        give_back: Gives leases back, when the taker is interrupted before it could have them.
    """
    while True:
        taken = take()
        found = _readable(taken, set_aside, give_back)
        if found or not taken:
            return found


def _readable(
    taken: Sequence[Lease[bytes]],
    set_aside: Callable[[Lease[bytes], str], None],
    give_back: Callable[[Sequence[Lease[Any]]], object],
) -> list[Lease[Any]]:
    found: list[Lease[Any]] = []
    left = list(taken)
    try:
        while left:
            read = read_lease(lease := left[0])
            if isinstance(read, str):
                with contextlib.suppress(FrayError, OSError):  # else its lease runs out by itself
                    set_aside(lease, read)
            else:
                found.append(read)
            del left[0]
    except BaseException:  # an interrupt: nobody will get what is in hand
        with contextlib.suppress(FrayError, OSError):  # else their leases run out by themselves
            give_back([*left, *found])
        raise
    return found


def read_lease(lease: Lease[bytes]) -> Lease[Any] | str:
    """Return a lease with its item unpickled; where that fails, the text of the error."""
    try:
        item = _loaded(lease.item)
    except _UnreadableError as error:
        return str(error)
    return Lease(
        item,
        lease.lease_id,
        lease.timestamp,
        lease.item_id,
        lease.attempt,
        lease.expires_at,
        lease.reply,
        lease.pushed_at,
    )


def read_item(payload: bytes, item_id: str) -> Any:
    """Unpickle an item that is only looked at.

    Raises:
        UnreadableItemError: It cannot be unpickled in this process.
    """
    try:
        return _loaded(payload)
    except _UnreadableError as error:
        raise UnreadableItemError(item_id, str(error)) from error.__cause__


def dead_letter(
    payload: bytes,
    item_id: str,
    attempts: int,
    history: tuple[Attempt, ...],
    reason: GivenUp = "attempts",
) -> DeadLetter[Any]:
    """Make a dead letter; one whose item cannot be unpickled here holds its bytes and the error."""
    try:
        item = _loaded(payload)
    except _UnreadableError as error:  # a letter that cannot be read hides no other
        item = UnreadableItem(payload, str(error))
    return DeadLetter(item, item_id, attempts, history, reason)


class _UnreadableError(Exception):
    """An item cannot be unpickled here; its text says why."""


def _loaded(payload: bytes) -> Any:
    """Unpickle an item.

    Raises:
        _UnreadableError: Its class raised something: SystemExit counts, and so does what derives from
            BaseException alone, such as the panic of a library in Rust. A KeyboardInterrupt is raised.
    """
    try:
        return pickle.loads(payload)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _UnreadableError(describe(error)) from error


def describe(error: BaseException) -> str:
    """Return an error as text that is safe to store."""
    try:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a user's __str__, which may panic as a library in Rust does
        return type(error).__name__
