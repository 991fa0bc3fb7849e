"""What listeners receive of a queue's leases."""

from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._values.errors import LeaseExpiredError
from fray.testing.listening import ListeningFixtures, Told
from fray.testing.queue_fixtures import MakeQueue, ManualClock, QueueFixtures, take


class EventPromises(ListeningFixtures, QueueFixtures):
    """Whichever way a lease is taken and settled, each is reported once."""

    def test_a_lease_is_reported_when_taken_and_when_settled(
        self, told: Told, queue: Queue[Any], clock: ManualClock
    ) -> None:
        queue.push_many(["secret one", "secret two", "secret three"])
        first = take(queue)
        queue.done(first)
        second, third = queue.pop_many(2)
        queue.done_many(lease for lease in [second])
        queue.release(third)
        clock.advance(5.0)
        waited = queue.pop(60.0, wait=1.0)
        assert waited is not None
        by_id: dict[str, list[str]] = {}
        for event in told.of("lease"):
            by_id.setdefault(event.id, []).append(f"{event.kind} {event.outcome}")
        assert by_id == {
            first.lease_id: ["lease_taken None", "lease_settled ok"],
            second.lease_id: ["lease_taken None", "lease_settled ok"],
            third.lease_id: ["lease_taken None", "lease_settled released"],
            waited.lease_id: ["lease_taken None"],
        }
        last = told.of("lease")[-1]
        assert last.details == {"item_id": waited.item_id, "attempt": 2}
        assert last.seconds == pytest.approx(5.0, abs=0.1)  # since the push
        assert "secret" not in told.text()

    def test_a_lease_that_was_lost_is_reported_as_an_error(
        self, told: Told, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        queue = make_queue()
        queue.push("x")
        lost = take(queue, 10.0)
        clock.advance(11.0)
        with queue.lease(60.0) as held:
            assert held is not None
            with pytest.raises(LeaseExpiredError):
                queue.done(lost)
        settled = {event.id: event for event in told.of("lease") if event.kind == "lease_settled"}
        assert (settled[lost.lease_id].outcome, settled[lost.lease_id].error) == (
            "error",
            "LeaseExpiredError",
        )
        assert settled[held.lease_id].outcome == "ok"
