"""What a worker answers: checked, and packed for queues that cross processes."""

import pickle
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from fray._serialization.values import dumps, pack_exception
from fray._values.checks import invalid
from fray._values.leases import Lease


class Answer(NamedTuple):
    """What `done` was given: a result, or the exception that failed the item."""

    outcome: Literal["value", "error"]
    value: Any


def check_lease(lease: Any) -> Any:
    """Return a lease; anything else is an error with the value."""
    if not isinstance(lease, Lease):
        raise invalid("lease", "a Lease as `pop` returns it", lease)
    return lease


def answer_of(lease: Lease[Any], result: Any, error: BaseException | None) -> Answer | None:
    """Return the answer to an item; None where nobody waits for one, or it is None."""
    if error is not None:
        if result is not None:
            raise ValueError("done takes a result or an error, not both")
        check_error(error)
    if not lease.reply:
        return None
    return Answer("error", error) if error is not None else Answer("value", result)


def answers_of(leases: Sequence[Lease[Any]], results: Iterable[Any] | None) -> list[Answer | None]:
    """Return the answers to several items."""
    if results is None:
        return [None] * len(leases)
    given = list(results)
    if len(given) != len(leases):
        raise ValueError(f"results are {len(given)}, and the leases {len(leases)}; give one for each")
    return [answer_of(lease, result, None) for lease, result in zip(leases, given, strict=True)]


def check_error(error: Any) -> None:
    """Refuse a value that is not an exception."""
    if error is not None and not isinstance(error, BaseException):
        raise invalid("error", "the exception that failed the item", error)


def pack_answer(answer: Answer, lease: Lease[Any]) -> bytes:
    """Pickle an answer; a result that cannot be pickled is a SerializationError, and changes nothing."""
    if answer.outcome == "error":
        return pack_exception(answer.value)
    if answer.value is None or type(answer.value) in (bytes, str, int, float, bool):
        return pickle.dumps(answer.value, pickle.HIGHEST_PROTOCOL)  # they need no cloudpickle
    return dumps(answer.value, f"the result of item {lease.item_id}")


def pack_answers(
    leases: Sequence[Lease[Any]], answers: Sequence[Answer | None]
) -> list[tuple[str, bytes] | None]:
    """Pickle the answers to several items; where one cannot be pickled, nothing is changed."""
    return [
        None if answer is None else (answer.outcome, pack_answer(answer, lease))
        for lease, answer in zip(leases, answers, strict=True)
    ]


def pack_failure(lease: Lease[Any], error: BaseException | None) -> bytes | None:
    """Pickle what failed an attempt, where a producer waits for an answer."""
    return pack_exception(error) if error is not None and lease.reply else None
