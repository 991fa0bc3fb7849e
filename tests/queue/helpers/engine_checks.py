"""What queues on every engine are asked, once their test has made users, or a standby."""

from collections.abc import Callable
from typing import Any

import pytest

from fray import LeaseExpiredError
from fray_queue import AccessRefusedError, work


def check_rights(producer: Any, worker: Any, admin: Any, *, said: str) -> None:
    """Use a queue of `max_attempts=1` as three users: each may do what it needs and no more.

    Args:
        said: Part of every refusal.
    """
    ticket = producer.push("question", reply=True, priority=2, ttl=100.0)
    producer.push_many(["second", "third"], keys=["a", "b"])
    assert producer.exists()
    assert (producer.size(), producer.peek()) == (3, "question")
    assert producer.oldest_seconds() >= 0
    for refused in (producer.pop, producer.purge, worker.purge, worker.dead_letters, worker.delete):
        with pytest.raises(AccessRefusedError, match=said) as caught:
            refused()
        assert "hush-hush" not in str(caught.value)
    with pytest.raises(AccessRefusedError, match=said):  # a pool does not wait for rights that it never had
        work(producer, print)
    lease = worker.pop(wait=10.0)
    worker.done(worker.extend(lease, 50.0), result="answer")
    assert ticket.result(timeout=10.0) == "answer"
    worker.release(worker.pop())
    assert [letter.item for letter in admin.dead_letters()] == ["second"]
    assert admin.requeue_dead() == 1


def check_fail_over(
    queue: Any,
    *,
    standby_has_the_lease: Callable[[], None],
    promote: Callable[[], None],
    crash: Callable[[], None],
) -> None:
    """Lose what the standby had not, as is declared, and nothing else; the queue has `max_attempts=3`."""
    queue.push_many("abcd")  # the standby, asked first, cannot
    known = queue.pop()
    standby_has_the_lease()
    promote()
    lost = queue.pop()
    queue.push("lost")
    crash()
    assert (queue.size(), queue.pending()) == (4, 3)
    queue.done(known)
    with pytest.raises(LeaseExpiredError):
        queue.done(lost)
    assert [lease.item for lease in queue.pop_many(9)] == ["b", "c", "d"]
    queue.close()
